"""Tests that a scored program starts and finds its modules as under plain Python."""

import pytest

from tests.support.interpreters import parametrize
from tests.support.plain_python import (
    FAILING,
    FORMS,
    STACKS,
    library_names,
    plain,
    without_advice,
    write_forms,
    write_hiding,
)

TRACED = """
import gc, threading

def trace(frame, event, arg):
    if "/runner/" in frame.f_code.co_filename:
        seen.append(frame.f_code.co_name)
    return trace

def profile(frame, event, arg):
    pass

def catch(depth):
    try:
        return 1 / depth
    except ZeroDivisionError:
        return catch(depth + 1)

def generate():
    try:
        yield catch(0)
    finally:
        show_stack()

seen = []
kept = [generate()]

def finish():
    sys.settrace(None)
    sys.setprofile(None)
    kept[0].close()
    print(seen)

atexit.register(finish)
threading.settrace(trace)
sys.settrace(trace)
if "profile" in sys.argv:
    sys.setprofile(profile)
list(generate())
kept.append(gc.get_objects())
next(kept[0])
"""
ENDINGS = {
    "an exception": FAILING,
    "an exception of another kind": "raise GeneratorExit('over')",
    "a status": "sys.exit(3)",
    "a message": "sys.exit(['not', 'a', 'number'])",
    "an exit in a function": "def leave():\n    raise SystemExit(None)\nleave()",
    "recursion": "sys.setrecursionlimit(150)\nsys.tracebacklimit = 2\ndef fall(): fall()\nfall()",
    "a hook": "sys.excepthook = lambda *found: show_stack() or print(found[:2], sys.exc_info(), flush=True)\n1 / 0",
    "a hook that traces": "sys.excepthook = lambda *found: sys.settrace(trace)\n1 / 0",
    "an error in C": "sorted([1, 'a'], key=show_stack() or str.lower)",
    "a syntax error": "eval('1 +')",
    "nothing": "",
}


def pytest_generate_tests(metafunc):
    parametrize(metafunc, "python")


@pytest.fixture
def score_like_python(run_plain, tmp_path, python):
    """Compare a scored run with plain Python in a workspace that ``write`` fills, with and without changed files."""

    async def compare(write, entrypoint):
        workspace = tmp_path / "workspace"
        for changed in ([], ["other.py"]):
            result = await run_plain({}, entrypoint, python=python, changed=changed, fill=write)
            assert without_advice(result.run.text) == plain(python, entrypoint, workspace)

    return compare


@pytest.mark.parametrize("entrypoint", [*FORMS, "cd sub && python ../main.py"])
async def test_the_program_sees_what_it_sees_alone(score_like_python, entrypoint):
    await score_like_python(write_forms, entrypoint)


@pytest.mark.parametrize("entrypoint", [*FORMS, "cd sub && python ../main.py", "true && python main.py"])
async def test_no_frame_of_the_runner_is_on_the_stack_of_the_program(score_like_python, entrypoint):
    await score_like_python(lambda workspace: write_forms(workspace, STACKS + FAILING), entrypoint)


@pytest.mark.parametrize("argument", ["trace", "profile"])
@pytest.mark.parametrize("ending", ENDINGS)
async def test_a_program_that_traces_itself_ends_as_it_does_alone(run_plain, tmp_path, python, ending, argument):
    program = STACKS + TRACED + ENDINGS[ending]
    entrypoint = f"python main.py {argument}"
    result = await run_plain({"main.py": program}, entrypoint, python=python, changed=["other.py"])
    expected = plain(python, f"{entrypoint}; echo status $?", tmp_path / "workspace")
    assert f"{result.run.text}status {result.run.exit_status}\n" == expected
    assert result.completed


@pytest.mark.parametrize("entrypoint", ["python main.py", "true && python main.py"])
async def test_modules_with_every_name_of_the_library_are_imported(score_like_python, python, entrypoint):
    names = library_names(python)
    await score_like_python(lambda workspace: write_hiding(workspace, names), entrypoint)


@pytest.mark.parametrize("name", ["json", "threading", "types"])
@pytest.mark.parametrize("entrypoint", ["python main.py", "true && python main.py"])
async def test_a_module_with_a_name_of_the_library_is_imported(score_like_python, entrypoint, name):
    await score_like_python(lambda workspace: write_hiding(workspace, [name]), entrypoint)


@pytest.mark.matrix
@pytest.mark.parametrize("part", range(16))
async def test_a_module_with_any_name_of_the_library_is_imported(score_like_python, python, part):
    for name in library_names(python)[part::16]:
        await score_like_python(lambda workspace, name=name: write_hiding(workspace, [name]), "python main.py")
