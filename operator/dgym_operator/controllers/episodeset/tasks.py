"""The tasks of a set, frozen in a ConfigMap once and read from it ever after, and the Episodes made for them."""

from datetime import datetime, timedelta

import msgspec

from dgym.api import API_VERSION, DebugTask, DebugTaskSpec, Episode, EpisodeSet, LabelSelector, ObjectMeta
from dgym.api import OwnerReference as Owner
from dgym.api.labels import INDEX, SAMPLE, TASK_UID
from dgym.api.planning import expand
from dgym_operator.controllers.conditions import EPOCH
from dgym_operator.controllers.inputs import EpisodeSetInput, FrozenTasks
from dgym_operator.controllers.plan import CreateEpisode
from dgym_operator.objects import EpisodeSetView, TaskView

KEY = "tasks"
"""Key in the ConfigMap's data; a line for each task: its name, a space, its UID."""
SIZE_LIMIT = 1_000_000
"""Bytes; the API server takes a mebibyte for a whole ConfigMap."""
_NAMED = 3


class NotYet(msgspec.Struct, frozen=True, kw_only=True):
    """Why the tasks cannot be frozen yet: what is missing, or the seconds after which to try again."""

    message: str = ""
    seconds: float | None = None


def tasks_name(episode_set: EpisodeSetView) -> str:
    """Name of the ConfigMap; a set that was deleted and created again has another one."""
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
    """The tasks to freeze, in the order of their indexes."""
    present = {task.metadata.name: task for task in view.tasks if task.metadata.deletion_timestamp is None}
    spec = view.episode_set.spec
    if spec.task_selector is None:
        absent = [reference.name for reference in spec.tasks if reference.name not in present]
        if absent:
            return NotYet(message=_missing(absent, len(spec.tasks)))
        chosen = [present[reference.name] for reference in spec.tasks]
    else:
        chosen = [task for _, task in sorted(present.items()) if spec.task_selector.matches(task.metadata.labels)]
        if not chosen:
            return NotYet(message="taskSelector selects no DebugTask of this namespace; apply some with these labels")
        arriving = _still_arriving(view, chosen, now)
        if arriving is not None:
            return arriving
    frozen = tuple((task.metadata.name, task.metadata.uid) for task in chosen)
    if len(encode_tasks(frozen)[KEY]) > SIZE_LIMIT:
        return NotYet(message=f"{len(frozen)} tasks are too many for one set; make several with fewer tasks each")
    return frozen


def _still_arriving(view: EpisodeSetInput, chosen: list[TaskView], now: datetime) -> NotYet | None:
    """Wait while new tasks arrive: those applied together with the set may not all have been observed."""
    newest = max(task.metadata.creation_timestamp or EPOCH for task in chosen)
    left = (newest + timedelta(seconds=view.policy.settle_seconds) - now).total_seconds()
    return NotYet(seconds=left) if left > 0 else None


def _missing(names: list[str], total: int) -> str:
    shown = ", ".join(names[:_NAMED]) + (", …" if len(names) > _NAMED else "")
    return f"{len(names)} of {total} tasks are not in this namespace: {shown}; apply them, or correct tasks"


def child_manifest(episode_set: EpisodeSetView, create: CreateEpisode) -> Episode:
    """The Episode as a local run of the set's manifest would plan it, controlled by the set."""
    metadata, spec = episode_set.metadata, episode_set.spec
    planned_set = EpisodeSet(
        metadata=ObjectMeta(name=metadata.name, namespace=metadata.namespace or None, labels=metadata.labels),
        spec=msgspec.structs.replace(spec, tasks=(), task_selector=LabelSelector(), samples=1),
    )
    task = DebugTask(metadata=ObjectMeta(name=create.task), spec=DebugTaskSpec())
    planned = expand(planned_set, [task])[0].episode
    owner = Owner(api_version=API_VERSION, kind="EpisodeSet", name=metadata.name, uid=metadata.uid, controller=True)
    marks = {INDEX: str(create.index), SAMPLE: str(create.sample), TASK_UID: create.task_uid}
    return msgspec.structs.replace(
        planned,
        metadata=msgspec.structs.replace(
            planned.metadata,
            name=create.name,
            labels={**planned.metadata.labels, **marks},
            owner_references=(owner,),
        ),
        spec=msgspec.structs.replace(planned.spec, priority=spec.priority or planned.spec.priority),
    )
