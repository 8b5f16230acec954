"""Fixtures: real results of a set with an agent that repairs and an agent that gives up, and of a scripted model."""

import fcntl
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.openai_server import Answer, Call, FakeOpenAI
from tests.support.command import dgym

MANIFEST = """
apiVersion: dgym.dev/v1alpha1
kind: DebugTask
metadata:
  name: calc
spec:
  instructions: add() is wrong.
  entrypoint: python check.py
  source:
    files:
      - {path: calc.py, content: "def add(a, b):\\n    total = a\\n    total -= b\\n    return total\\n"}
      - {path: check.py, content: "from calc import add\\nassert add(2, 3) == 5, add(2, 3)\\n"}
---
apiVersion: dgym.dev/v1alpha1
kind: EpisodeSet
metadata:
  name: calc
spec:
  tasks: [{name: calc}]
  samples: 2
  arms:
    - name: repair
      agent: {parameters: {trajectory: repair.jsonl}}
    - name: give-up
      agent: {parameters: {trajectory: give-up.jsonl}}
  template:
    agent: {name: replay}
"""
REPAIR = """\
{"tool": "eval", "arguments": {}}
{"tool": "view", "arguments": {"path": "calc.py"}}
{"tool": "pdb", "arguments": {"command": "b calc.py:3"}}
{"tool": "pdb", "arguments": {"command": "c"}}
{"tool": "pdb", "arguments": {"command": "p a, b, total"}}
{"tool": "rewrite", "arguments": {"path": "calc.py", "start": 3, "end": 3, "new_code": "    total += b"}}
{"tool": "eval", "arguments": {}}
{"tool": "submit", "arguments": {}}
"""
GIVE_UP = """\
{"tool": "eval", "arguments": {}}
{"tool": "view", "arguments": {"path": "calc.py"}}
{"tool": "view", "arguments": {"path": "check.py"}}
{"tool": "submit", "arguments": {"message": "I give up."}}
"""


WALKS = {"repair": REPAIR, "give-up": GIVE_UP}


@pytest.fixture(scope="session")
def results(tmp_path_factory) -> Path:
    """Results of a set with two arms in the run ``nightly``. They are made once for all processes of the test run."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / "ui"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "results").is_dir():
            made = dgym(*write_set(folder, folder / "made" / "nightly"), cwd=folder)
            assert made.returncode == 0, made.stdout + made.stderr
            (folder / "made").rename(folder / "results")
    return folder / "results"


def write_set(folder: Path, results: Path) -> list[str]:
    """Write the set, and return arguments for ``dgym`` that run its episodes one after the other."""
    (folder / "set.yaml").write_text(MANIFEST)
    for name, walk in WALKS.items():
        (folder / f"{name}.jsonl").write_text(walk)
    return ["run", "set.yaml", "--sandbox", "none", "--results", str(results), "--workers", "1"]


SCRIPT = [
    Answer(reasoning="What is there?", text="I look.", calls=(Call("view", {"path": "calc.py"}), Call("listdir", {}))),
    Answer(text="</pre><script>window.hacked = 8</script>"),
    Answer(calls=(Call("rewrite", {"path": "calc.py", "start": 3, "end": 3, "new_code": "    total += b"}),)),
    Answer(calls=(Call("submit", {}),)),
]


@pytest.fixture
def asked(tmp_path) -> tuple[Path, list[dict[str, Any]]]:
    """Results of an episode with a scripted model, and the requests that the model's server received."""
    task, _, _ = MANIFEST.partition("---")
    (tmp_path / "task.yaml").write_text(task)
    with FakeOpenAI(script=SCRIPT).in_thread() as server:
        (tmp_path / "llm.yaml").write_text(json.dumps({"m": {"model": "scripted", "endpoint": server.url}}))
        arguments = ["run", "task.yaml", "--agent", "debug_agent", "-p", "agent.model=m", "--sandbox", "none"]
        arguments += ["--llm-config", "llm.yaml", "--results", "results"]
        done = dgym(*arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    return tmp_path / "results", [received.body for received in server.received]
