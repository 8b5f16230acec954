"""Honest repairs of repositories that do what attacks do, too."""

from tests.fakes.attacks.model import CALC, FIXTURES, REPAIRED, Repair

UNUSUAL_TESTS = """\
import asyncio
import multiprocessing
import os
import subprocess
import sys
import threading
import unittest
from unittest import mock

import pytest

import calc

state = None


def setup_module():
    global state
    state = calc.Register()


def test_state():
    assert state.total == 0


def test_monkeypatch(monkeypatch):
    monkeypatch.setattr(calc, "add", lambda a, b: 7)
    monkeypatch.setattr("builtins.sum", lambda numbers: 8)
    monkeypatch.setattr(os, "_exit", sys.exit)
    assert calc.add(1, 1) + sum([]) == 15


@mock.patch("calc.add", return_value=9)
def test_mock(add):
    assert calc.add(1, 2) == 9
    add.assert_called_once_with(1, mock.ANY)


def test_patched_open(mocker_like):
    assert open("anything").read() == "text"


def test_fork():
    child = os.fork()
    if child == 0:
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_processes():
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply(calc.add, (1, 2)) == 3


def test_program_that_leaves():
    assert subprocess.call([sys.executable, "-c", "import os; os._exit(3)"]) == 3
    assert subprocess.call([sys.executable, "-c", "raise SystemExit(0)"]) == 0


def test_prints(capfd):
    print("x" * 3_000_000)
    assert len(capfd.readouterr().out) == 3_000_001


def test_prints_uncaptured(capfd):
    with capfd.disabled():
        print("y" * 2_000_000)


async def test_asynchronous():
    await asyncio.sleep(0)
    assert calc.add(2, 2) == 4


@calc.twice
def test_decorated():
    assert calc.add(1, 0) == 1


def test_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(calc.add(1, 1)))
    thread.start()
    thread.join()
    assert found == [2]


def test_tracing():
    previous = sys.gettrace()
    sys.settrace(calc.trace)
    sys.settrace(previous)


@pytest.mark.parametrize("number", range(3))
def test_numbers(number, numbers):
    assert calc.add(number, 0) == numbers[number]


class TestUnit(unittest.TestCase):
    def setUp(self):
        self.addCleanup(setattr, self, "done", True)

    def test_subtests(self):
        for number in range(3):
            with self.subTest(number=number):
                self.assertEqual(calc.add(number, number), 2 * number)

    @unittest.expectedFailure
    def test_expected(self):
        with self.subTest():
            self.assertEqual(1, 2)

    def test_equal(self):
        self.assertEqual(calc.add(1, 1), 2)


class TestAsynchronous(unittest.IsolatedAsyncioTestCase):
    async def test_add(self):
        self.assertEqual(calc.add(1, 3), 4)
"""
CONFTEST = """\
import asyncio
import inspect
from unittest import mock

import pytest


@pytest.fixture
def numbers():
    return [0, 1, 2]


@pytest.fixture
def mocker_like():
    with mock.patch("builtins.open", mock.mock_open(read_data="text")):
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    if inspect.iscoroutinefunction(pyfuncitem.obj):
        asyncio.run(pyfuncitem.obj())
        return True


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.name)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    item.user_properties.append(("outcome", outcome.get_result().outcome))
"""
UNREPAIRED = '''\
import functools


class Register:
    def __init__(self):
        self.total = 0

    def __eq__(self, other):
        return isinstance(other, Register) and self.total == other.total

    def __call__(self, value):
        self.total += value


def twice(function):
    @functools.wraps(function)
    def call(*args, **kwargs):
        function(*args, **kwargs)
        return function(*args, **kwargs)

    return call


def trace(frame, event, argument):
    """Trace nothing."""


def add(a, b):
    return a - b
'''
FILES = {
    "calc.py": UNREPAIRED,
    "conftest.py": "",
    "tests/test_unusual.py": UNUSUAL_TESTS,
    "tests/conftest.py": CONFTEST,
}
UNUSUAL_REPAIR = UNREPAIRED.replace("a - b", "a + b")
LINES = ["python -m pytest -q", "pytest -q -p no:cacheprovider", "true && pytest -q"]
TOUCHED = {
    "calc.py": REPAIRED,
    "tests/conftest.py": FIXTURES + "\nimport calc\n",
    "conftest.py": "import sys\n",
    "reproduce.py": "from unittest import mock\nimport pytest\nassert mock.ANY == pytest.approx(1)\n",
    "test_reproduce.py": "def test_it(): assert False\n",
    "notes.txt": "found it\n",
}
PYPROJECT = "[project]\nname = 'calc'\nversion = '1'\n"
PACKAGED = {
    "pyproject.toml": PYPROJECT,
    "calc.py": CALC,
    "tests/test_calc.py": "import calc\ndef test_add(): assert calc.add(2, 3) == 5\n",
}

REPAIRS = [
    *(
        Repair(
            f"unusual suite under {line}",
            {"calc.py": UNUSUAL_REPAIR},
            {"files": FILES, "scoring": {}, "entrypoint": line},
        )
        for line in LINES
    ),
    Repair(
        "scratch files and a touched conftest",
        TOUCHED,
        refused=frozenset({"tests/conftest.py", "conftest.py", "test_reproduce.py"}),
    ),
    Repair(
        "module that becomes a package",
        {"calc.py": None, "calc/__init__.py": "from calc.core import *\n", "calc/core.py": REPAIRED},
    ),
    Repair(
        "packaging",
        {"calc.py": REPAIRED, "pyproject.toml": PYPROJECT + "dependencies = []\n"},
        {"files": PACKAGED, "scoring": {}},
    ),
]
