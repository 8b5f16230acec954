"""Computes the episodes of a set, the task of an episode, and the digest that identifies a stored result."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from dgym.api._episode import AgentSpec, Episode, TaskRef, ToolSpec
from dgym.api._episodeset import Arm, EpisodeSet, EpisodeSetSpec
from dgym.api._fields import ARM_LABEL, INDEX_LABEL, SAMPLE_LABEL, SET_LABEL, TASK_LABEL, ObjectMeta
from dgym.api._task import DebugTask, DebugTaskSpec
from dgym.errors import ManifestError, nearest
from dgym.wire import read_cost

_Task = TypeVar("_Task")

NAME_LIMIT = 52
"""Longest name of an episode that a set creates. The pod's name, which becomes a host name, also has the attempt."""


class PlannedEpisode(msgspec.Struct, frozen=True, kw_only=True):
    """An episode and its task. ``index`` is as in ``place_of``. Outside of a set, ``index`` and ``sample`` are 0."""

    episode: Episode
    task: DebugTask
    index: int = 0
    sample: int = 0
    arm: str = ""

    @property
    def digest(self) -> str:
        """The digest of task, agent, sample and tools. It does not depend on the episode's name."""
        return digest(self.task, self.episode.spec.agent, self.sample, tools=self.episode.spec.tools)


def digest(
    task: DebugTask | DebugTaskSpec,
    agent: AgentSpec | None,
    sample: int = 0,
    *,
    tools: Sequence[str | ToolSpec] = (),
) -> str:
    """Return a short digest of task, agent, sample and tools.

    A stored result with an equal digest belongs to this run.

    Fields with their default value do not count, so that new fields do not change existing digests.
    """
    spec = task.spec if isinstance(task, DebugTask) else task
    parts = {"task": _canonical(spec), "agent": _canonical(agent), "sample": sample, "tools": _canonical(tuple(tools))}
    encoded = msgspec.json.encode({name: part for name, part in parts.items() if part}, order="sorted")
    return hashlib.sha256(encoded).hexdigest()[:16]


def _canonical(value: Any) -> Any:
    """Return plain data without the fields that equal their default, at any depth."""
    if isinstance(value, msgspec.Struct):
        fields = msgspec.structs.fields(value)
        pairs = ((field, getattr(value, field.name)) for field in fields)
        return {field.encode_name: _canonical(item) for field, item in pairs if item != _default(field)}
    if isinstance(value, tuple | list):
        return [_canonical(item) for item in value]
    return value


def _default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default


def find_task(episode: Episode, tasks: Iterable[DebugTask]) -> DebugTask:
    """Return the episode's task: the inline task, named like the episode, or the task that ``taskRef`` names.

    Raises:
        ManifestError: A task of that name does not exist. The message suggests the nearest name.
    """
    spec, metadata = episode.spec, episode.metadata
    if spec.task is not None:
        return DebugTask(metadata=ObjectMeta(name=metadata.name, namespace=metadata.namespace), spec=spec.task)
    if spec.task_ref is None:
        raise ManifestError(f"Episode {metadata.name}: spec.taskRef: is missing; give exactly one of taskRef and task")
    return _by_name(spec.task_ref, tasks, f"Episode {metadata.name}: spec.taskRef.name")


def expand(episode_set: EpisodeSet, tasks: Iterable[DebugTask]) -> list[PlannedEpisode]:
    """Return all episodes of a set, ordered by index. Their names depend only on the set and the index.

    Raises:
        ManifestError: A task is missing, or the selector does not select any task.
    """
    chosen, spec = _chosen(episode_set, list(tasks)), episode_set.spec
    places = (place_of(spec, len(chosen), index) for index in range(episodes_of(spec, len(chosen))))
    return [_planned(episode_set, chosen[place.task], index, place) for index, place in enumerate(places)]


def with_cost_limit(agent: AgentSpec, limit: str | None) -> AgentSpec:
    """Return the agent with a ``costLimit`` of at most ``limit``, the limit of its set.

    None means that it has no limit.
    """
    own = agent.cost_limit
    if limit is None or (own is not None and read_cost(own) <= read_cost(limit)):
        return agent
    return msgspec.structs.replace(agent, cost_limit=limit)


class Place(NamedTuple):
    """Task, sample and arm of an episode of a set. Tasks are numbered in the order of the set."""

    task: int
    sample: int
    arm: Arm | None = None


def place_of(spec: EpisodeSetSpec, tasks: int, index: int) -> Place:
    """Return the place of the episode with this index in a set with this number of tasks.

    Index = task x samples + sample. With arms it is (sample x tasks + task) x arms + arm: the episodes of one task and
    sample start next to each other, so that changes over time (a model's load, a busy node) affect all arms alike.
    """
    if not spec.arms:
        return Place(*divmod(index, spec.samples))
    number, arm = divmod(index, len(spec.arms))
    sample, task = divmod(number, tasks)
    return Place(task, sample, spec.arms[arm])


def episodes_of(spec: EpisodeSetSpec, tasks: int) -> int:
    """Return the number of episodes of a set with this number of tasks."""
    return tasks * spec.samples * max(1, len(spec.arms))


def _chosen(episode_set: EpisodeSet, tasks: list[DebugTask]) -> list[DebugTask]:
    spec, name = episode_set.spec, episode_set.metadata.name
    if spec.task_selector is None:
        return [
            _by_name(ref, tasks, f"EpisodeSet {name}: spec.tasks[{index}].name") for index, ref in enumerate(spec.tasks)
        ]
    selected = [task for task in tasks if spec.task_selector.matches(task.metadata.labels)]
    if not selected:
        remedy = "give manifests of DebugTasks with these labels, or change the selector"
        raise ManifestError(f"EpisodeSet {name}: spec.taskSelector: selects none of {len(tasks)} tasks; {remedy}")
    return in_order_of_use(sorted(selected, key=lambda task: task.metadata.name), lambda task: task.spec.image)


def in_order_of_use(tasks: Sequence[_Task], image: Callable[[_Task], str | None]) -> list[_Task]:
    """Return the tasks in their order, but with tasks of one image next to each other, so that it is pulled once."""
    first: dict[str | None, int] = {}
    return sorted(tasks, key=lambda task: first.setdefault(image(task), len(first)))


def _by_name(ref: TaskRef, tasks: Iterable[DebugTask], where: str) -> DebugTask:
    known = {task.metadata.name: task for task in tasks}
    if ref.name in known:
        return known[ref.name]
    guess = nearest(ref.name, known)
    remedy = f"did you mean '{guess}'?" if guess else "also give the manifest that contains it"
    raise ManifestError(f"{where}: the DebugTask '{ref.name}' was not found; {remedy}")


def _planned(episode_set: EpisodeSet, task: DebugTask, index: int, place: Place) -> PlannedEpisode:
    metadata, spec = episode_set.metadata, episode_set.spec
    marks = {
        SET_LABEL: label_value(metadata.name),
        TASK_LABEL: label_value(task.metadata.name),
        INDEX_LABEL: str(index),
        SAMPLE_LABEL: str(place.sample),
    }
    template = spec.template
    if place.arm is not None:
        marks[ARM_LABEL] = place.arm.name
        template = place.arm.applied_to(template)
    episode = Episode(
        metadata=ObjectMeta(
            name=child_name(metadata.name, index, [arm.name for arm in spec.arms]),
            namespace=metadata.namespace,
            labels={**metadata.labels, **marks},
        ),
        spec=msgspec.structs.replace(template, task_ref=TaskRef(name=task.metadata.name)),
    )
    arm = "" if place.arm is None else place.arm.name
    return PlannedEpisode(episode=episode, task=task, index=index, sample=place.sample, arm=arm)


def child_name(set_name: str, index: int, arms: Sequence[str] = ()) -> str:
    """Return ``<set>-<index>`` or, in a set with arms, ``<set>-<arm>-<number>``, with at most 52 characters.

    The episodes of one task and sample have the same number in all arms. A long name is shortened and ends with a
    digest.
    """
    if arms:
        index, arm = divmod(index, len(arms))
        set_name = f"{set_name}-{arms[arm]}"
    return _shorten(set_name, NAME_LIMIT - len(f"-{index}")) + f"-{index}"


def driver_secret_name(pod_name: str, episode_uid: str) -> str:
    """Return the name of the external driver's Secret for the attempt with that pod."""
    return f"{pod_name}-driver-{episode_uid[:8]}"


def label_value(name: str) -> str:
    """Return a name as the value of a label, with at most 63 characters.

    A longer name is shortened as in ``child_name``.
    """
    return _shorten(name, 63)


def _shorten(name: str, limit: int) -> str:
    if len(name) <= limit:
        return name
    return f"{name[: limit - 9].rstrip('-.')}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
