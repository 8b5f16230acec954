"""Tests of breakpoints: they outlive the program, and a notice explains a breakpoint that is never hit."""

import msgspec

from dgym.wire import Breakpoint

MAIN = """
def work(n):
    doubled = 2 * n
    return doubled
total = 0
for i in range(5):
    total += work(i)
print(total)
""".lstrip("\n")


async def test_a_restart_keeps_numbers_conditions_counts_and_switches(debug):
    debug.write("main.py", MAIN)
    await debug.each("b 6", "b 2, n > 1", "b 3", "tbreak 7", "cl 1", "ignore 2 1", "disable 3")
    before = debug.breakpoints
    assert [point.number for point in before] == [2, 3, 4]

    result = await debug("run")

    assert result.breakpoints == before
    result = await debug("c")
    assert result.frame.line == 2
    assert (await debug("p n")).output == "3\n", "the ignore count is restored as it was set"
    assert result.breakpoints[0].hits == 4
    result = await debug("run")
    assert result.breakpoints[0].ignore_count == 1
    assert result.breakpoints[0].hits == 4, "hits add up over restarts"
    result = await debug.each("c", "b 4")
    assert result.breakpoints[0].hits == 8
    assert result.breakpoints[-1].number == 5, "numbers are never used twice"


async def test_numbers_of_cleared_breakpoints_are_not_reused(debug):
    debug.write("main.py", MAIN)
    await debug.each("b 2", "b 3", "cl 2", "q")
    assert (await debug("b 4")).breakpoints[-1].number == 3


async def test_a_temporary_breakpoint_that_was_hit_is_gone(debug):
    debug.write("main.py", MAIN)
    await debug.each("tbreak 2", "c", "run")
    assert debug.breakpoints == ()


async def test_the_table_of_the_session_counts_also_while_the_program_runs(debug):
    debug.write("main.py", MAIN)
    await debug.each("b 2", "b 3", "c")
    moved = (msgspec.structs.replace(debug.breakpoints[0], line=6), Breakpoint(number=9, file="main.py", line=7))
    result = await debug("c", breakpoints=moved)
    assert result.frame.line == 6
    assert [(point.number, point.line) for point in result.breakpoints] == [(1, 6), (9, 7)]
    assert (await debug("b 4")).breakpoints[-1].number == 10


async def test_a_breakpoint_whose_line_does_not_exist_any_more_is_dropped_and_named(debug):
    debug.write("main.py", "x = 1\n")
    result = await debug("p 1", breakpoints=(Breakpoint(number=4, file="main.py", line=40),))
    assert result.breakpoints == ()
    assert result.notices == ("Breakpoint 4 at main.py:40 was dropped: no such line.", "Debugging python main.py.")


async def test_a_change_of_a_loaded_file_restarts_the_program_with_a_notice(debug):
    debug.write("main.py", "import helper\nprint(helper.value)\nx = 1\n")
    debug.write("helper.py", "value = 'old'\n")
    await debug.each("b 3", "c")
    debug.write("helper.py", "value = 'new'\n")
    result = await debug("p helper.value")
    assert result.notices == ("The program was started again because helper.py changed.",)
    assert result.frame.line == 1
    assert (await debug("c")).program_output == "new\n"
    debug.write("unrelated.py", "x = 1\n")
    assert (await debug("p 1")).notices == ()


async def test_a_restart_that_was_asked_for_and_another_entrypoint(debug):
    debug.write("main.py", MAIN)
    debug.write("other.py", "y = 1\n")
    await debug.each("b 2", "c")
    result = await debug("p 1", restart=True)
    assert (result.frame.line, result.notices) == (1, ("The program was started again.",))
    result = await debug("p 1", entrypoint="python other.py")
    assert result.frame.file == "other.py"
    assert result.notices == ("The program was started again with another entrypoint.",)


async def test_a_notice_lists_the_state_that_a_restart_discards(debug):
    debug.write("main.py", MAIN)
    await debug.each("b 2", "c", "commands 1\np n\nend", "display n")
    result = await debug("run")
    assert result.notices == ("Not kept over the restart: the commands of breakpoint 1, the display expressions.",)


async def test_breakpoints_that_were_never_hit_are_explained(debug):
    debug.write(
        "main.py",
        """
        text = '''
        words
        '''
        def never():
            return text
        for n in range(3):
            total = n
        """,
    )
    debug.write("unused.py", "x = 1\n")
    await debug.each("b main.py:3", "b never", "b unused.py:1", "b 8, n > 10", "b 7", "disable 5", "b 8", "ignore 6 99")
    result = await debug("c")
    assert result.state == "ended"
    assert result.notices[0].startswith(
        "Breakpoint 1 at main.py:3 was never hit: no code begins on that line; the next"
    )
    assert result.notices[1:] == (
        "Breakpoint 2 at main.py:6 was never hit: the program never reached that line (or only in a child process).",
        "Breakpoint 3 at unused.py:1 was never hit: the program never imported that file.",
        "Breakpoint 4 at main.py:8 was reached 3 times but its condition n > 10 never held.",
        "Breakpoint 6 at main.py:8 was reached 3 times, all within its ignore count.",
    )


async def test_a_module_imported_from_elsewhere_is_named(debug, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "helper.py").write_text("x = 1\n")
    debug.write("helper.py", "x = 1\n")
    debug.write("main.py", f"import sys\nsys.path.insert(0, {str(tmp_path / 'elsewhere')!r})\nimport helper\n")
    result = await debug.each("b helper.py:1", "c")
    assert f"the program imported {tmp_path}/elsewhere/helper.py instead" in result.notices[0]


async def test_a_program_that_takes_the_trace_function_is_named(debug):
    debug.write("main.py", "import sys\nsys.settrace(None)\ndef f():\n    return 1\nf()\n")
    result = await debug.each("b f", "c")
    assert result.notices == (
        "Breakpoint 1 at main.py:4 was not hit: the program replaced the debugger's trace function (sys.settrace).",
    )


async def test_after_os_exit_breakpoints_that_were_not_hit_are_reported(debug):
    debug.write("main.py", "import os\nos._exit(0)\nx = 1\n")
    result = await debug.each("b 3", "c")
    assert result.notices == ("Breakpoint 1 at main.py:3 was not hit before the program's end.",)


async def test_files_reached_over_links_and_other_directories_are_the_same_files(debug):
    (debug.workspace / "real").mkdir()
    (debug.workspace / "link").symlink_to("real")
    debug.write("real/part.py", "def call():\n    return 1\n")
    debug.write(
        "main.py",
        "import os, sys\nos.chdir('/')\nsys.path.insert(0, sys.path[0] + '/link')\nimport part\npart.call()\n",
    )
    result = await debug.each("b link/part.py:2", "c")
    assert (result.frame.file, result.frame.line) == ("real/part.py", 2)


async def test_code_without_a_breakpoint_runs_at_nearly_full_speed(debug):
    debug.write(
        "main.py",
        """
        import time
        def fib(n):
            return n if n < 2 else fib(n - 1) + fib(n - 2)
        def other():
            return 0
        started = time.perf_counter()
        fib(18)
        plain = time.perf_counter() - started
        mark = 1
        started = time.perf_counter()
        fib(18)
        traced = time.perf_counter() - started
        mark = 2
        """,
    )
    await debug.each("tbreak 10", "c", "b other", "tbreak 14", "c")
    # Tracing of every line of the file costs a factor of 20 to 90. The bound is loose because timings vary.
    result = await debug("p traced / plain")
    assert float(result.output) < 60


async def test_two_breakpoints_on_one_line_are_both_hit(debug):
    debug.write("main.py", "for i in range(3):\n    x = i\n")
    await debug.each("b main.py:2", "b main.py:2, i == 1", "tbreak main.py:2")
    result = await debug("c")
    assert "Deleted breakpoint 3" in result.output
    assert [(point.number, point.hits) for point in result.breakpoints] == [(1, 1), (2, 1)]
    result = await debug.each("c", "c", "c")
    assert [(point.number, point.hits) for point in result.breakpoints] == [(1, 3), (2, 3)]
    assert not [notice for notice in result.notices if "never" in notice]


async def test_a_table_that_changes_while_the_program_runs_keeps_what_has_happened(debug):
    debug.write("main.py", MAIN)
    debug.write("unused.py", "x = 1\n")
    await debug.each("b 2, n == 0", "b 6", "ignore 2 3", "b unused.py:1", "c", "c")
    first, second, third = debug.breakpoints
    assert (second.line, second.hits) == (6, 4)
    debug.write("unused.py", "\nx = 1\n")
    await debug("cl 1", breakpoints=(first, second, msgspec.structs.replace(third, line=2)))
    debug.write("unused.py", "\n\nx = 1\n")
    (second, third) = debug.breakpoints
    result = await debug("c", breakpoints=(second, msgspec.structs.replace(third, line=3)))
    assert (result.state, result.frame.line) == ("stopped", 6), "the ignore count was used up in this run"
    result = await debug("c")
    assert result.notices == ("Breakpoint 3 at unused.py:3 was never hit: the program never imported that file.",)


async def test_a_change_of_a_file_that_runs_without_being_a_module_restarts(debug):
    debug.write("main.py", "import runpy\nrunpy.run_path('part.py')\n")
    debug.write("part.py", "def call():\n    return 1\nx = call()\ny = call()\n")
    await debug.each("b part.py:3", "b part.py:4", "c")
    (first, second) = debug.breakpoints
    debug.write("part.py", "\ndef call():\n    return 1\nx = call()\ny = call()\n")
    moved = tuple(msgspec.structs.replace(point, line=point.line + 1) for point in (first, second))
    result = await debug("c", breakpoints=moved)
    assert result.notices == ("The program was started again because part.py changed.",)
    assert (result.frame.line, result.source[4]) == (4, "y = call()")
