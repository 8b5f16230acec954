"""A program under the debugger is started, and finds its modules, as under plain Python."""

import pytest

from tests.plain_python import FORMS, library_names, plain, without_advice, write_forms, write_hiding

# Names that the debugger itself needs; the other names of the library are in the matrix.
NEEDED = ["cmd", "enum", "linecache", "random", "re", "threading", "token", "types"]


def dependents(python):
    """What the program imports beside. Much of Python 3.6's library needs threading, which the debugger keeps."""
    return ["inspect"] if "/3.6" in python else ["tempfile", "traceback", "inspect", "json", "dataclasses"]


@pytest.mark.parametrize("entrypoint", FORMS)
async def test_the_program_sees_what_it_sees_alone(debug, python, entrypoint):
    write_forms(debug.workspace)
    expected = plain(python, entrypoint, debug.workspace)
    await debug("p 1", entrypoint=entrypoint)
    assert without_advice((await debug("c", entrypoint=entrypoint)).program_output) == expected


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
