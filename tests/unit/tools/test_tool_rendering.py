import io
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dgym.sandbox import DebugResult, EntrypointResult, Mode, RunResult, TestReport
from dgym.session.scoring._score import ExpectedTests, score_run
from dgym.tools._context import numbered, plural
from dgym.tools.bash import describe_end
from dgym.tools.eval import score, summary
from dgym.tools.grep import _read
from dgym.tools.pdb import render
from dgym.tools.search_script import search
from dgym.wire import Breakpoint, Frame, Score


def test_a_stop_shows_answer_output_place_source_and_notices():
    result = DebugResult(
        state="stopped",
        output="10\n",
        program_output="hello\n",
        frame=Frame(file="calc.py", line=12, function="add"),
        source=("def add(a, b):", "    total = a", "    return total"),
        source_start=10,
        breakpoints=(
            Breakpoint(number=1, file="calc.py", line=11),
            Breakpoint(number=2, file="other.py", line=12),
        ),
        notices=("Restarted because calc.py changed.",),
    )
    assert render(result, 60).splitlines() == [
        "10",
        "",
        "Program output:",
        "hello",
        "",
        "At calc.py:12 in add:",
        "     10  def add(a, b):",
        "   B 11      total = a",
        "->   12      return total",
        "",
        "Restarted because calc.py changed.",
    ]
    assert render(result, 60, source=False).splitlines()[5] == "At calc.py:12 in add"


@pytest.mark.parametrize(
    ("result", "fragment"),
    [
        (DebugResult(state="ended", exit_status=0), "The program ended with exit status 0. The next command"),
        (DebugResult(state="ended", exit_status=-11), "The program was killed by SIGSEGV. The next command"),
        (DebugResult(state="killed", exit_status=-9), "The program was killed by SIGKILL. The next command"),
        (DebugResult(state="killed"), "The program was killed. The next command"),
        (DebugResult(state="idle"), "No program runs. The next command"),
    ],
)
def test_the_text_of_an_end_has_its_cause_and_the_next_command(result, fragment):
    assert render(result, 60).startswith(fragment)


def test_the_text_of_an_interruption_has_its_timeout():
    place = Frame(file="a.py", line=1, function="<module>")
    text = render(DebugResult(state="stopped", frame=place, interrupted=True), 2.5)
    assert text == "Interrupted: the command ran longer than 2.5 s.\n\nAt a.py:1 in <module>"


def test_a_refusal_is_only_the_reason():
    assert render(DebugResult(state="idle", output="interact is not supported", refused=True), 1) == (
        "interact is not supported"
    )


@settings(deadline=None)
@given(st.lists(st.text(alphabet="abc \t", max_size=5)), st.integers(1, 2000))
def test_numbered_lines_keep_their_order_and_numbers(lines, first):
    rendered = numbered(lines, first, breakpoints={first})
    assert len(rendered) == len(lines)
    assert [int(line[1:].split()[0]) for line in rendered] == list(range(first, first + len(lines)))
    assert [line.startswith("B") for line in rendered] == [index == 0 for index in range(len(lines))]


def test_plurals():
    assert [plural(1, "match"), plural(2, "match"), plural(0, "line"), plural(3, "entry")] == [
        "1 match",
        "2 matches",
        "0 lines",
        "3 entries",
    ]


def ran(**fields: Any) -> RunResult:
    return RunResult(**({"exit_status": 0, "ended_by": "exit", "output": b""} | fields))


@pytest.mark.parametrize(
    ("run", "fragment"),
    [
        (ran(), ""),
        (ran(exit_status=3), "Exit status 3."),
        (ran(exit_status=-15), "Killed by SIGTERM."),
        (ran(exit_status=-200), "Killed by signal 200."),
        (ran(exit_status=None), "could not be started"),
        (ran(exit_status=-9, ended_by="timeout"), "Stopped after 30 s"),
        (ran(exit_status=-9, ended_by="memory"), "more memory"),
    ],
)
def test_how_a_command_ended(run, fragment):
    assert fragment in describe_end(run, 30)
    assert bool(fragment) == bool(describe_end(run, 30))


def evaluated(run: RunResult | None = None, **report: Any) -> EntrypointResult:
    fields = {"form": "pytest", "sessions": 1, "finished": True, "exit_status": 0} | report
    return EntrypointResult(run=run or ran(), report=TestReport(**fields) if report else None)


MIXED = {"t::a": "passed", "t::b": "failed", "t::c": "skipped", "t::d": "xfailed"}


def test_eval_counts_tests_that_were_not_skipped():
    result = evaluated(ran(exit_status=1), exit_status=1, collected=[*MIXED, "t::e"], outcomes=MIXED)
    assert summary(result) == "Tests: 1 passed, 1 failed, 1 skipped, 1 xfailed, 1 not finished. "
    assert score(result, Mode.WHOLE_SUITE) == Score(score=2, max_score=4)


def test_eval_counts_named_tests_where_the_task_names_them():
    result = evaluated(collected=list(MIXED), outcomes=MIXED)
    assert score(result, Mode.NAMED_TESTS, ("t::a", "t::b", "t::missing")) == Score(score=1, max_score=3)
    assert score(evaluated(), Mode.NAMED_TESTS, ("t::a",)) == Score(score=0, max_score=1)


def test_a_file_that_cannot_be_collected_counts_as_failed():
    fields = {"collected": ["t::a"], "outcomes": {"t::a": "passed"}, "collection_errors": ["u.py"], "exit_status": 2}
    result = evaluated(ran(exit_status=2), **fields)
    assert summary(result) == "Tests: 1 passed, 1 file could not be collected. "
    assert score(result, Mode.WHOLE_SUITE) == Score(score=1, max_score=2)


def test_without_tests_the_exit_status_of_a_completed_run_decides():
    assert score(evaluated(form="python"), Mode.EXIT_STATUS) == Score(score=1, max_score=1)
    assert score(evaluated(ran(exit_status=1), form="python", exit_status=1), Mode.EXIT_STATUS) == Score(
        score=0, max_score=1
    )
    assert score(evaluated(form="python", exit_status=1), Mode.EXIT_STATUS) == Score(score=0, max_score=1)
    assert score(evaluated(), Mode.EXIT_STATUS) == Score(score=0, max_score=1)
    assert summary(evaluated(form="python")) == ""


OUTCOMES = st.dictionaries(
    st.sampled_from(["t::a", "t::b", "t::c", "t::d"]), st.sampled_from(["passed", "failed", "error", "xpassed"])
)


def score_of_run(mode, run, expected):
    scored = score_run(mode, run, expected, 60)
    return Score(score=scored.score, max_score=scored.max_score)


@given(OUTCOMES, st.booleans(), st.booleans(), st.sampled_from(["pytest", "shell"]))
def test_eval_and_scoring_give_the_same_score_for_a_run(outcomes, finished, tampering, form):
    tests = ("t::a", "t::b", "t::c")
    result = evaluated(
        form=form,
        collected=["t::a", "t::b", "t::c", "t::d"],
        outcomes=outcomes,
        finished=finished,
        tampering=["a line without the token"] if tampering else [],
    )
    for named, mode in ((tests, Mode.NAMED_TESTS), ((), Mode.WHOLE_SUITE)):
        expected = ExpectedTests(outcomes=dict.fromkeys(named or result.report.collected, ""))
        assert score(result, mode, named) == score_of_run(mode, result, expected)


def test_eval_and_scoring_count_expected_failures_alike():
    result = evaluated(collected=["t::a", "t::b"], outcomes={"t::a": "xfailed", "t::b": "xpassed"})
    expected = ExpectedTests(outcomes={"t::a": "xfailed", "t::b": "xfailed"})
    assert score(result, Mode.WHOLE_SUITE) == score_of_run(Mode.WHOLE_SUITE, result, expected)
    assert score(result, Mode.WHOLE_SUITE) == Score(score=2, max_score=2)
    named = ExpectedTests(outcomes=dict.fromkeys(expected.outcomes, ""))
    scored = score_of_run(Mode.NAMED_TESTS, result, named)
    assert score(result, Mode.NAMED_TESTS, ("t::a", "t::b")) == scored == Score(score=1, max_score=2)


def find(pattern: str, *paths: Any, most: int = 10) -> tuple[list[Any], dict[str, Any]]:
    report = io.StringIO()
    end = search(pattern, [str(path) for path in paths], most, report)
    return [json.loads(line)[1:] for line in report.getvalue().splitlines()], end


def test_the_search_reports_lines_and_skips_what_is_not_text(tmp_path):
    text, binary = tmp_path / "a.py", tmp_path / "b.bin"
    text.write_bytes(b"one\r\ntwo\rthree \xff\n")
    binary.write_bytes(b"one\0two")
    (tmp_path / "link").symlink_to(text)
    assert find("o|ee", text, binary, tmp_path / "link", tmp_path / "missing") == (
        [[1, "one"], [2, "two"], [3, "three \ufffd"]],
        {"skipped": 3},
    )
    assert find("$", text)[0] == [[1, "one"], [2, "two"], [3, "three \ufffd"]]


def test_the_search_is_bounded(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("x" * 5000 + "\n" + "x\n" * 20)
    matches, end = find("x", file, most=3)
    assert [number for number, _ in matches] == [1, 2, 3]
    assert len(matches[0][1]) < 400
    assert end["more"] is True


@pytest.mark.parametrize("pattern", ["(", "[a", "*", "(?P<1>x)", "a{99999999999999999999}"])
def test_a_bad_pattern_is_an_answer(pattern, tmp_path):
    assert find(pattern, tmp_path)[1]["error"]


@settings(deadline=None)
@given(st.binary())
def test_any_report_of_a_search_can_be_read(report):
    matches, _ = _read(report, 5)
    assert len(matches) <= 5


def test_escape_sequences_of_the_program_are_left_out():
    title = "\x1b]0;title\x07"
    result = DebugResult(state="idle", output="\x1b[1mbold\x1b[0m", program_output=f"\x1b[31mred\x1b[0m\n{title}")
    assert render(result, 60).startswith("bold\n\nProgram output:\nred\n\n")
