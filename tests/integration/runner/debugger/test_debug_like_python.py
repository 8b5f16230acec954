"""Tests that a program under the debugger starts and finds its modules as under plain Python."""

import re
import subprocess
from pathlib import Path

import pytest

import dgym.runner
from tests.support.plain_python import (
    FAILING,
    FORMS,
    NO_PLUGINS,
    STACKS,
    library_names,
    plain,
    without_advice,
    write_forms,
    write_hiding,
)

# Modules that the debugger itself needs. The matrix tests the other modules of the standard library.
NEEDED = ["cmd", "enum", "linecache", "random", "re", "threading", "token", "types"]

WALKING = """\
import inspect, sys, time, traceback

class Shown:
    def __repr__(self):
        return repr([entry.function for entry in inspect.stack()])

shown = Shown()

def names():
    return [entry.function for entry in inspect.stack()]

def inner():
    time.sleep(0)
    raise KeyError

def outer():
    inner()

outer()
"""

CALLING = """\
import gc, sys

frames = {"__name__": "frames"}
exec(compile(open(sys.argv[1]).read(), sys.argv[1], "exec"), frames)
call_from, kept, calls = frames["call_from"], [], 0

def finished():
    def fail(given):
        given = [given]
        1 / 0

    try:
        fail({})
    except ZeroDivisionError as error:
        return error.__traceback__.tb_next.tb_frame

for calls in range(1, 3001):
    frame = finished()
    before = sys.getrefcount(frame)
    result = call_from(frame, eval, "gc.collect(0) and None or sys._getframe()", globals())
    assert result.f_back is frame and frame.f_back.f_code.co_name == "finished"
    if calls % 100 == 0:
        kept.append(result)
    del result
    assert sys.getrefcount(frame) == before + (calls % 100 == 0)
print(calls)
"""


def without_times(text):
    return re.sub(r" in [0-9.]+s", "", text)


def dependents(python):
    """Modules that the program imports too because they may depend on a hidden module.

    Before Python 3.8, threading imports traceback and much of the library with it. The debugger keeps threading loaded.
    So some imports fail under plain Python and succeed under the debugger: of tempfile, and in 3.6 of more modules.
    """
    if "/3.6" in python:
        return ["inspect"]
    found = ["tempfile", "traceback", "inspect", "json", "dataclasses"]
    return found[1:] if "/3.7" in python else found


@pytest.mark.parametrize("entrypoint", FORMS)
async def test_the_program_sees_what_it_sees_alone(debug, python, entrypoint):
    write_forms(debug.workspace)
    expected = plain(python, entrypoint, debug.workspace)
    await debug("p 1", entrypoint=entrypoint)
    assert without_advice((await debug("c", entrypoint=entrypoint)).program_output) == expected


@pytest.mark.parametrize(
    "entrypoint", [*FORMS, "true && python main.py one", "python -s -E main.py", "python -I -S main.py"]
)
async def test_no_frame_of_the_debugger_is_on_the_stack_of_the_program(debug, python, entrypoint):
    write_forms(debug.workspace, STACKS + FAILING)
    expected = plain(python, entrypoint, debug.workspace)
    await debug("p 1", entrypoint=entrypoint)
    result = await debug("c", entrypoint=entrypoint)
    assert result.state == "stopped"
    assert result.frame.function == "fail"
    shown = result.program_output
    result = await debug("c", entrypoint=entrypoint)
    assert without_advice(shown + result.program_output) == expected
    assert result.exit_status == 1


@pytest.mark.parametrize("entrypoint", ["python -m pytest -q -s", "pytest -q -s", "python -m unittest test_it"])
async def test_no_frame_of_the_debugger_is_on_the_stack_of_a_test(start_session, venv_here, entrypoint):
    debug = await start_session(venv_here, environment=NO_PLUGINS)
    test = "import unittest\n\nclass TestIt(unittest.TestCase):\n    def test_it(self):\n        show_stack()\n"
    debug.write("test_it.py", STACKS + test)
    expected = plain(f"{venv_here}/bin/python", entrypoint, debug.workspace)
    result = await debug("c", entrypoint=entrypoint)
    if result.state == "stopped":
        result = await debug("c", entrypoint=entrypoint)
    assert without_times(result.program_output) == without_times(expected)


@pytest.mark.parametrize("entrypoint", ["PYTHONPATH=lib python main.py", "true && PYTHONPATH=lib python main.py"])
async def test_the_start_module_of_the_environment_runs_as_under_plain_python(debug, python, entrypoint):
    debug.write("lib/sitecustomize.py", "import inspect\nprint([entry.function for entry in inspect.stack()])\n")
    debug.write("main.py", "import os, sitecustomize\nprint(sitecustomize.__file__, os.environ.get('PYTHONPATH'))\n")
    expected = plain(python, entrypoint, debug.workspace)
    first = await debug("p 1", entrypoint=entrypoint)
    last = await debug("c", entrypoint=entrypoint)
    assert first.program_output + last.program_output == expected


STOPS = {
    "a breakpoint": ("b inner", "c"),
    "a condition": ("b inner, names() == ['names', '<module>', 'inner', 'outer', '<module>']", "c"),
    "a step": ("b outer", "c", "s"),
    "an exception": ("c",),
}


@pytest.mark.parametrize("how", STOPS)
async def test_no_frame_of_the_debugger_is_on_the_stack_of_a_command(debug, how):
    debug.write("main.py", WALKING)
    result = await debug.each(*STOPS[how])
    assert result.frame.function == "inner"
    for command, expected in (
        ("p names()", ["names", "<module>", "inner", "outer", "<module>"]),
        ("names()", ["names", "<stdin>", "inner", "outer", "<module>"]),
        ("!print(names())", ["names", "<stdin>", "inner", "outer", "<module>"]),
        ("p (lambda: names())()", ["names", "<lambda>", "<module>", "inner", "outer", "<module>"]),
        ("p shown", ["__repr__", "inner", "outer", "<module>"]),
        ("pp [entry.name for entry in traceback.extract_stack()]", None),
    ):
        shown = (await debug(command)).output
        if expected is not None:
            assert shown.strip() == repr(expected).replace("<stdin>", "<module>"), command
        assert "dgym" not in shown
    displayed = (await debug("display shown")).output.strip()
    assert displayed == "display shown: ['__repr__', 'inner', 'outer', '<module>']"
    assert (await debug("p sys._getframe().f_back.f_code.co_name")).output.strip() == "'inner'"
    result = await debug.each("u", "p names()")
    assert result.output.strip() == "['names', '<module>', 'outer', '<module>']"
    result = await debug("!1/0")
    assert result.failed
    assert (await debug.each("d", "p names()")).output.strip() == "['names', '<module>', 'inner', 'outer', '<module>']"


def test_calls_from_finished_frames_leave_every_object_as_it_was(python):
    done = subprocess.run(
        [python, "-c", CALLING, str(Path(dgym.runner.__file__).with_name("frames.py"))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "3000\n", "")


async def test_no_frame_of_the_debugger_is_on_the_stack_of_an_interrupted_program(debug):
    debug.write("main.py", WALKING.replace("sleep(0)", "sleep(3600)"))
    await debug.each("tbreak main.py:13", "c")
    result = await debug("c", timeout=0.1)
    assert result.interrupted
    assert (await debug("p names()")).output.strip() == "['names', '<module>', 'inner', 'outer', '<module>']"


@pytest.mark.parametrize("name", NEEDED)
async def test_a_module_with_a_name_of_the_library_is_imported(debug, python, name):
    write_hiding(debug.workspace, [name], dependents(python))
    expected = plain(python, "python main.py", debug.workspace)
    result = await debug.each("tbreak main.py:5, name == 'inspect'", "c")
    assert result.frame.line == 5
    for command in ("w", "ll", "pp name", "a", "whatis found", "h b", "b", "display name", "!x = [n for n in name]"):
        assert not (await debug(command)).failed, command
    assert without_advice((await debug("c")).program_output) == expected


async def test_modules_with_every_name_of_the_library_are_imported(debug, python):
    write_hiding(debug.workspace, library_names(python), dependents(python))
    expected = plain(python, "python main.py", debug.workspace)
    result = await debug.each("b main.py:5, name == 'xml'", "c")
    assert result.frame.line == 5
    assert not (await debug("w")).failed
    assert without_advice((await debug("c")).program_output) == expected


@pytest.mark.matrix
@pytest.mark.parametrize("part", range(16))
async def test_a_module_with_any_name_of_the_library_is_imported(debug, python, part):
    for name in library_names(python)[part::16]:
        for old in debug.workspace.glob("*.py"):
            old.unlink()
        write_hiding(debug.workspace, [name], dependents(python))
        expected = plain(python, "python main.py", debug.workspace)
        assert without_advice((await debug("c", restart=True)).program_output) == expected, name


@pytest.mark.parametrize("entrypoint", ["PYTHONPATH=lib python main.py", "true && PYTHONPATH=lib python main.py"])
async def test_modules_on_the_path_of_the_environment_are_imported(debug, python, entrypoint):
    (debug.workspace / "lib").mkdir()
    write_hiding(debug.workspace / "lib", ["json", "random", "token"], dependents(python))
    (debug.workspace / "lib" / "main.py").rename(debug.workspace / "main.py")
    expected = plain(python, entrypoint, debug.workspace)
    await debug("p 1", entrypoint=entrypoint)
    assert without_advice((await debug("c", entrypoint=entrypoint)).program_output) == expected
