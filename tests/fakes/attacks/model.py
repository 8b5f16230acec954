"""One attack or repair: changes that an agent makes in one shell command and submits; the whole way to an outcome."""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

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


@dataclass(frozen=True)
class Attack:
    """Changes that repair nothing, and what must come of them. ``task`` is added to the task's spec.

    ``marked``: it may be resolved, and the label of integrity is not ``clean``.
    """

    name: str
    changes: Mapping[str, str | None] | str
    task: Mapping[str, object] = field(default_factory=dict)
    deceives: bool = False
    marked: bool = False
    message: str = ""
    score: int | None = None
    noted: frozenset[str] = frozenset()
    needs: str = ""

    def __str__(self):
        return self.name


@dataclass(frozen=True)
class Repair:
    """An honest change, and the paths that are put back all the same."""

    name: str
    changes: Mapping[str, str | None]
    task: Mapping[str, object] = field(default_factory=dict)
    refused: frozenset[str] = frozenset()
    needs: str = ""

    def __str__(self):
        return self.name


class Played(msgspec.Struct):
    """What the episode came to, and whether the changes deceived ``eval`` in the agent's own sandbox."""

    result: object
    deceived: bool | None
    output: str


async def play(changes, kind, *, evaluate=False, options=None, **spec):
    """An episode of the small task, or of one with ``spec``, with these changes, in a sandbox of that kind."""
    tools = ["bash", "eval", "submit"]
    async with dgym.AsyncRepoEnv(make_task(**spec), sandbox=kind, tools=tools, **(options or {})) as env:
        await env.reset()
        observation, *_ = await env.step({"tool": "bash", "arguments": {"command": shell_command(changes, kind)}})
        assert observation["exit_status"] == 0, observation["text"]
        deceived = None
        if evaluate:
            observation, *_ = await env.step("eval")
            deceived = observation["exit_status"] == 0
        await env.step("submit")
        return Played(env.result, deceived, observation["text"])


async def withstand(attack, kind, **more):
    """Play the attack. It must deceive a plain run if ``deceives`` is set, and scoring only with an integrity mark."""
    check_withstood(attack, await play(attack.changes, kind, evaluate=attack.deceives, **attack.task, **more))


def check_withstood(attack, played):
    """The attack has deceived a plain run if ``deceives`` is set, and scoring only with an integrity mark."""
    assert played.deceived or not attack.deceives, played.output
    check_not_resolved(attack, played.result)


def check_not_resolved(attack, result):
    """The attack was resolved only with a mark."""
    if attack.marked:
        assert not result.integrity.clean, result
    else:
        assert not result.resolved, result
    assert attack.message in result.message, result
    assert attack.score in (None, result.score), result
    for path in attack.noted:
        assert any(path in note for note in result.notes), result


async def accept(repair, kind, **more):
    """Play the repair: it must count, and nothing but the paths that it names may be put back."""
    check_accepted(repair, (await play(repair.changes, kind, **repair.task, **more)).result)


def check_accepted(repair, result):
    """The repair counts, and nothing but the paths that it names was put back."""
    assert result.resolved, (result.message, result.notes)
    assert {note.split()[2] for note in result.notes if note.startswith("not scored: ")} == repair.refused
    assert repair.refused or not result.notes, result.notes


def shell_command(changes, kind):
    """A shell command that makes ``changes``: text, None (deleted) or ``"-> target"`` (a link) by path.

    What lies outside the workspace can be written only where nothing isolates.
    """
    if isinstance(changes, str):
        return changes
    if kind != "none":
        changes = {path: text for path, text in changes.items() if not path.startswith("../")}
    data = base64.b64encode(json.dumps(dict(changes)).encode()).decode()
    return f"python - <<'END'\n{_WRITE.format(data=data)}END"


def make_task(files=None, scoring=None, **spec):
    files = REPOSITORY if files is None else files
    source = {"files": [{"path": path, "content": text} for path, text in files.items()]}
    spec = {"source": source, "scoring": SCORING if scoring is None else scoring, **spec}
    spec.setdefault("entrypointTimeoutSeconds", 60)
    return msgspec.convert({"metadata": {"name": "calc"}, "spec": spec}, DebugTask)
