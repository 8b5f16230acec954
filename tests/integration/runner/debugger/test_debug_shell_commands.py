"""Tests of entrypoints that need a shell: the first Python program that the command starts is debugged."""

import asyncio

import pytest

from dgym.sandbox import DebugResult

MAIN = """\
import os, subprocess, sys
import helper
x = 1
if x:
    names = sorted(set(os.environ) & {"MODE", "PYTHONPATH"}), [part for part in sys.path if "debug-" in part]
print(sys.argv[1:], names, "debug-" in os.environ["PATH"], os.path.basename(os.getcwd()), flush=True)
code = "import os, sys; print('child', os.environ.get('PYTHONPATH'), 'helper' in sys.modules)"
sys.exit(subprocess.call([sys.executable, "-c", code]) or 3)
"""
TOX = """\
#!/usr/bin/env python
import subprocess, sys
sys.exit(subprocess.call(["python", "src/main.py", "one"]))
"""
FORMS = {
    "PYTHONPATH=$PWD/lib python src/main.py one": "['one'] (['PYTHONPATH'], []) False workspace",
    "cp lib/helper.py src && cd src && python main.py one": "['one'] ([], []) False src",
    "make test ARGUMENT=one": "['one'] (['PYTHONPATH'], []) False workspace",
    "sh run.sh one": "['one'] (['PYTHONPATH'], []) False workspace",
    "env -i PATH=$PATH PYTHONPATH=lib python src/main.py one": "['one'] (['PYTHONPATH'], []) False workspace",
    "PYTHONPATH=$PYTHONPATH:lib $REAL -B src/main.py one": "['one'] (['PYTHONPATH'], []) False workspace",
    "python -c 'print(0)'; PYTHONPATH=lib python src/main.py one": "['one'] (['PYTHONPATH'], []) False workspace",
    "pip --version; PYTHONPATH=lib ./tox": "['one'] (['PYTHONPATH'], []) False workspace",
    "cp lib/helper.py src && python -E src/main.py one | cat; exit 3": "['one'] ([], []) False workspace",
}


@pytest.fixture
async def start_shell(start_session):
    """``await start_shell(python, entrypoint)``: a session with a program in ``src`` that needs a module in ``lib``."""

    async def start(python, entrypoint):
        debug = await start_session(python, entrypoint, environment={"REAL": python})
        debug.write("src/main.py", MAIN)
        debug.write("lib/helper.py", "value = 1\n")
        debug.write("run.sh", 'export PYTHONPATH=lib:$PYTHONPATH\npython src/main.py "$@"\n')
        debug.write("Makefile", "test:\n\t@PYTHONPATH=lib:$$PYTHONPATH python src/main.py $(ARGUMENT)\n")
        debug.write("tox", TOX)
        (debug.workspace / "tox").chmod(0o755)
        return debug

    return start


async def run_to_the_end(debug, *, status) -> DebugResult:
    await debug("b src/main.py:4")
    result = await debug("c")
    assert (result.frame.file, result.frame.line) == ("src/main.py", 4), result.output + result.program_output
    assert (await debug("p x")).output.strip() == "1"
    result = await debug("c")
    assert (result.state, result.exit_status) == ("ended", status)
    return result


@pytest.mark.parametrize("entrypoint", FORMS)
async def test_the_first_program_of_a_shell_command_is_debugged(start_shell, newest, entrypoint):
    debug = await start_shell(newest, entrypoint)
    result = await run_to_the_end(debug, status=2 if entrypoint.startswith("make") else 3)
    seen, child = [line for line in result.program_output.splitlines() if line[0] in "[c"]
    assert seen == FORMS[entrypoint]
    assert child.startswith("child ")
    assert "debug-" not in child


async def test_every_interpreter_is_taken_over_and_started_again(start_shell, python):
    debug = await start_shell(python, "cp lib/helper.py src && cd src && python main.py one")
    await run_to_the_end(debug, status=3)
    result = await debug("c")
    assert result.frame.line == 4
    assert "The program was started again." in result.notices
    debug.write("src/main.py", "x = 1\n" + MAIN)
    result = await debug("w", breakpoints=())
    assert "The program was started again because src/main.py changed." in result.notices
    assert "Debugging python main.py one, the first Python program of the command." in result.notices


async def test_pytest_of_a_shell_command(start_session, venv_here):
    line = "cd tests && PYTHONPATH=.. pytest -q -p no:cacheprovider"
    debug = await start_session(venv_here, line, environment={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"})
    debug.write("tests/test_it.py", "def test_it():\n    value = 3\n    assert value == 4\n")
    await debug("b tests/test_it.py:3")
    result = await debug("c")
    assert (result.frame.file, result.frame.line, result.frame.function) == ("tests/test_it.py", 3, "test_it")
    result = await debug("c")
    assert (result.state, result.exit_status) == ("ended", 1)
    assert "1 failed" in result.program_output


async def test_programs_after_the_first_run_without_the_debugger(start_shell, newest):
    line = "export PYTHONPATH=lib:$PYTHONPATH; python src/main.py one; python src/main.py two"
    debug = await start_shell(newest, line)
    await debug("b src/main.py:4")
    assert (await debug("c")).frame.line == 4
    result = await debug("c")
    assert (result.state, result.exit_status) == ("ended", 3)
    assert "['two'] (['PYTHONPATH'], []) False workspace" in result.program_output


async def test_a_program_of_a_shell_command_stops_at_its_exception_and_at_a_timeout(start_shell, newest):
    debug = await start_shell(newest, "true && python loop.py")
    debug.write("loop.py", "import time\ntry:\n    time.sleep(600)\nexcept KeyError:\n    raise ValueError(7)\n")
    await debug("n")
    result = await debug("c", timeout=0.1)
    assert (result.interrupted, result.state) == (True, "stopped")
    result = await debug("!raise KeyError")
    assert "KeyError" in result.output


WITHOUT_PROGRAM = {
    "true && echo hello": "it ended with exit status 0 before the debugger could take over a Python program",
    "false; python -c 'print(1)'": "(started without it: python",
    "env -i $REAL src/main.py": "it ended with exit status",
}


async def test_a_shell_command_without_a_program_to_debug_is_refused_with_advice(start_shell, newest):
    debug = await start_shell(newest, "")
    for entrypoint, why in WITHOUT_PROGRAM.items():
        result = await debug("b src/main.py:4", entrypoint=entrypoint)
        assert (result.refused, result.state) == (True, "idle"), entrypoint
        assert why in result.output, entrypoint
        assert "set debugEntrypoint" in result.output, entrypoint
    assert (await debug("n", entrypoint="python lib/helper.py")).state == "stopped"


async def test_a_shell_command_that_never_starts_a_program_is_ended(start_shell, newest):
    debug = await start_shell(newest, "true && sleep 600")
    result = await debug("n", timeout=0.1)
    assert result.refused
    assert "it ran too long before the debugger could take over a Python program" in result.output
    async with asyncio.timeout(60):
        while await debug.client.processes():
            await asyncio.sleep(0.1)
