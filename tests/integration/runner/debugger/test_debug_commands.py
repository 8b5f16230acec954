"""Tests of the answer to each pdb command."""

import pytest

CALC = '''
"""Adds."""

class Calc:
    def add(self, a, b):
        """Documented."""
        total = a + b
        return total


def loop(count):
    total = 0
    for i in range(count):
        total += i

    # the end
    return total


async def later(x):
    return x
'''.lstrip("\n")

MAIN = """
    import sys
    import calc
    print("hello (Pdb) ")
    calculator = calc.Calc()
    x = calculator.add(1, 2)
    y = calc.loop(5)
    print(x, y)
    """.lstrip("\n")


@pytest.fixture
def session(debug):
    debug.write("calc.py", CALC)
    debug.write("main.py", MAIN)
    return debug


async def test_the_program_stops_at_its_first_line_and_the_position_is_reported(session):
    result = await session("p 1 + 1")

    assert result.state == "stopped"
    assert (result.frame.file, result.frame.line, result.frame.function) == ("main.py", 1, "<module>")
    assert result.output == "2\n"
    assert result.source[0] == "import sys"
    assert result.source_start == 1
    assert result.program_output == ""


async def test_a_breakpoint_is_put_where_code_runs_also_in_files_not_imported_yet(session):
    for number, (command, file, line) in enumerate(
        [
            ("b calc.py:11", "calc.py", 11),
            ("b calc:11", "calc.py", 11),
            (f"b {session.workspace}/calc.py:11", "calc.py", 11),
            ("b 5", "main.py", 5),
            ("b calc.loop", "calc.py", 11),
            ("b calc.Calc.add", "calc.py", 6),
            ("b calc.py:loop", "calc.py", 11),
            ("b calc.py:Calc.add", "calc.py", 6),
            ("b calc.later", "calc.py", 20),
            ("tbreak calc.loop", "calc.py", 11),
        ],
        1,
    ):
        result = await session(command)
        (point,) = result.breakpoints
        assert (point.number, point.file, point.line) == (number, file, line)
        assert result.output == f"Breakpoint {number} at {file}:{line}\n"
        assert point.temporary is command.startswith("tbreak")
        await session(f"cl {number}")


async def test_a_breakpoint_in_an_imported_function_by_its_name_there(session):
    session.write("main.py", "from calc import loop\nloop(2)\n")
    result = await session.each("n", "b loop")
    assert (result.breakpoints[0].file, result.breakpoints[0].line) == ("calc.py", 11)


async def test_invalid_positions_get_the_messages_of_pdb(session):
    for command, expected in [
        ("b calc.py:14", "Blank or comment"),
        ("b calc.py:15", "Blank or comment"),
        ("b calc.py:999", "End of file"),
        ("b nowhere.py:3", "'nowhere.py' not found from sys.path"),
        ("b no_such_function", "is not a function"),
        ("b calc.py:zero", "Bad lineno"),
        ("cl 7", "Breakpoint number 7 out of range"),
        ("condition 7 x", "Breakpoint number 7 out of range"),
    ]:
        result = await session(command)
        assert expected in result.output, command
        assert result.breakpoints == ()
        assert result.state == "stopped"


async def test_continue_stops_at_breakpoints_and_shows_the_program_output(session):
    result = await session.each("b calc.loop", "c")

    assert result.output == "> calc.py(11)loop()\n-> total = 0\n"
    assert result.program_output == "hello (Pdb) \n"
    assert result.frame.function == "loop"
    assert result.breakpoints[0].hits == 1


async def test_conditions_ignore_counts_enabled_and_temporary_are_in_the_table(session):
    await session.each("b calc.py:13, i == 3", "b calc.py:16", "ignore 1 2", "disable 2")
    result = await session("tbreak main.py:6")

    first, second, third = result.breakpoints
    assert (first.condition, first.ignore_count, first.enabled) == ("i == 3", 2, True)
    assert second.enabled is False
    assert third.temporary is True
    listed = await session("b")
    assert "1   breakpoint   keep yes   at calc.py:13\n\tstop only if i == 3\n\tignore next 2 hits" in listed.output
    assert "2   breakpoint   keep no    at calc.py:16" in listed.output
    assert "3   breakpoint   del  yes   at main.py:6" in listed.output

    result = await session("c")
    assert "Deleted breakpoint 3 at main.py:6" in result.output
    assert [point.number for point in result.breakpoints] == [1, 2]
    result = await session.each("condition 1", "ignore 1", "enable 2", "c")
    assert result.frame.line == 13
    assert result.breakpoints[0].condition is None
    assert result.breakpoints[0].ignore_count == 0


async def test_a_condition_sees_locals_inside_comprehensions(session):
    result = await session.each("b calc.py:13, all(i + total > 3 for _ in [0])", "c", "p i")
    assert result.output == "3\n"


async def test_a_condition_that_raises_stops_the_program_with_a_message(session):
    result = await session.each("b calc.py:13, missing > 1", "c")
    assert result.frame.line == 13
    assert "condition of breakpoint 1 failed: NameError" in result.output


async def test_stepping(session):
    await session.each("b 5", "c")
    assert (await session("s")).output.startswith("--Call--\n> calc.py(4)add()")
    assert (await session("s")).frame.line == 6
    assert (await session("n")).frame.line == 7
    assert (await session("r")).output == "--Return--\n> calc.py(7)add()->3\n-> return total\n"
    assert (await session("n")).frame.file == "main.py"
    assert (await session("n")).frame.line == 7


async def test_until_leaves_a_loop(session):
    await session.each("b calc.py:13", "c", "cl 1")
    assert (await session("unt")).frame.line == 16
    session.write("other.py", "")
    result = await session.each("run", "unt 5")
    assert (result.frame.file, result.frame.line) == ("main.py", 5)


async def test_jump(session):
    result = await session("j 7")
    assert result.frame.line == 7
    assert "Jump failed" in (await session("j 100")).output


async def test_looking_up_and_down_the_stack(session):
    await session.each("b calc.loop", "c")
    where = await session("w")
    assert where.output == "  main.py(6)<module>()\n-> y = calc.loop(5)\n> calc.py(11)loop()\n-> total = 0\n"
    up = await session("u")
    assert (up.frame.file, up.frame.line) == ("main.py", 6)
    assert (await session("p x")).output == "3\n"
    assert "Oldest frame" in (await session("u")).output
    down = await session("d")
    assert down.frame.function == "loop"
    assert "Newest frame" in (await session("d")).output


async def test_listing(session):
    await session.each("b calc.loop", "c")
    assert " 11 B->\t    total = 0\n" in (await session("l")).output
    assert "  1  \timport sys\n" in (await session.each("u", "l 1, 3")).output
    result = await session.each("d", "ll")
    assert result.output.splitlines()[0] == " 10  \tdef loop(count):"
    assert (await session("a")).output == "count = 5\n"


async def test_values(session):
    await session.each("b calc.py:7", "c")
    assert (await session("p a, b")).output == "(1, 2)\n"
    assert (await session("p [total + n for n in range(2)]")).output == "[3, 4]\n"
    assert (await session("p (lambda: a + total)()")).output == "4\n"
    assert (await session("pp {'a': a}")).output == "{'a': 1}\n"
    assert (await session("whatis a")).output == "<class 'int'>\n"
    assert (await session("p missing")).output == "*** NameError: name 'missing' is not defined\n"
    assert (await session("p 1 +")).output.startswith("*** SyntaxError")
    assert (await session("a + 10")).output == "11\n"
    assert (await session("p(a)")).output == "1\n"


async def test_assignments_stay_in_every_frame(session):
    await session.each("b calc.py:7", "c", "!total = 50")
    assert "calc.py(7)add()" in (await session("w")).output
    assert (await session("p total")).output == "50\n"
    result = await session.each("n", "n", "n", "c")
    assert result.program_output.splitlines()[-1] == "50 10"


async def test_an_assignment_to_a_caller_stays(session):
    session.write(
        "main.py", "def inner():\n    return 1\ndef outer():\n    x = 1\n    inner()\n    print(x)\nouter()\n"
    )
    result = await session.each("b inner", "c", "u", "!x = 42", "w", "c")
    assert result.program_output == "42\n"


async def test_statements_of_several_lines(session):
    result = await session("for i in range(2):\n    if i:\n        print('one')\n    else:\n        print('none')\np 5")
    assert result.output == "none\none\n5\n"
    result = await session("def double(n):\n    return 2 * n\n\nprint(double(4))")
    assert result.output == "8\n"
    assert (await session("values = [1,\n  2,\n]\np values")).output == "[1, 2]\n"
    assert (await session("p (1 +\n   2)")).output == "3\n"


async def test_python_that_begins_like_a_command_is_python(session):
    await session("!s, n, b = [], 1, {}")
    for statement in ["c = 3", "s.append(1)", "n += 1", "list((1, 2))", "b['k'] = 1", "n + 1", "c if n else b"]:
        result = await session(statement)
        assert "***" not in result.output, statement
        assert result.frame.line == 1
    assert (await session("p c, s, n, b")).output == "(3, [1], 2, {'k': 1})\n"


async def test_several_commands_in_one_call(session):
    result = await session("b calc.loop ;; c ;; p count")
    assert "5" in result.output.splitlines()
    result = await session("n\nn\np 'i', i")
    assert "('i', 0)" in result.output.splitlines()


async def test_display_shows_a_value_when_it_changes(session):
    await session.each("b calc.py:13", "c", "display total")
    result = await session.each("c", "c")
    assert "display total: 1  [old: 0]" in result.output
    assert "not kept over the restart: the display expressions" in (await session("run")).notices[0].lower()


async def test_commands_run_at_their_breakpoint(session):
    await session("b calc.py:13")
    await session("commands 1\nsilent\np 'i is', i\nc\nend")
    result = await session("c")
    assert "('i is', 4)" in result.output
    assert result.state == "ended"


async def test_refused_commands_return_the_reason(session):
    await session("n")
    for command, expected in [
        ("interact", "interact needs a terminal"),
        ("debug loop(3)", "not supported"),
        ("source calc", "not supported"),
        ("p 1 ;; interact", "interact needs a terminal"),
        ("", "Empty input"),
        ("  \n ", "Empty input"),
        ("commands 1\np x", "'end'"),
        ("commands", "'end'"),
        ("run --fast", "no arguments"),
    ]:
        result = await session(command)
        assert result.refused, command
        assert expected in result.output
    assert (await session("p 1")).frame.line == 2


async def test_clear_without_an_argument_clears_all(session):
    await session.each("b 3", "b 4", "b calc.py:11")
    result = await session("cl calc.py:11")
    assert result.output == "Deleted breakpoint 3 at calc.py:11\n"
    result = await session("cl")
    assert result.breakpoints == ()
    assert result.output.count("Deleted") == 2
    assert (await session("b 5")).breakpoints[0].number == 4


async def test_quit_and_run(session):
    await session.each("b calc.loop", "c")
    left = await session("q")
    assert left.state == "idle"
    assert len(left.breakpoints) == 1
    again = await session("run")
    assert (again.state, again.frame.line) == ("stopped", 1)
    result = await session("c")
    assert result.frame.function == "loop"
    assert (await session("p 1 ;; q")).state == "idle"
    assert (await session("restart")).frame.line == 1
    assert (await session("n ;; run")).frame.line == 1


async def test_a_large_answer_keeps_its_beginning_and_its_end(session):
    result = await session("pp ['a' + 'x' * 3000000 + 'z']", output_limit=1000)
    assert result.truncated_bytes > 2900000
    assert len(result.output) < 1200
    assert result.output.startswith("['axx")
    assert result.output.rstrip().endswith("xz']")


async def test_a_repr_that_raises_is_an_answer(session):
    await session("class Bad:\n    def __repr__(self): raise ValueError('no repr')\nbad = Bad()")
    assert "ValueError: no repr" in (await session("p bad")).output
    assert "ValueError: no repr" in (await session("bad")).output
    assert (await session("p 1")).output == "1\n"


LOCALS = """
def inner(n):
    total = n
    part = 1
    return total, part
def outer():
    x = 1
    y = 2
    result = inner(5)
    return result, x, y
print(outer())
""".lstrip("\n")


async def test_every_statement_at_a_stop_reaches_the_variables(debug):
    debug.write("main.py", LOCALS)
    await debug.each("b 4", "c", "!print(1)", "!total = 76", "!total = 77", "!part = total", "!part += 1", "!None")
    assert (await debug("p total, part")).output == "(77, 78)\n"
    await debug.each("u", "!print(1)", "!x = 10", "!x += 1", "d", "!part += 1", "u", "!y = x", "!y += 1", "!None")
    assert (await debug("p x, y")).output == "(11, 12)\n"
    assert (await debug("c")).program_output == "((77, 79), 11, 12)\n"


async def test_a_statement_that_is_the_last_before_a_step_reaches_the_variables(debug):
    debug.write("main.py", LOCALS)
    await debug.each("b 3", "c", "!print(1)", "!total = 7", "n", "!total += 1", "w", "!total += 1", "n", "n", "n")
    assert (await debug("c")).program_output == "((9, 1), 1, 2)\n"


async def test_a_variable_is_deleted_where_the_interpreter_allows_it(debug):
    debug.write("main.py", LOCALS)
    deleted = (await debug.each("b 4", "c", "!print(1)", "!del part")).output
    value = (await debug.each("!total = 2", "p part")).output
    assert "***" in deleted or "name 'part' is not defined" in value


AWAITS = """
import asyncio
async def fetch(n):
    await asyncio.sleep(0.001)
    return n * 2
async def collect(queue, seen):
    while True:
        seen.append(await queue.get())
async def main():
    queue, seen = asyncio.Queue(), []
    collecting = asyncio.ensure_future(collect(queue, seen))
    others = [asyncio.ensure_future(fetch(n)) for n in range(5)]
    value = 4
    print("on", value, await asyncio.gather(*others), seen)
    collecting.cancel()
asyncio.get_event_loop_policy().new_event_loop().run_until_complete(main())
x = 1
"""


async def test_await(debug, python):
    if "/3.6" in python or "/3.7" in python:
        pytest.skip("compile() takes await outside of a coroutine from Python 3.8 on")
    debug.write("main.py", AWAITS)
    await debug.each("b 14", "b 17", "c")
    assert (await debug("p await fetch(value)")).output == "8\n"
    assert (await debug("await fetch(3)")).output == "6\n"
    assert not (await debug("value = await fetch(value) + 1")).failed
    assert (await debug("[n async for n in nothing]")).failed
    assert not (await debug("!await queue.put(7)")).failed
    assert (await debug("p await asyncio.gather(*[fetch(n) for n in (value, 2)])")).output == "[18, 4]\n"
    result = await debug("p await fetch('x') + 1")
    assert (result.failed, result.output) == (True, '*** TypeError: can only concatenate str (not "int") to str\n')
    result = await debug("c")
    assert (result.frame.line, result.program_output) == (17, "on 9 [0, 2, 4, 6, 8] [7]\n")
    assert (await debug("p await fetch(5)")).output == "10\n"
    assert (await debug("c")).exit_status == 0


async def test_a_command_that_awaits_is_interrupted(debug, python):
    if "/3.6" in python or "/3.7" in python:
        pytest.skip("compile() takes await outside of a coroutine from Python 3.8 on")
    debug.write("main.py", AWAITS)
    await debug.each("b 14", "c")
    result = await debug("p await asyncio.sleep(100)", timeout=0.1)
    assert (result.interrupted, result.output) == (True, "*** KeyboardInterrupt\n")
    result = await debug("c")
    assert (result.exit_status, result.program_output) == (0, "on 4 [0, 2, 4, 6, 8] []\n")
