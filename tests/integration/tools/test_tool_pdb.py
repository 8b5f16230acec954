"""Tests of the tool pdb: stops, breakpoints that follow edits, and ends."""

import pytest

from dgym.tools import ToolSettings
from dgym.wire import Breakpoint

CALC = """\
def add(a, b):
    total = a
    total += b
    return total


def main():
    print("adding")
    result = add(1, 2)
    print(result)


main()
"""
SCRIPT = ToolSettings(entrypoint="python calc.py")


class Spec:
    def __init__(self, name, **options):
        self.name = name
        self.options = options


@pytest.fixture
async def bench(make_bench):
    return await make_bench({"calc.py": CALC}, settings=SCRIPT)


def lines(bench):
    return [(point.number, point.line) for point in bench.context.breakpoints]


async def test_a_session_stops_shows_the_place_and_ends(bench, both_kinds):
    observation = await bench.use("pdb b calc.py:3")
    assert "calc.py:3" in observation.text
    assert lines(bench) == [(1, 3)]
    observation = await bench.use("pdb c")
    assert "Program output:\nadding" in observation.text
    assert "At calc.py:3 in add:" in observation.text
    assert "->" in next(line for line in observation.text.splitlines() if "total += b" in line)
    assert (observation.frame.file, observation.frame.line, observation.frame.function) == ("calc.py", 3, "add")
    assert (await bench.text("pdb p (a, b)")).startswith("(1, 2)")
    await bench.use("pdb cl 1")
    observation = await bench.use("pdb c")
    assert "Program output:\n3" in observation.text
    assert "The program ended with exit status 0. The next command starts it again." in observation.text
    assert observation.exit_status == 0
    assert observation.breakpoints == ()


async def test_listing_commands_do_not_show_the_source_twice(bench):
    text = await bench.text("pdb ll")
    assert text.count("total += b") == 1


async def test_source_is_shown_where_the_place_has_changed_or_on_demand(bench):
    first = await bench.text("pdb b")
    assert first.startswith("No breakpoints are set.\n\nAt calc.py:1 in <module>:\n")
    assert await bench.text("pdb b calc.py:3") == "Breakpoint 1 at calc.py:3\n\nAt calc.py:1 in <module>"
    stopped = await bench.text("pdb c")
    assert stopped.count("total += b") == 1
    assert "> calc.py" not in stopped
    assert await bench.text("pdb p a") == "1\n\nAt calc.py:3 in add"
    assert (await bench.text("pdb l")).count("total += b") == 1
    assert await bench.text("pdb !a = 5") == ("The statement was executed; it printed nothing.\n\nAt calc.py:3 in add")
    assert (await bench.text("pdb u")).startswith("At calc.py:9 in main:\n")


async def test_a_command_that_pdb_refuses_is_not_ok(bench):
    for command in ("p nowhere", "b nowhere.py:1", "j 99", "l 99"):
        assert not (await bench.use(f"pdb {command}")).ok, command
    assert (await bench.use("pdb b 3")).ok
    assert lines(bench) == [(1, 3)]


async def test_a_long_answer_is_cut_and_explains_how_to_see_the_rest(make_bench):
    files = {"big.py": "print('x' * 50_000)\ny = ['y' * 50_000]\nz = 1\n"}
    settings = ToolSettings(entrypoint="python big.py")
    for tool, size in (("pdb", 8192), (Spec("pdb", outputBytes=2048), 2048)):
        bench = await make_bench(files, tools=[tool], settings=settings)
        await bench.use("pdb b 3")
        observation = await bench.use("pdb c ;; pp y")
        assert size - 100 < len(observation.text) < size + 600
        assert f"{observation.truncated_bytes} bytes cut; print parts of a value" in observation.text


async def test_breakpoints_follow_a_rewrite_and_those_replaced_are_dropped(bench):
    for line in (2, 3, 8):
        await bench.use(f"pdb b calc.py:{line}")
    observation = await bench.use("rewrite calc.py 2:3 <c>    # both at once\n    total = a + b</c>")
    assert "Breakpoint 1 at calc.py:2 was dropped: its line was replaced." in observation.text
    assert "Breakpoint 2 at calc.py:3 was dropped: its line was replaced." in observation.text
    assert lines(bench) == [(3, 8)]
    await bench.use("rewrite calc.py 1:0 <c># a\n# b</c>")
    assert lines(bench) == [(3, 10)]
    assert "B 10      print" in await bench.text("view calc.py")
    observation = await bench.use("pdb c")
    assert observation.frame.line == 10
    assert lines(bench) == [(3, 10)]


async def test_breakpoints_follow_edits_by_a_shell(bench, both_kinds):
    await bench.use("pdb b calc.py:3, total > 0")
    await bench.use("pdb b calc.py:9")
    observation = await bench.use("bash sed -i -e '1i import os' -e '9d' calc.py")
    assert "Breakpoint 2 at calc.py:9 was dropped: its line is gone." in observation.text
    assert lines(bench) == [(1, 4)]
    assert bench.context.breakpoints[0].condition == "total > 0"


async def test_breakpoints_follow_edits_by_the_program_itself(make_bench):
    source = "from pathlib import Path\nvalue = 1\n\nme = Path(__file__)\nme.write_text('# new\\n' + me.read_text())\n"
    bench = await make_bench({"self.py": source}, settings=ToolSettings(entrypoint="python self.py"))
    await bench.use("pdb tbreak self.py:5")
    await bench.use("pdb b self.py:2")
    await bench.use("pdb c")
    await bench.use("pdb c")
    await bench.use("pdb c")
    await bench.use("view self.py")
    (point,) = bench.context.breakpoints
    (line,) = [
        number
        for number, text in enumerate((await bench.sandbox.read_file("self.py")).splitlines(), 1)
        if text == b"value = 1"
    ]
    assert point.line == line > 2


async def test_breakpoints_taken_over_from_another_sandbox_follow_too(bench):
    bench.context.breakpoints = (Breakpoint(number=7, file="calc.py", line=3),)
    await bench.use("bash true")
    await bench.use("bash sed -i '1i import os' calc.py")
    assert lines(bench) == [(7, 4)]
    await bench.use("pdb c")
    assert (await bench.use("pdb b 10")).text.startswith("Breakpoint 8 ")


async def test_a_deleted_file_loses_its_breakpoints(bench):
    await bench.use("pdb b calc.py:3")
    assert "was dropped" in await bench.text("bash rm calc.py")
    assert bench.context.breakpoints == ()


async def test_an_entrypoint_given_once_stays(bench, sandbox):
    await sandbox.write_file("other.py", b"x = 'other'\nprint(x)\n")
    observation = await bench.call("pdb", command="n", entrypoint="python other.py")
    assert observation.frame.file == "other.py"
    assert (await bench.use("pdb p x")).text.startswith("'other'")
    assert (await bench.call("pdb", command="w", entrypoint="python calc.py")).frame.file == "calc.py"


async def test_the_tasks_own_debug_entrypoint_is_used(make_bench):
    settings = ToolSettings(entrypoint="false | true", debug_entrypoint="python calc.py")
    bench = await make_bench({"calc.py": CALC}, settings=settings)
    assert (await bench.use("pdb w")).frame.file == "calc.py"


@pytest.mark.parametrize("command", ["interact", "debug add(1, 2)"])
async def test_unsupported_commands_are_refused_by_name(bench, command):
    observation = await bench.use(f"pdb {command}")
    assert not observation.ok
    assert command.split()[0] in observation.text


async def test_an_entrypoint_that_cannot_be_debugged_is_refused_with_a_remedy(make_bench):
    bench = await make_bench({}, settings=ToolSettings(entrypoint="ls | wc -l"))
    observation = await bench.use("pdb n")
    assert not observation.ok
    assert "debugEntrypoint" in observation.text


async def test_a_loop_is_interrupted_and_debugging_continues(make_bench):
    settings = ToolSettings(entrypoint="python loop.py", pdb_timeout_seconds=1)
    bench = await make_bench({"loop.py": "n = 0\nwhile True:\n    n += 1\n"}, settings=settings)
    observation = await bench.use("pdb c")
    assert "Interrupted: the command ran longer than 1 s." in observation.text
    assert observation.frame.file == "loop.py"
    assert (await bench.use("pdb p n > 0")).text.startswith("True")


async def test_options_turn_off_persistence_and_the_listing(make_bench):
    spec = Spec("pdb", persistentBreakpoints=False, autoList=False)
    bench = await make_bench({"calc.py": CALC}, tools=[spec, "rewrite"], settings=SCRIPT)
    await bench.use("pdb b 3")
    text = await bench.text("pdb c")
    assert "At calc.py:3 in add" in text
    assert "return total" not in text
    assert "The breakpoints were cleared by the change." in await bench.text("rewrite calc.py 8 <c>    print('x')</c>")
    assert bench.context.breakpoints == ()
    await bench.use("pdb b 3")
    await bench.use("pdb c")
    assert "The breakpoints were cleared with the program's end." in await bench.text("pdb c")
    assert bench.context.breakpoints == ()


async def test_a_refused_entrypoint_changes_nothing(bench):
    await bench.use("pdb b calc.py:3")
    await bench.use("pdb c")
    refused = await bench.use({"tool": "pdb", "arguments": {"command": "p a", "entrypoint": "no-such-program"}})
    assert not refused.ok
    assert "no-such-program was not found on PATH" in refused.text
    text = await bench.text("pdb p a + 10")
    assert text.startswith("11")
    assert "started again" not in text


async def test_standard_input_of_the_program(bench):
    await bench.use("rewrite echo.py <c>import sys\nprint(sys.stdin.read().upper())</c>")
    arguments = {"command": "c", "entrypoint": "python echo.py", "stdin": "löwe\n"}
    assert "LÖWE" in (await bench.use({"tool": "pdb", "arguments": arguments})).text
    assert "LÖWE" in await bench.text("pdb c")
    await bench.use("pdb n")
    text = (await bench.use({"tool": "pdb", "arguments": {"command": "c", "stdin": "tiger"}})).text
    assert "The program was started again with another standard input." in text
    assert "TIGER" in text
    arguments = {"command": "c", "entrypoint": "python echo.py < calc.py"}
    assert "DEF ADD(A, B):" in (await bench.use({"tool": "pdb", "arguments": arguments})).text


async def test_the_time_of_a_command_is_an_option(make_bench):
    settings = ToolSettings(entrypoint="python loop.py")
    tools = [Spec("pdb", timeoutSeconds=1)]
    bench = await make_bench({"loop.py": "while True: pass\n"}, tools=tools, settings=settings)
    assert "Interrupted: the command ran longer than 1 s." in await bench.text("pdb c")


async def test_one_rule_quotes_paths_with_spaces(bench):
    await bench.use("rewrite 'two words.py' <c>first = 1\nsecond = 2</c>")
    assert "1  first = 1" in await bench.text("view 'two words.py'")
    assert "two words.py:2: second = 2" in await bench.text('grep second "two words.py"')
    for place in ("'two words.py':2", '"two words.py:2"', "two words.py:2", r"two\ words.py:2"):
        observation = await bench.use(f"pdb b {place}")
        assert [(point.file, point.line) for point in observation.breakpoints] == [("two words.py", 2)], place
        assert (await bench.use(f"pdb cl {place}")).breakpoints == ()
    assert "Quote a word that contains spaces, as in a shell" in await bench.text("listdir two words.py 1")
