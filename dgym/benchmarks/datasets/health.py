"""The health of a benchmark's tasks, as ``dgym benchmark health`` found it: remembered beside the imported rows."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from dgym.api import TREATMENTS, Treatment
from dgym.decoding import DECODE_ERRORS
from dgym.session.verification import list_paths, unsteady_tests
from dgym.wire import EndReason

State = Literal["Healthy", "Flaky", "Broken", "NotChecked"]
HEALTHY: Literal["Healthy"] = "Healthy"
NOT_CHECKED: Literal["NotChecked"] = "NotChecked"
STATES: tuple[State, ...] = ("Healthy", "Flaky", "Broken")
"""Those that are remembered."""

_CAUSED_BY_TASK = frozenset(
    {
        EndReason.IMAGE_PULL_FAILED,
        EndReason.INVALID_SPEC,
        EndReason.SANDBOX_START_FAILED,
        EndReason.SETUP_FAILED,
        EndReason.SOURCE_FAILED,
        EndReason.VERIFIER_FAILED,
    }
)


class TaskHealth(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """``Flaky``: equal runs differ. ``Broken``: the gold patch fails, an empty one passes, or it cannot run.

    ``NotChecked``: runs failed for reasons that are not the task's, such as a lost node.
    """

    instance: str
    state: State
    message: str = ""


class HealthRun(msgspec.Struct, frozen=True, kw_only=True):
    """The end of one episode with the empty or the gold patch; ``tests``: outcomes of the tests that count."""

    reason: str
    resolved: bool = False
    score: int = 0
    tests: Mapping[str, str] = msgspec.field(default_factory=dict)
    message: str = ""


def judge_health(instance: str, empty: Sequence[HealthRun], gold: Sequence[HealthRun]) -> TaskHealth:
    """The health of a task by its runs; without a gold patch there are none of it."""
    for run in (*gold, *empty):
        if run.reason in _CAUSED_BY_TASK:
            return TaskHealth(instance=instance, state="Broken", message=f"{run.reason}: {run.message}")
    for run in (*gold, *empty):
        if run.reason == EndReason.CANCELLED or TREATMENTS.get(run.reason) is not Treatment.VERDICT:
            return TaskHealth(instance=instance, state=NOT_CHECKED, message=f"{run.reason}: {run.message}")
    if not empty:
        return TaskHealth(instance=instance, state=NOT_CHECKED, message="no episode was run")
    problems = ["the untouched repository passes"] if all(run.resolved for run in empty) else []
    flaky = _flaky("the untouched repository", empty) + _flaky("the solution", gold)
    if gold and not any(run.resolved for run in gold):
        problems.append(f"the solution does not resolve it: {gold[0].message}")
    if problems:
        return TaskHealth(instance=instance, state="Broken", message="; ".join([*problems, *flaky]))
    return TaskHealth(instance=instance, state="Flaky" if flaky else HEALTHY, message="; ".join(flaky))


def _flaky(what: str, runs: Sequence[HealthRun]) -> list[str]:
    tests = unsteady_tests([run.tests for run in runs])
    if tests:
        return [f"equal runs of {what} differ in {list_paths(tests)}"]
    if len({(run.resolved, run.score) for run in runs}) > 1:
        return [f"equal runs of {what} end differently: {'; '.join(run.message for run in runs)}"]
    return []


def read_health(file: Path) -> dict[str, TaskHealth]:
    """By instance; empty where nothing is known."""
    try:
        found = msgspec.json.decode(file.read_bytes(), type=list[TaskHealth])
    except (OSError, *DECODE_ERRORS):
        return {}
    return {one.instance: one for one in found}


def add_health(file: Path, found: Sequence[TaskHealth]) -> None:
    """Remember the health of these tasks in place of what was known of them; nothing of those that were not checked."""
    known = read_health(file) | {one.instance: one for one in found}
    kept = [known[name] for name in sorted(known) if known[name].state != NOT_CHECKED]
    temporary = file.with_suffix(".new")
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(kept)))
    temporary.replace(file)
