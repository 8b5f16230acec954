"""Tests of the tools bash and eval with real processes."""

import pytest

from dgym.api import ToolSpec
from dgym.tools import ToolSettings
from dgym.wire import Score


async def test_the_shell_keeps_directory_variables_and_functions(make_bench, both_kinds):
    bench = await make_bench({"src/a.txt": "hello\n"})
    await bench.use('bash cd src; export NAME=value; greet() { echo "hi $1"; }')
    observation = await bench.use("bash pwd; cat a.txt; echo $NAME; greet you")
    assert observation.text.splitlines()[0].endswith("/src")
    assert observation.text.splitlines()[1:] == ["hello", "value", "hi you"]
    assert observation.exit_status == 0


@pytest.mark.parametrize(
    ("command", "ok", "expected"),
    [
        ("true", True, "(no output)"),
        ("echo oops >&2; exit 3", True, "oops\nExit status 3."),
        ("kill -SEGV $$", True, "SIGSEGV"),
    ],
)
async def test_the_observation_reports_how_a_command_ended(make_bench, command, ok, expected):
    bench = await make_bench({})
    observation = await bench.use(f"bash {command}")
    assert observation.ok is ok
    assert expected in observation.text


async def test_escape_sequences_of_a_program_do_not_reach_the_observation(make_bench):
    bench = await make_bench({"color.txt": "\x1b[31mred\x1b[0m\n"})
    command = r"printf '\033[1;31mred\033[0m \033]8;;http://a\007link\033]8;;\033\\ \033(Bplain\r\n'"
    assert (await bench.call("bash", command=command)).text == "red link plain\r"
    assert "\x1b[31mred" in await bench.text("view color.txt")


async def test_a_command_that_runs_too_long_is_stopped_with_its_output(make_bench):
    bench = await make_bench({})
    observation = await bench.call("bash", command="echo begun; sleep 600", timeout_seconds=1)
    assert not observation.ok
    assert observation.text == "begun\nStopped after 1 s; the output until then is shown."
    assert await bench.text("bash echo still here") == "still here"


async def test_megabytes_of_output_are_cut_in_the_middle(make_bench):
    bench = await make_bench({})
    observation = await bench.use("bash echo first; head -c 3000000 /dev/zero | tr '\\0' x; echo; echo last")
    assert observation.text.startswith("first")
    *_, last, advice = observation.text.splitlines()
    assert last == "last"
    assert advice.startswith(f"{observation.truncated_bytes} bytes cut; write the output to a file and show parts")
    assert 8000 < len(observation.text.encode()) <= 8 * 1024 + 200
    assert observation.truncated_bytes > 2_900_000


@pytest.mark.parametrize("tool", ["bash", "eval"])
async def test_the_size_of_an_output_is_an_option(make_bench, tool):
    settings = ToolSettings(entrypoint="seq 100000")
    for size in (2048, 40_000):
        bench = await make_bench({}, tools=[ToolSpec(name=tool, options={"outputBytes": size})], settings=settings)
        text = await bench.text(tool if tool == "eval" else "bash seq 100000")
        assert size - 10 <= len(text.encode()) <= size + 200
        assert text.startswith("1\n2\n3\n")
        assert "\n99999\n100000\n" in text
        assert "bytes cut; " in text


TESTS = """\
import pytest

def test_good():
    assert 1 + 1 == 2

def test_bad():
    assert 1 + 1 == 3

@pytest.mark.skip
def test_skipped():
    pass
"""


async def test_eval_runs_the_tests_and_counts_them(make_bench, both_kinds):
    bench = await make_bench({"test_it.py": TESTS})
    observation = await bench.use("eval")
    assert "assert (1 + 1) == 3" in observation.text
    assert observation.text.endswith("Tests: 1 passed, 1 failed, 1 skipped. Exit status 1.")
    assert observation.exit_status == 1
    assert observation.score == Score(score=1, max_score=2)
    await bench.use("rewrite test_it.py 7 <c>    assert 1 + 2 == 3</c>")
    assert (await bench.use("eval")).score == Score(score=2, max_score=2)


async def test_eval_counts_the_named_tests(make_bench):
    settings = ToolSettings(scored_tests=("test_it.py::test_good",))
    bench = await make_bench({"test_it.py": TESTS}, settings=settings)
    assert (await bench.use("eval")).score == Score(score=1, max_score=1)


async def test_eval_scores_a_script_by_its_exit_status(make_bench):
    settings = ToolSettings(entrypoint="python main.py")
    bench = await make_bench({"main.py": "print('ran')\nraise SystemExit(2)\n"}, settings=settings)
    observation = await bench.use("eval")
    assert observation.text == "ran\nExit status 2."
    assert observation.score == Score(score=0, max_score=1)


async def test_eval_that_runs_too_long_is_stopped(make_bench):
    settings = ToolSettings(entrypoint="python main.py", entrypoint_timeout_seconds=1)
    bench = await make_bench({"main.py": "import time\nprint('ran', flush=True)\ntime.sleep(600)\n"}, settings=settings)
    observation = await bench.use("eval")
    assert not observation.ok
    assert "Stopped after 1 s" in observation.text
    assert observation.score == Score(score=0, max_score=1)
