"""What the operator knows of the cluster: the watched objects, found by what decisions ask for.

Everything is a narrow view; ten thousand episodes with their pods take some tens of megabytes. All that is written
comes back in here at once, so that no decision is made without the writes before it.
"""

from collections.abc import Hashable, Iterable

from dgym.api import ConditionType
from dgym_operator.agents import Agents
from dgym_operator.execute_memory import Memory
from dgym_operator.kube import Clock, Store
from dgym_operator.reconcile.conditions import is_true
from dgym_operator.reconcile.inputs import EpisodeInput, TaskState
from dgym_operator.reconcile.policy import Policy
from dgym_operator.reconcile.views import (
    ConfigMapView,
    EpisodeSetView,
    EpisodeView,
    Object,
    Pod,
    TaskView,
)


class World:
    """Stores, and indexes over them."""

    def __init__(self, clock: Clock, agents: Agents, policy: Policy) -> None:
        self.clock = clock
        self.agents = agents
        self.policy = policy
        self.memory = Memory()
        self.episodes: Store[EpisodeView] = Store(clock)
        self.sets: Store[EpisodeSetView] = Store(clock)
        self.tasks: Store[TaskView] = Store(clock)
        self.pods: Store[Pod] = Store(clock)
        self.agent_pods: Store[Pod] = Store(clock)
        self.config_maps: Store[ConfigMapView] = Store(clock)
        self.episodes_by_uid = self.episodes.index(lambda episode: (episode.metadata.uid,))
        self.episodes_by_agent = self.episodes.index(_agent_of)
        self.episodes_by_task = self.episodes.index(_task_of)
        self.pods_by_owner = self.pods.index(_owner_of)
        self.children = self.episodes.index(_owner_of)
        self.config_maps_by_owner = self.config_maps.index(_owner_of)
        self.sets_by_namespace = self.sets.index(lambda each: (each.metadata.namespace,))
        self.tasks_by_namespace = self.tasks.index(lambda task: (task.metadata.namespace,))

    def episode_of(self, uid: str) -> EpisodeView | None:
        """The Episode of that UID."""
        return next(iter(self.episodes_by_uid[uid]), None)

    def set_of(self, episode: EpisodeView) -> EpisodeSetView | None:
        """The set that controls the Episode."""
        owner = episode.metadata.controller
        if owner is None or owner.kind != "EpisodeSet":
            return None
        found = self.sets.get((episode.metadata.namespace, owner.name))
        return found if found is not None and found.metadata.uid == owner.uid else None

    def episode_input(self, episode: EpisodeView, *, may_create: bool) -> EpisodeInput:
        """All that bears on an Episode."""
        uid = episode.metadata.uid
        return EpisodeInput(
            episode=episode,
            pods=self.pods_by_owner[uid],
            task=self.task_state(episode),
            may_create=may_create,
            agent=self.agents.view(episode),
            absent=self.memory.absent(uid),
            policy=self.policy,
        )

    def task_state(self, episode: EpisodeView) -> TaskState:
        """Whether the Episode has its task."""
        spec = episode.spec
        if spec.task is not None:
            return TaskState(state="inline", entrypoint_timeout_seconds=spec.task.entrypoint_timeout_seconds)
        found = self.tasks.get((episode.metadata.namespace, spec.task_ref.name)) if spec.task_ref is not None else None
        if found is None:
            return TaskState(state="missing")
        seconds = found.spec.entrypoint_timeout_seconds
        return TaskState(state="found", uid=found.metadata.uid, entrypoint_timeout_seconds=seconds)


def is_finished(episode: EpisodeView) -> bool:
    """Whether it has its end."""
    return is_true(episode.status.conditions, ConditionType.FINISHED)


def _owner_of(item: Object) -> Iterable[Hashable]:
    owner = item.metadata.controller
    return (owner.uid,) if owner is not None else ()


def _agent_of(episode: EpisodeView) -> Iterable[Hashable]:
    assignment = episode.status.assignment
    return (assignment.agent_pod_uid,) if assignment is not None and not is_finished(episode) else ()


def _task_of(episode: EpisodeView) -> Iterable[tuple[str, str]]:
    task = episode.spec.task_ref
    return ((episode.metadata.namespace, task.name),) if task is not None and not is_finished(episode) else ()
