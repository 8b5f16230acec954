"""Moments of an episode at which a fault may occur, and episodes that stay at a moment for a while.

The model is scripted. At the moment of the fault its answer, a step or the tests take ``HOLD_SECONDS``.
After the close the episode waits until the test opens its directory in the results store.
"""

import json
import os
from enum import StrEnum
from pathlib import Path
from typing import Any

from tests.e2e.cluster.episodes import REPAIR, SUBMIT, episode, shell, task_spec
from tests.e2e.cluster.support import Kubectl, until
from tests.support.calc import BUGGY

STEPS = 4
HOLD_SECONDS = 25
STEP_SECONDS = 5
"""Duration of each step of an episode that does not stay at a moment."""
STEP_PROGRAM = "sleep"
"""Name of the program that runs in the sandbox during a step."""
_HELD_STEP = 2
_SCORING = "/dev/shm/scoring"


class Moment(StrEnum):
    """Moments of an episode at which a fault may occur."""

    BEFORE_FIRST_STEP = "before the first step"
    DURING_STEP = "during a step"
    BETWEEN_STEPS = "between steps"
    DURING_CLOSE = "during close"
    AFTER_CLOSE = "after close, before release"


def held_episode(name: str, moment: Moment | None, **spec: Any) -> dict[str, Any]:
    """An episode that appends a line to a file in each step and stays at ``moment``. None: it pauses in each step."""
    pause = f"; {STEP_PROGRAM} {STEP_SECONDS}" if moment is None else ""
    calls = [shell(f"echo {number} >> counter.txt{pause}") for number in range(1, STEPS + 1)]
    if moment is Moment.BEFORE_FIRST_STEP:
        calls[0]["think"] = HOLD_SECONDS
    elif moment is Moment.BETWEEN_STEPS:
        calls[_HELD_STEP]["think"] = HOLD_SECONDS
    elif moment is Moment.DURING_STEP:
        calls[_HELD_STEP - 1] = shell(f"echo {_HELD_STEP} >> counter.txt; {STEP_PROGRAM} {HOLD_SECONDS}")
    script = json.dumps([*calls, shell("cat counter.txt"), REPAIR, SUBMIT])
    files = {"calc.py": BUGGY, "test_calc.py": _test(HOLD_SECONDS if moment is Moment.DURING_CLOSE else 0)}
    source = {"files": [{"path": path, "content": content} for path, content in files.items()]}
    task = task_spec(source, instructions=f"<script>{script}</script>")
    agent = {"name": "debug_agent", "model": "scripted", "maxSteps": STEPS + 10}
    # Small requests: a node with two CPUs must have room for the pods of all slots and the pods started in advance.
    little = {"resources": {"requests": {"cpu": "10m", "memory": "64Mi"}}}
    return episode(name, agent=agent, task=task, tools=["bash", "rewrite", "submit"], podOverrides=little, **spec)


def _test(seconds: float) -> str:
    return (
        "import pathlib, time\nfrom calc import add\n\n\ndef test_add():\n"
        f"    pathlib.Path({_SCORING!r}).touch()\n    time.sleep({seconds})\n    assert add(2, 3) == 5\n"
    )


def reach(kubectl: Kubectl, name: str, moment: Moment, store: "Gate") -> None:
    """Wait until the episode is at the moment."""
    try:
        if moment is Moment.BEFORE_FIRST_STEP:
            until(lambda: answered(kubectl, name, "/v1/reset"), what=f"{name}: the reset")
        elif moment is Moment.DURING_STEP:
            until(lambda: counted(kubectl, name) == _HELD_STEP, what=f"{name}: the step that sleeps")
        elif moment is Moment.BETWEEN_STEPS:
            until(lambda: answered(kubectl, name, f"/v1/steps/{_HELD_STEP}"), what=f"{name}: the step before")
        elif moment is Moment.DURING_CLOSE:
            until(lambda: _is_scoring(kubectl, name), what=f"{name}: the tests")
        else:
            store.close(kubectl, name)
            until(lambda: kubectl.status(name).get("reason") == "ResultStoreUnavailable", what=f"{name}: the store")
    except AssertionError as error:
        raise AssertionError(f"{error}\n{kubectl.explain(name)}") from None


def answered(kubectl: Kubectl, name: str, path: str) -> bool:
    """True if the sidecar's log shows that it has answered the call."""
    pod = kubectl.status(name).get("podName")
    log = kubectl("logs", pod, "--container=sidecar", check=False) if pod else ""
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    return any(line.get("path") == path and line.get("code") == "ok" for line in lines)


def counted(kubectl: Kubectl, name: str) -> int:
    """Number of lines that the steps have written."""
    output = _execute(kubectl, name, "sandbox", "wc -l < /workspace/counter.txt").strip()
    return int(output) if output.isdecimal() else 0


def _is_scoring(kubectl: Kubectl, name: str) -> bool:
    return _execute(kubectl, name, "verifier", f"test -e {_SCORING} && echo yes").strip() == "yes"


def _execute(kubectl: Kubectl, name: str, container: str, command: str) -> str:
    pod = kubectl.status(name).get("podName")
    return kubectl("exec", pod, "-c", container, "--", "sh", "-c", command, check=False) if pod else ""


class Gate:
    """The results directory. The directory of an attempt in it can be made read-only and writable again."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def attempts(self, namespace: str, name: str) -> list[Path]:
        """The directories of an episode's attempts."""
        return sorted((self.root / namespace / name).glob("*/*"))

    def close(self, kubectl: Kubectl, name: str) -> None:
        """Make the directory of the first attempt read-only, as soon as it has a trajectory."""
        found = until(
            lambda: list((self.root / kubectl.namespace / name).glob("*/1/trajectory.jsonl")), what=f"{name}: a record"
        )
        os.chown(found[0].parent, 0, 0)
        found[0].parent.chmod(0o555)

    def open(self, kubectl: Kubectl, name: str) -> None:
        """Make the directories of all attempts writable."""
        for directory in self.attempts(kubectl.namespace, name):
            directory.chmod(0o777)
