"""The list of tasks that a set keeps to: chosen once, written into a ConfigMap, read from there ever after."""

from datetime import datetime, timedelta

import msgspec

from dgym_operator.reconcile.setinputs import EpisodeSetInput, FrozenTasks
from dgym_operator.reconcile.views import EpisodeSetView, TaskView
from dgym_operator.reconcile.waiting import EPOCH

KEY = "tasks"
"""In the ConfigMap's data; a line for each task: its name, a space, its UID."""
SIZE_LIMIT = 1_000_000
"""Bytes; the API server takes a mebibyte for a whole ConfigMap."""
_NAMED = 3


class NotYet(msgspec.Struct, frozen=True, kw_only=True):
    """The tasks cannot be frozen now: what is missing, or in how many seconds it may be otherwise."""

    message: str = ""
    seconds: float | None = None


def tasks_name(episode_set: EpisodeSetView) -> str:
    """What the ConfigMap is called; a set that was deleted and made again does not meet its predecessor's."""
    return f"{episode_set.metadata.name[:200].rstrip('-.')}-tasks-{episode_set.metadata.uid[:8]}"


def encode_tasks(tasks: FrozenTasks) -> dict[str, str]:
    """The ConfigMap's data."""
    return {KEY: "".join(f"{name} {uid}\n" for name, uid in tasks)}


def decode_tasks(data: dict[str, str]) -> FrozenTasks | None:
    """The tasks, or None when the data hold no such list."""
    pairs = [line.split(" ") for line in data.get(KEY, "").splitlines()]
    if not pairs or any(len(pair) != 2 for pair in pairs):
        return None
    return tuple((name, uid) for name, uid in pairs)


def choose(view: EpisodeSetInput, now: datetime) -> FrozenTasks | NotYet:
    """The tasks in the order of their indexes."""
    there = {task.metadata.name: task for task in view.tasks if task.metadata.deletion_timestamp is None}
    spec = view.episode_set.spec
    if spec.task_selector is None:
        absent = [reference.name for reference in spec.tasks if reference.name not in there]
        if absent:
            return NotYet(message=_missing(absent, len(spec.tasks)))
        chosen = [there[reference.name] for reference in spec.tasks]
    else:
        chosen = [task for _, task in sorted(there.items()) if spec.task_selector.matches(task.metadata.labels)]
        if not chosen:
            return NotYet(message="taskSelector selects no DebugTask of this namespace; apply some with these labels")
        unsettled = _unsettled(view, chosen, now)
        if unsettled is not None:
            return unsettled
    frozen = tuple((task.metadata.name, task.metadata.uid) for task in chosen)
    if len(encode_tasks(frozen)[KEY]) > SIZE_LIMIT:
        return NotYet(message=f"{len(frozen)} tasks are too many for one set; make several with fewer tasks each")
    return frozen


def _unsettled(view: EpisodeSetInput, chosen: list[TaskView], now: datetime) -> NotYet | None:
    """Tasks that are being applied together with the set may still be on their way: wait until no more come."""
    newest = max(task.metadata.creation_timestamp or EPOCH for task in chosen)
    left = (newest + timedelta(seconds=view.policy.settle_seconds) - now).total_seconds()
    return NotYet(seconds=left) if left > 0 else None


def _missing(names: list[str], total: int) -> str:
    shown = ", ".join(names[:_NAMED]) + (", …" if len(names) > _NAMED else "")
    return f"{len(names)} of {total} tasks are not in this namespace: {shown}; apply them, or correct tasks"
