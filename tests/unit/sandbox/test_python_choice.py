"""Tests of the interpreter that ``--python`` selects, and of the validation of requirements."""

import sys
import venv
from pathlib import Path

import pytest

from dgym.errors import ManifestError
from dgym.sandbox.local import ensure_environment, resolve_python
from dgym.sandbox.local._interpreter import inspect_interpreter


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    path = tmp_path_factory.mktemp("venv") / "e"
    venv.create(path, symlinks=True)
    return path


def test_an_interpreter_is_itself():
    assert resolve_python(sys.executable) == sys.executable


def test_a_virtual_environment_is_named_by_its_directory(environment):
    assert resolve_python(str(environment)) == str(environment / "bin" / "python")


def test_the_base_of_a_virtual_environment_is_found(environment):
    interpreter = inspect_interpreter(str(environment / "bin" / "python"))
    assert str(environment) in interpreter.prefixes
    assert sys.base_prefix in interpreter.prefixes
    assert interpreter.version == sys.version_info[:3]
    assert interpreter.is_named_python


def test_a_name_is_looked_up_on_the_path(environment, monkeypatch):
    monkeypatch.setenv("PATH", str(environment / "bin"))
    assert resolve_python("python") == str(environment / "bin" / "python")


def test_a_wrapper_is_asked_for_the_interpreter_behind_it(environment, tmp_path):
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\nexec "{environment}/bin/python" "$@"\n')
    wrapper.chmod(0o755)
    assert resolve_python(str(wrapper)) == str(environment / "bin" / "python")


def test_an_interpreter_without_the_file_python_is_recognised(tmp_path):
    link = tmp_path / "python3.99"
    link.symlink_to(Path(sys.executable).resolve())
    assert not inspect_interpreter(str(link)).is_named_python


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/nowhere/python", "neither"),
        ("no-such-command", "neither"),
        ("/bin/ls", "not an interpreter"),
        ("/etc", "bin/python"),
    ],
)
def test_anything_else_is_refused_with_a_remedy(path, expected):
    with pytest.raises(ManifestError, match=expected):
        resolve_python(path)


@pytest.mark.parametrize("version", ["[2, 7, 18]", "[3, 5, 9]"])
def test_an_interpreter_too_old_for_the_runner_is_refused(tmp_path, version):
    old = tmp_path / "python"
    facts = f'{{"executable": "{old}", "version": {version}, "tag": "x", "prefixes": [], "base": ""}}'
    old.write_text(f"#!/bin/sh\necho '{facts}'\n")
    old.chmod(0o755)
    with pytest.raises(ManifestError, match=r"3\.6 or later"):
        resolve_python(str(old))


@pytest.mark.parametrize("requirement", ["-e .", "--index-url=x", "./local", "/abs", "", "a\nb", "-r file"])
async def test_options_and_paths_are_refused_as_requirements(requirement):
    with pytest.raises(ManifestError, match=r"requirements\[0\]"):
        await ensure_environment([requirement])
