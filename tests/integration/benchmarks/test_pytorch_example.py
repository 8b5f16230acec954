"""Tests of the training script under examples/pytorch: pdb shows its bug while it runs. They need torch."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dgym.api import DebugTask, Episode, load
from dgym.env import AsyncRepoEnv
from dgym.wire import EndReason
from dgym.workspace.patches import FileVersion, apply_patch
from tests.support.required import absent

MANIFEST = Path(__file__).parents[3] / "examples" / "pytorch" / "pytorch.yaml"
VARIABLE = "DGYM_TEST_TORCH_PYTHON"


@pytest.fixture(scope="module")
def task():
    task, episode = load(MANIFEST)
    assert isinstance(task, DebugTask)
    assert isinstance(episode, Episode)
    return task


@pytest.fixture(scope="module")
def python():
    """An interpreter with torch and pytest."""
    given = os.environ.get(VARIABLE, sys.executable)
    looks = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
    if subprocess.run([given, "-c", looks], check=False).returncode != 0:
        absent("torch", f"{given} has no torch; {VARIABLE} names an interpreter that has")
    return given


def test_the_solution_applies_to_the_files_of_the_example(task):
    root = MANIFEST.parent / "regression"
    files = {path.name: FileVersion(path.read_bytes()) for path in root.glob("*.py")}
    changed = apply_patch(task.spec.solution, files.get)
    assert b"squeeze" in changed["model.py"].data


async def test_pdb_shows_the_wrong_shape_that_causes_no_error(task, python):
    async with AsyncRepoEnv(task, python=python) as env:
        await env.reset()
        for command in ("b train.py:10", "c"):
            await env.step({"tool": "pdb", "arguments": {"command": command}})
        shown, *_ = await env.step({"tool": "pdb", "arguments": {"command": "p (predicted - measured).shape"}})
        assert "torch.Size([32, 32])" in shown["text"]
        untouched = await env.finish()
        await env.reset()
        await env.apply_solution()
        solved = await env.finish()
    assert (untouched.reason, untouched.score) == (EndReason.UNRESOLVED, 2)
    assert solved.reason is EndReason.RESOLVED, solved.message
