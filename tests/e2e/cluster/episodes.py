"""Manifests for the tests of a real cluster."""

import json
from typing import Any

from tests.e2e.cluster.support import Kubectl, unique, until
from tests.support.calc import BUGGY, SOLUTION

TEST = "from calc import add\n\n\ndef test_add():\n    assert add(2, 3) == 5\n"
FILES = {"calc.py": BUGGY, "test_calc.py": TEST}
REPAIR = {"tool": "rewrite", "arguments": {"path": "calc.py", "start": 2, "end": 2, "new_code": "    return a + b"}}
SUBMIT = {"tool": "submit", "arguments": {}}
STEPS = 24
"""Steps of an episode that counts, unless a test asks for another number."""


def inline_source() -> dict[str, Any]:
    """A source with the buggy repository inside the manifest."""
    return {"files": [{"path": path, "content": content} for path, content in FILES.items()]}


def task_spec(source: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """A task with a failing test. If ``source`` is None, the image contains the repository."""
    spec: dict[str, Any] = {
        "instructions": "add subtracts. Repair it.",
        "scoring": {"failToPass": ["test_calc.py::test_add"]},
        "solution": SOLUTION,
        **fields,
    }
    return spec if source is None else {**spec, "source": source}


def debug_task(name: str, spec: dict[str, Any], **labels: str) -> dict[str, Any]:
    """A DebugTask."""
    return {
        "apiVersion": "dgym.dev/v1alpha1",
        "kind": "DebugTask",
        "metadata": {"name": name, "labels": labels},
        "spec": spec,
    }


def episode(name: str, *, agent: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    """An Episode with the agent ``solution`` or with the given agent."""
    return {
        "apiVersion": "dgym.dev/v1alpha1",
        "kind": "Episode",
        "metadata": {"name": name},
        "spec": {"agent": agent or {"name": "solution"}, **spec},
    }


def driven_episode(name: str, **spec: Any) -> dict[str, Any]:
    """An Episode without an agent, which a client drives from outside."""
    return {**episode(name), "spec": spec}


def replay(*calls: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A replay agent that makes these calls."""
    return {"name": "replay", "parameters": {"trajectory": "\n".join(json.dumps(call) for call in calls)}, **fields}


def shell(command: str) -> dict[str, Any]:
    """A call of bash."""
    return {"tool": "bash", "arguments": {"command": command}}


def counting(steps: int, *, seconds: float = 0.5) -> dict[str, Any]:
    """An agent that appends a line to a file of the workspace in each step, then repairs the bug and submits."""
    lines = [shell(f"echo {number} >> counter.txt; sleep {seconds:g}") for number in range(1, steps + 1)]
    return replay(*lines, shell("cat counter.txt"), REPAIR, SUBMIT, maxSteps=steps + 10)


def episode_set(name: str, **spec: Any) -> dict[str, Any]:
    """An EpisodeSet."""
    return {"apiVersion": "dgym.dev/v1alpha1", "kind": "EpisodeSet", "metadata": {"name": name}, "spec": spec}


def begin(kubectl: Kubectl, steps: int = STEPS, **spec: Any) -> str:
    """Start an episode that counts. Returns its name when it has executed some of its steps."""
    name = unique("counted")
    kubectl.apply(episode(name, agent=counting(steps), task=task_spec(inline_source()), **spec))
    kubectl.reason(name, "Running")
    until(lambda: counted(kubectl, name) >= 3, what="some steps", seconds=60)
    return name


def counted(kubectl: Kubectl, name: str) -> int:
    """Number of lines that the steps have written."""
    pod = kubectl.status(name)["podName"]
    output = kubectl(
        "exec", pod, "-c", "sandbox", "--", "sh", "-c", "wc -l < /workspace/counter.txt", check=False
    ).strip()
    return int(output) if output.isdecimal() else 0
