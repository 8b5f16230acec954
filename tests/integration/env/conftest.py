"""Fixtures with a task whose small repository has a bug."""

import shutil

import msgspec
import pytest

from dgym.api import DebugTask

CALC = """\
def add(a, b):
    return a - b


def double(a):
    return add(a, a)
"""
TESTS = """\
import calc


def test_add():
    assert calc.add(2, 3) == 5


def test_double():
    assert calc.double(4) == 8


def test_zero():
    assert calc.add(0, 0) == 0
"""
SOLUTION = """\
--- a/calc.py
+++ b/calc.py
@@ -1,2 +1,2 @@
 def add(a, b):
-    return a - b
+    return a + b
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
