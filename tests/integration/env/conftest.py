"""Fixtures with a task whose small repository has a bug."""

import shutil

import msgspec
import pytest

from dgym.api import DebugTask
from tests.support.calc import BUGGY, SOLUTION

CALC = BUGGY + "\n\ndef double(a):\n    return add(a, a)\n"
TESTS = """\
import calc


def test_add():
    assert calc.add(2, 3) == 5


def test_double():
    assert calc.double(4) == 8


def test_zero():
    assert calc.add(0, 0) == 0
"""


def make_task(files=None, **spec):
    """A DebugTask over inline files. Keyword arguments are fields of its spec in camelCase."""
    files = {"calc.py": CALC, "test_calc.py": TESTS, ".debugreadonly": "test_*.py\n"} if files is None else files
    source = {"files": [{"path": path, "content": content} for path, content in files.items()]}
    spec = {"instructions": "calc is wrong", "source": source, "solution": SOLUTION, **spec}
    return msgspec.convert({"metadata": {"name": "calc"}, "spec": spec}, DebugTask)


@pytest.fixture
def task():
    return make_task()


@pytest.fixture(params=["bubblewrap", pytest.param("none", marks=pytest.mark.thorough)])
def kind(request):
    if request.param == "bubblewrap" and shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    return request.param


@pytest.fixture
def new_task():
    return make_task
