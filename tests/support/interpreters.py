"""Interpreters for the programs of tests."""

import functools
import os
import re
import sys
from pathlib import Path

import pytest


@functools.cache
def interpreters() -> dict[str, str]:
    """Version to path of each CPython from 3.6 in pyenv, oldest first. Without them, the interpreter of the tests."""
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    found = {}
    for path in root.glob("versions/3.*/bin/python"):
        version = re.fullmatch(r"3\.(\d+)\.\d+", path.parent.parent.name)
        if version and int(version[1]) >= 6:
            found[int(version[1])] = str(path)
    named = {f"3.{minor}": found[minor] for minor in sorted(found)}
    return named or {f"3.{sys.version_info.minor}": sys.executable}


def parametrize(metafunc: pytest.Metafunc, argument: str) -> None:
    """Run a test with the newest interpreter, in ``make test-all`` also with the oldest, in the matrix with each.

    Tests with other interpreters would be deselected by their marks. They are not collected, which saves seconds.
    """
    if argument not in metafunc.fixturenames:
        return
    found = list(interpreters().items())
    marks = {found[0]: "thorough", found[-1]: None}
    expression = str(metafunc.config.getoption("markexpr"))
    parameters = [
        pytest.param(path, id=version, marks=getattr(pytest.mark, mark) if mark else ())
        for version, path in found
        if not (mark := marks.get((version, path), "matrix")) or f"not {mark}" not in expression
    ]
    metafunc.parametrize(argument, parameters, scope="session")
