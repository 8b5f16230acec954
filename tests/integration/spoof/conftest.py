"""One small task, and an agent that makes its changes in one shell command and submits: the whole way to a verdict."""

import base64
import json
import shutil

import msgspec
import pytest

import dgym
from dgym.api import DebugTask

CALC = """\
def add(a, b):
    return a - b


def divide(a, b):
    return a / b


def mean(numbers):
    return sum(numbers)
"""
REPAIRED = """\
def add(a, b):
    return a + b


def divide(a, b):
    if b == 0:
        raise ValueError("division by zero")
    return a / b


def mean(numbers):
    return sum(numbers) / len(numbers)
"""
TESTS = """\
import unittest

import pytest

import calc


def test_kept():
    assert calc.add(0, 0) == 0


def test_add():
    assert calc.add(2, 3) == 5


def test_divide():
    with pytest.raises(ValueError):
        calc.divide(1, 0)


def test_mean(numbers):
    assert calc.mean(numbers) == pytest.approx(2.0)


class TestCalc(unittest.TestCase):
    def test_equal(self):
        self.assertEqual(calc.add(2, 2), 4)
"""
FIXTURES = "import pytest\n\n\n@pytest.fixture\ndef numbers():\n    return [1.0, 2.0, 3.0]\n"
REPOSITORY = {"calc.py": CALC, "tests/test_calc.py": TESTS, "tests/conftest.py": FIXTURES}
BROKEN = ("test_add", "test_divide", "test_mean", "TestCalc::test_equal")
SCORING = {
    "failToPass": [f"tests/test_calc.py::{name}" for name in BROKEN],
    "passToPass": ["tests/test_calc.py::test_kept"],
}
_WRITE = """\
import base64, json, os, shutil
for path, text in json.loads(base64.b64decode({data!r})).items():
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.remove(path)
    if text is None:
        continue
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    if text.startswith("-> "):
        os.symlink(text[3:], path)
    else:
        with open(path, "w") as file:
            file.write(text)
"""


class Played(msgspec.Struct):
    """What the episode came to, and whether the changes deceived ``eval`` in the agent's own sandbox."""

    result: object
    deceived: bool | None
    output: str


def shell_command(changes):
    """A shell command that makes ``changes``: text, None (deleted) or ``"-> target"`` (a link) by path."""
    if isinstance(changes, str):
        return changes
    data = base64.b64encode(json.dumps(changes).encode()).decode()
    return f"python - <<'END'\n{_WRITE.format(data=data)}END"


def make_task(files=None, scoring=None, **spec):
    files = REPOSITORY if files is None else files
    source = {"files": [{"path": path, "content": text} for path, text in files.items()]}
    spec = {"source": source, "scoring": SCORING if scoring is None else scoring, **spec}
    spec.setdefault("entrypointTimeoutSeconds", 60)
    return msgspec.convert({"metadata": {"name": "calc"}, "spec": spec}, DebugTask)


@pytest.fixture
def play():
    """``await play(changes, kind, evaluate=True, **spec)``: an episode of the task with these changes."""

    async def play_one(changes, kind="bubblewrap", *, evaluate=False, **spec):
        if kind == "bubblewrap" and shutil.which("bwrap") is None:
            kind = "none"
        async with dgym.AsyncRepoEnv(make_task(**spec), sandbox=kind, tools=["bash", "eval", "submit"]) as env:
            await env.reset()
            observation, *_ = await env.step({"tool": "bash", "arguments": {"command": shell_command(changes)}})
            assert observation["exit_status"] == 0, observation["text"]
            deceived = None
            if evaluate:
                observation, *_ = await env.step("eval")
                deceived = observation["exit_status"] == 0
            await env.step("submit")
            return Played(env.result, deceived, observation["text"])

    return play_one


@pytest.fixture(params=["bubblewrap", "none"])
def kind(request):
    if request.param == "bubblewrap" and shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    return request.param


@pytest.fixture
def repository():
    return dict(REPOSITORY)


@pytest.fixture
def repaired():
    return REPAIRED
