"""Tests of the answers to debugger commands: failures, places, listings, sizes, and texts where pdb prints nothing."""

import re
import subprocess

import msgspec
import pytest

CALC = '''\
"""Adds."""

class Calc:
    def add(self, a, b):
        """Documented.

        More of it.
        """
        total = a + b
        return total


def wrap(function):
    return function


@wrap
def loop(
    count,
    step=1,
):
    """Documented."""
    total = 0
    for i in range(count):
        total += (
            i
        )
    else:
        count = 0
    # the end
    return total


def short(): return 1
'''

MAIN = """\
import calc

def down(n):
    return n if n == 0 else down(n - 1)

def even(n):
    return n == 0 or odd(n - 1)

def odd(n):
    return n != 0 and even(n - 1)

big = list(range(5000))
calc.loop(3)
calc.short()
down(400)
even(400)
calc.loop(2)
"""


@pytest.fixture
def session(debug):
    debug.write("calc.py", CALC)
    debug.write("main.py", MAIN)
    return debug


# Commands that fail


REFUSED = [
    "p nowhere",
    "pp nowhere",
    "whatis nowhere",
    "!raise KeyError(1)",
    "b nowhere.py:3",
    "b calc.py:9999",
    "b calc.py:2",
    "b no_such_function",
    "tbreak calc.py:2",
    "cl 7",
    "condition 7 x",
    "ignore 7 1",
    "enable 7",
    "commands 7\np 1\nend",
    "u",
    "j 9999",
    "l 9999",
    "h nothing",
    "unt 0",
    "undisplay x",
    "p 1 ;; p nowhere ;; p 2",
]
CARRIED_OUT = ["p 1", "b", "b 12", "!x = 1", "n", "w", "l", "l 1, 5", "h p", "a", "alias", "c"]


async def test_a_command_that_pdb_refuses_has_failed(session):
    failed = [(await session(command)).failed and not (await session("p 1")).failed for command in REFUSED]
    assert dict(zip(REFUSED, failed, strict=True)) == dict.fromkeys(REFUSED, True)


async def test_an_executed_command_has_not_failed(session):
    assert [command for command in CARRIED_OUT if (await session(command)).failed] == []


async def test_a_condition_that_fails_is_not_a_failed_command(session):
    result = await session.each("b calc.py:23, nowhere", "c")
    assert "the condition of breakpoint 1 failed" in result.output
    assert not result.failed


# Blocks of commands


async def test_the_body_of_a_refused_block_is_not_executed(session):
    for block in ("commands 9", "commands", "commands x"):
        result = await session(f"{block}\n!done = 1\nq\nend\np 'after'")
        assert result.output.splitlines()[0].startswith("*** cannot set commands: "), block
        assert result.output.splitlines()[1:] == ["'after'"], block
        assert result.state == "stopped", block
        assert "NameError" in (await session("p done")).output, block


async def test_a_block_that_resumes_the_program_ends_at_its_end(session):
    await session("b calc.py:24")
    result = await session("commands\np i\nc\nend\np 'after'")
    assert (result.output, result.failed) == ("'after'\n", False)
    result = await session.each("b main.py:14", "c")
    assert re.findall(r"^\d$", result.output, re.MULTILINE) == ["0", "1", "2"]


# Breakpoints on lines where they do not stop as expected


NOTES = [
    (7, "No code begins on line 7, so it stops nowhere. To stop in Calc.add: b calc.py:9"),
    (4, "Line 4 belongs to the definition of Calc.add: the program stops there when it is defined, not when it is"),
    (4, "To stop in Calc.add: b calc.py:9"),
    (17, "Line 17 belongs to the definition of loop: the program stops there when it is defined"),
    (17, "To stop in loop: b calc.py:23"),
    (19, "No code begins on line 19, so it stops nowhere. To stop in loop: b calc.py:23"),
    (28, "No code begins on line 28, so it stops nowhere. The next line with code: b calc.py:29"),
    (3, "Line 3 belongs to the definition of Calc: the program stops there when it is defined."),
    (34, "Line 34 has the whole of short: the program stops there when it is defined, too."),
    (30, "Blank or comment\nThe next line with code: b calc.py:31"),
]


async def test_a_breakpoint_with_an_unexpected_stop_has_a_note(session):
    outputs = {line: (await session(f"b calc.py:{line}")).output for line in sorted({line for line, _ in NOTES})}
    assert [(line, words, outputs[line]) for line, words in NOTES if words not in outputs[line]] == []


async def test_a_breakpoint_on_code_needs_no_note(session):
    lines = [9, 10, 14, 23, 24, 25, 29, 31]
    outputs = [(await session(f"b calc.py:{line}")).output for line in lines]
    assert outputs == [f"Breakpoint {number} at calc.py:{line}\n" for number, line in enumerate(lines, 1)]


async def test_the_note_is_right(session):
    """The program stops on the line in the note, and stops on the line of a definition before the first call."""
    session.write("main.py", "import calc\ncalc.Calc().add(1, 2)\n")
    result = await session.each("b calc.py:4", "c")
    assert (result.frame.line, result.frame.function) == (4, "Calc")
    result = await session.each("b calc.py:9", "c")
    assert (result.frame.line, result.frame.function) == (9, "add")


async def test_a_breakpoint_is_checked_again_when_the_program_starts_again(session):
    session.write("main.py", "import calc\ncalc.loop(2)\n")
    await session.each("b calc.py:9", "n")
    changed = CALC.replace("total = a + b\n", "total = (\n            a + b\n        )\n")
    session.write("calc.py", changed)
    result = await session("p 1", breakpoints=(msgspec.structs.replace(session.breakpoints[0], line=11),))
    notice = "No code begins on line 11, so it stops nowhere. The next line with code: b calc.py:12"
    assert f"Breakpoint 1 at calc.py:11: {notice}" in result.notices


# Answers are never empty


WORDS = [
    ("b", "No breakpoints are set."),
    ("cl", "No breakpoints are set."),
    ("tbreak", "No breakpoints are set."),
    ("alias", "No aliases are defined."),
    ("alias pn p n", "Done."),
    ("a", "The function has no arguments."),
    ("!x = 1", "The statement was executed; it printed nothing."),
    ("x = 1\ny = 2", "The statement was executed; it printed nothing."),
    ("None", "The statement was executed; it printed nothing."),
]


async def test_commands_without_output_of_pdb_get_a_message(session):
    outputs = [(await session(command)).output for command, _ in WORDS]
    assert outputs == [words + "\n" for _, words in WORDS]


async def test_help_lists_only_supported_commands_and_describes_each(session):
    text = (await session("h")).output
    assert "ndocumented" not in text
    listed = re.findall(r"^[a-z].*$", text, re.MULTILINE)
    words = {word for line in listed for word in line.split()} - {"exec"}
    assert {"b", "c", "p", "pp", "commands", "longlist"} <= words
    assert not words & {"interact", "debug", "source", "EOF", "pdb"}
    for word in sorted(words):
        described = await session(f"h {word}")
        assert not described.failed, word
    assert "not supported" in (await session("h debug")).output


# The listing


async def test_source_is_listed_when_the_place_has_changed(session):
    first = await session("p 1", listing=True)
    assert (first.output, first.source_start) == ("1\n", 1)
    again = await session("p 2", listing=True)
    assert (again.output, again.source, again.frame) == ("2\n", (), first.frame)
    moved = await session("n", listing=True)
    assert (moved.output, moved.frame.line, moved.source[2]) == ("", 3, "def down(n):")


async def test_source_is_listed_for_another_frame_on_the_same_line(session):
    await session.each("b main.py:4, n == 0", "b main.py:16")
    await session("c", listing=True)
    for command, listed in [("p n", False), ("u", True), ("p n", False), ("d", True), ("w", False)]:
        assert bool((await session(command, listing=True)).source) is listed, command


async def test_the_same_place_has_pdbs_own_lines(session):
    session.write("main.py", "for i in range(3):\n    print(i)\n")
    await session("b 2")
    result = await session("c", listing=True)
    assert (result.output, len(result.source)) == ("", 2)
    result = await session("c", listing=True)
    assert (result.output, result.source) == ("> main.py(2)<module>()\n-> print(i)\n", ())


async def test_a_return_value_is_shown_beside_the_listing(session):
    await session.each("b calc.py:23", "c")
    result = await session("r", listing=True)
    assert (result.output, result.source[5]) == ("--Return--\n> calc.py(31)loop()->3\n", "    return total")


# Sizes


async def test_a_long_repr_loses_its_middle_unless_asked_for(session, python):
    await session.each("b main.py:13", "c")
    whole = repr(list(range(5000)))
    for command in ("p big", "big", "p [big, {}]", "display big"):
        text = (await session(command)).output
        assert len(text) < 2200, command
        assert re.search(r"\[\.\.\. \d+ characters cut: pp shows more, a slice any part \.\.\.\]", text), command
    cut = int(re.search(r"\[\.\.\. (\d+) characters", (await session("p big")).output)[1])
    assert cut == len(whole) - 2000
    assert (await session("undisplay")).output == "Done.\n"
    assert (await session("p big[:300]")).output == f"{list(range(300))}\n"
    assert (await session("print(big)")).output == whole + "\n"
    expected = subprocess.run(
        [python, "-c", "import pprint; print(pprint.pformat(list(range(5000)), width=100, compact=True))"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert (await session("pp big")).output == expected.stdout


async def test_both_outputs_fit_into_the_limit(session):
    session.write("main.py", "print('x' * 100_000)\ny = 1\n")
    result = await session("n ;; pp ['y' * 100_000]", output_limit=8192)
    assert 8000 < len(result.output) + len(result.program_output) < 8192 + 100
    assert len(result.output) > 6000
    assert result.truncated_bytes > 190_000
    result = await session.each("run", "n")
    assert len(result.program_output) > 64_000


async def test_recursion_is_folded(session):
    result = await session.each("b main.py:4, n == 0", "c", "w")
    lines = result.output.splitlines()
    assert len(lines) < 12
    assert "  [... 399 frames repeat the same lines ...]" in lines
    assert lines[-2] == "> main.py(4)down()"
    result = await session("u ;; u ;; u ;; w")
    assert "> main.py(4)down()" in result.output
    assert len(result.output.splitlines()) < 24
    result = await session.each("cl", "b main.py:7, n == 0", "c", "w")
    lines = result.output.splitlines()
    assert len(lines) < 16
    assert "repeat the same lines ...]" in result.output
    assert lines[-2] == "> main.py(7)even()"


async def test_frames_of_an_import_are_folded(session):
    result = await session.each("b calc.py:13", "c", "w")
    assert re.fullmatch(
        r"  main.py\(1\)<module>\(\)\n-> import calc\n  \[... \d frames of the import system ...\]\n"
        r"> calc.py\(13\)<module>\(\)\n-> def wrap\(function\):\n",
        result.output,
    )
