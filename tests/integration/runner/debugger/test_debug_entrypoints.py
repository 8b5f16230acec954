"""Tests of entrypoints under the debugger: how the program is started, its environment, and steps through it."""

import asyncio
import os

import pytest


async def test_the_program_runs_with_the_same_state_as_without_the_debugger(debug):
    debug.write(
        "main.py",
        """
        import os, sys
        import code, cmd, token
        print(__name__, sys.modules['__main__'].__dict__ is globals(), sys.argv, os.path.basename(__file__))
        print(sys.path[0] == os.path.dirname(os.path.abspath(__file__)))
        print([n for n in sys.modules if n.startswith(('dgym', 'debug', 'pytest'))])
        print([n for n in os.environ if 'DEBUG' in n], code.mine, cmd.mine, token.mine)
        print(sys.gettrace() is not None, __spec__, __package__)
        """,
    )
    for name in ("code", "cmd", "token"):
        debug.write(f"{name}.py", f"mine = {name!r}\n")
    debug.entrypoint = "python main.py --flag 'two words'"
    await debug.each("b main.py:4", "c", "b main.py:8")
    result = await debug("c")
    assert result.frame.line == 8
    expected = "__main__ True ['main.py', '--flag', 'two words'] main.py\nTrue\n[]\n[] code cmd token\nTrue None None\n"
    assert result.program_output + (await debug("c")).program_output == expected


async def test_a_module(debug):
    debug.write("package/__init__.py", "loaded = True\n")
    debug.write("package/__main__.py", "import sys\nfrom . import part\nprint(part.value, __package__, sys.argv[1:])\n")
    debug.write("package/part.py", "value = 1\n")
    result = await debug("b package/part.py:1", entrypoint="python -m package one")
    assert (result.frame.file, result.frame.line) == ("package/__main__.py", 1)
    assert (await debug("c", entrypoint="python -m package one")).frame.file == "package/part.py"
    result = await debug("c", entrypoint="python -m package one")
    assert result.program_output == "1 package ['one']\n"
    result = await debug("n", entrypoint="python -m package.missing")
    assert (result.state, result.exit_status) == ("ended", 1)
    assert "No module named" in result.program_output


async def test_a_breakpoint_in_a_package_that_the_module_needs(debug):
    debug.entrypoint = "python -m package.tool"
    debug.write("package/__init__.py", "x = 1\nx = 2\n")
    debug.write("package/tool.py", "y = 1\n")
    await debug.each("b package/__init__.py:2", "q")
    assert (await debug("p x")).frame.file == "package/__init__.py"
    assert (await debug("c")).state == "ended"


async def test_environment_and_flags_of_the_entrypoint(debug):
    debug.write("main.py", "import os, sys\nprint(os.environ['MODE'], sys.flags.optimize, sys.warnoptions)\n")
    result = await debug("c", entrypoint="MODE='very fast' python -O -W error::UserWarning main.py")
    assert result.program_output == "very fast 1 ['error::UserWarning']\n"


async def test_an_entrypoint_that_is_not_a_python_program_is_refused_with_a_remedy(debug):
    for entrypoint in ["make test", "python -c 'print(1)'", "cd x && python main.py", "no-such-program", "python"]:
        result = await debug("n", entrypoint=entrypoint)
        assert result.refused
        assert "set debugEntrypoint" in result.output
        assert result.state == "idle"


async def test_generators_and_coroutines(debug):
    debug.write(
        "main.py",
        """
        import asyncio
        def numbers():
            yield 1
            yield 2
        async def main():
            await asyncio.sleep(0.01)
            total = 0
            for n in numbers():
                total += n
            return total
        loop = asyncio.new_event_loop()
        print(loop.run_until_complete(main()))
        loop.close()
        """,
    )
    await debug.each("b main.py:7", "c")
    assert (await debug("n")).frame.line == 8
    assert (await debug("n")).frame.line == 9
    assert (await debug("n")).frame.line == 10
    assert (await debug("n")).frame.line == 9
    assert (await debug("c")).program_output == "3\n"


async def test_stepping_out_of_a_function_that_nothing_traced(debug):
    debug.write(
        "main.py",
        """
        import helper
        def middle():
            value = helper.deep(3)
            after = value + 1
            return after
        result = middle()
        done = True
        """,
    )
    debug.write("helper.py", "def deep(n):\n    if n:\n        return deep(n - 1)\n    bottom = 1\n    return bottom\n")
    await debug.each("b helper.py:4", "c")
    lines = [(await debug("n")).frame.line for _ in range(3)]
    assert lines == [5, 5, 3]
    await debug.each("b main.py:5", "c")
    assert (await debug("p after")).output.startswith("*** NameError")
    assert (await debug("n")).frame.line == 6


async def test_a_breakpoint_set_in_a_function_that_is_running_is_hit(debug):
    debug.write(
        "main.py",
        """
        def inner():
            return 1
        def outer():
            total = 0
            for i in range(3):
                inner()
                total += i
            return total
        outer()
        """,
    )
    await debug.each("b inner", "c", "cl 1", "b main.py:8")
    assert (await debug("c")).frame.line == 8


async def test_exit_handlers_run_and_can_be_debugged(debug):
    debug.write("main.py", "import atexit\ndef bye():\n    print('bye')\natexit.register(bye)\nx = 1\n")
    result = await debug.each("b bye", "c")
    assert result.frame.function == "bye"
    assert (await debug("c")).program_output == "bye\n"


async def test_a_program_outside_the_workspace(debug, tmp_path):
    tool = tmp_path / "tool.py"
    tool.write_text("import sys\nsys.path.insert(0, '.')\nimport mine\n")
    debug.write("mine.py", "x = 1\nx = 2\n")
    result = await debug("n", entrypoint=f"python {os.fspath(tool)}")
    assert (result.frame.file, result.frame.line) == ("mine.py", 1)


@pytest.mark.parametrize(
    "entrypoint",
    [
        "python -m pdb main.py one",
        "python -mpdb main.py one",
        "python -m pdb -c continue main.py one",
        "python -m pdb -m main one",
        "true && python -m pdb -c continue main.py one",
    ],
)
async def test_an_inner_pdb_is_left_out(debug, entrypoint):
    debug.write("main.py", "import sys\nx = sys.argv[1:]\nprint(x)\n")
    debug.entrypoint = entrypoint
    first = await debug("b main.py:3")
    assert "The inner pdb was left out: the program runs under pdb already." in first.notices
    assert (await debug("c")).frame.line == 3
    assert (await debug("c")).program_output == "['one']\n"


async def test_the_first_answer_names_the_program(debug):
    debug.write("main.py", "x = 1\n")
    assert "Debugging python main.py." in (await debug("b 1")).notices
    assert (await debug("p 1")).notices == ()
    await debug("q")
    assert not [notice for notice in (await debug("p 1")).notices if "Debugging" in notice]
    await debug("q")
    assert "Debugging python -B main.py." in (await debug("p 1", entrypoint="python -B main.py")).notices


REFUSED = ["no-such-program", "python -c 'print(1)'", "true && echo done", "python3 -X && true"]


async def test_a_refused_entrypoint_keeps_the_stopped_program(debug):
    debug.write("main.py", "x = 1\ny = 2\nz = 3\n")
    await debug.each("b 2", "c", "!x = 7")
    for entrypoint in REFUSED:
        result = await debug("p x", entrypoint=entrypoint)
        assert (result.refused, result.state) == (True, "stopped"), entrypoint
        assert not [notice for notice in result.notices if "started again" in notice], entrypoint
        assert [point.line for point in result.breakpoints] == [2], entrypoint
        result = await debug("p x")
        assert (result.output, result.frame.line, result.notices) == ("7\n", 2, ()), entrypoint
    await debug("b 3")
    assert (await debug("c")).frame.line == 3


async def test_a_refused_entrypoint_is_not_a_restart(debug):
    debug.write("main.py", "x = 1\n")
    await debug.each("c", "c")
    result = await debug("p 1", entrypoint="true && echo done")
    assert (result.refused, result.state, result.notices) == (True, "idle", ())


async def test_the_previous_program_is_killed_once_the_next_has_started(debug):
    debug.write("main.py", "x = 1\n")
    await debug("p 1")
    before = await debug.client.processes()
    result = await debug("p 1", entrypoint="true && python main.py")
    assert "The program was started again with another entrypoint." in result.notices
    async with asyncio.timeout(60):
        while set(before) & set(await debug.client.processes()):
            await asyncio.sleep(0.05)


async def test_commands_before_the_start_of_the_program_report_it(debug):
    debug.write("package/__init__.py", "")
    debug.write("package/__main__.py", "x = 1\n")
    debug.entrypoint = "python -m this"
    first = await debug("b package/__main__.py:1")
    assert "Debugging python -m this." in first.notices
    for command in ("p x", "u", "d", "l", "ll", "w", "a", "args", "bt", "whatis x", "x", "!x + 1", "j 3"):
        result = await debug(command)
        assert result.output.count("the program has not started: python -m this is about to start") == 1, command
        assert (result.state, result.failed, result.frame) == ("stopped", True, None), command
    assert (await debug("p 1 + 1")).output == "2\n"
    assert (await debug("p 1/0")).output == "*** ZeroDivisionError: division by zero\n"


async def test_after_a_rewrite_the_next_run_waits_in_the_background(debug):
    debug.write("main.py", "import helper\nx = 1\n")
    debug.write("helper.py", "y = 1\n")
    await debug.each("b main.py:2", "c")
    (before,) = await debug.client.processes()
    for name, text in (("helper.py", "y = 2\n"), ("main.py", "import helper\nx = 2\n")):
        await debug.client.write_file(name, text.encode())
    for _ in range(1000):
        waiting = await debug.client.processes()
        if waiting and before not in waiting:
            break
    (ready,) = waiting
    debug.write(".dgym-0123456789ab", "x = 3\n")  # a temporary file, as during the write of a file
    result = await debug("b")
    assert result.notices == ("The program was started again because helper.py, main.py changed.",)
    assert await debug.client.processes() == [ready]
    assert (await debug.each("c", "p helper.y")).output == "2\n"


async def test_the_process_that_waits_is_not_used_after_a_new_file_or_its_end(debug):
    for change in ("file", "end"):
        debug.write("main.py", "import cmd\nx = 1\n")
        await debug.each("b main.py:2", "c")
        await debug.client.write_file("main.py", f"import cmd\nx = 2  # {change}\n".encode())
        if change == "end":
            await debug.client.end_processes()
        else:
            debug.write("cmd.py", "value = 'ours'\n")
        result = await debug("c")
        assert (result.state, result.frame.line) == ("stopped", 2)
        assert (await debug("p cmd.value")).output == "'ours'\n", (change, result)
    assert len(await debug.client.processes()) == 1
