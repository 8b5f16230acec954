"""The moments of an episode at which a fault may come, and episodes that stay at one of them for a while.

The model is scripted: it thinks, a step sleeps, or the tests do, for ``HOLD_SECONDS`` where the fault is to come.
After the close the episode stays until the test opens its directory in the results store.
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
"""How long each step takes of an episode that stays nowhere."""
STEP_PROGRAM = "sleep"
"""What runs in the sandbox meanwhile."""
_HELD_STEP = 2
_SCORING = "/dev/shm/scoring"


class Moment(StrEnum):
    """When."""

    BEFORE_FIRST_STEP = "before the first step"
    DURING_STEP = "during a step"
    BETWEEN_STEPS = "between steps"
    DURING_CLOSE = "during close"
    AFTER_CLOSE = "after close, before release"


def held_episode(name: str, moment: Moment | None, **spec: Any) -> dict[str, Any]:
    """An episode whose every step leaves a line in a file, and that stays at the moment; None: at each step a bit."""
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
    # A node of two CPUs takes the pods of all slots and those that start ahead of them.
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
    """Whether the sidecar has answered a call, by its log."""
    pod = kubectl.status(name).get("podName")
    log = kubectl("logs", pod, "--container=sidecar", check=False) if pod else ""
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    return any(line.get("path") == path and line.get("code") == "ok" for line in lines)


def counted(kubectl: Kubectl, name: str) -> int:
    """How many lines the steps have written."""
    output = _execute(kubectl, name, "sandbox", "wc -l < /workspace/counter.txt").strip()
    return int(output) if output.isdecimal() else 0


def _is_scoring(kubectl: Kubectl, name: str) -> bool:
    return _execute(kubectl, name, "verifier", f"test -e {_SCORING} && echo yes").strip() == "yes"


def _execute(kubectl: Kubectl, name: str, container: str, command: str) -> str:
    pod = kubectl.status(name).get("podName")
    return kubectl("exec", pod, "-c", container, "--", "sh", "-c", command, check=False) if pod else ""


class Gate:
    """The results directory, in which an attempt's own can be closed to the agents and opened again."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def attempts(self, namespace: str, name: str) -> list[Path]:
        """The directories of an episode's attempts."""
        return sorted((self.root / namespace / name).glob("*/*"))

    def close(self, kubectl: Kubectl, name: str) -> None:
        """Refuse new files in the directory of the first attempt, as soon as there is its trajectory."""
        found = until(
            lambda: list((self.root / kubectl.namespace / name).glob("*/1/trajectory.jsonl")), what=f"{name}: a record"
        )
        os.chown(found[0].parent, 0, 0)
        found[0].parent.chmod(0o555)

    def open(self, kubectl: Kubectl, name: str) -> None:
        """Take new files."""
        for directory in self.attempts(kubectl.namespace, name):
            directory.chmod(0o777)
