"""The watched objects in stores, indexed by what decisions ask for, and the inputs of decisions made of them.

Objects are narrow structs: ten thousand episodes with their pods take some tens of megabytes. The answer to every write
is put into its store at once, so that no decision is made without the writes before it.
"""

from collections.abc import Hashable, Iterable

from dgym.kube import Clock, Store
from dgym_operator.cache.agents import Agents
from dgym_operator.cache.memory import Memory
from dgym_operator.controllers import EpisodeInput, EpisodeSetInput, Policy, TaskState, attempt_of
from dgym_operator.controllers.episodeset import decode_tasks, is_counted, tasks_name
from dgym_operator.objects import ConfigMapView, EpisodeSetView, EpisodeView, Pod, TaskView, WatchedObject

_SET = "EpisodeSet"


class Cache:
    """Stores of watched objects, and indexes over them."""

    def __init__(self, clock: Clock, agents: Agents, policy: Policy) -> None:
        self.clock = clock
        self.agents = agents
        self.policy = policy
        self.memory = Memory()
        self.key_id = ""
        """Name of the cluster's key, once this replica leads."""
        self.episodes: Store[EpisodeView] = Store(clock)
        self.sets: Store[EpisodeSetView] = Store(clock)
        self.tasks: Store[TaskView] = Store(clock)
        self.pods: Store[Pod] = Store(clock)
        self.agent_pods: Store[Pod] = Store(clock)
        self.config_maps: Store[ConfigMapView] = Store(clock)
        self.episodes_by_uid = self.episodes.index(lambda episode: (episode.metadata.uid,))
        self.episodes_by_namespace = self.episodes.index(lambda episode: (episode.metadata.namespace,))
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
        if owner is None or owner.kind != _SET:
            return None
        found = self.sets.get((episode.metadata.namespace, owner.name))
        return found if found is not None and found.metadata.uid == owner.uid else None

    def episode_input(self, episode: EpisodeView, *, may_create: bool) -> EpisodeInput:
        """The input of a decision about the Episode."""
        uid = episode.metadata.uid
        return EpisodeInput(
            episode=episode,
            pods=self._pods_of(uid),
            task=self.task_state(episode),
            may_create=may_create,
            agent=self.agents.view(episode),
            cancelled=self.memory.cancelled(uid, episode.status.attempt),
            absent=self.memory.absent(uid),
            create_failure=self.memory.failure(uid, episode.status.attempt + 1),
            disrupted_attempt=self.memory.disrupted_attempt(uid),
            owned_by_set=_is_child(episode),
            counted=self._is_counted(episode),
            key_id=self.key_id,
            policy=self.policy,
        )

    def set_input(self, episode_set: EpisodeSetView) -> EpisodeSetInput:
        """The input of a decision about the EpisodeSet."""
        uid, namespace = episode_set.metadata.uid, episode_set.metadata.namespace
        lists = (decode_tasks(found.data) for found in self.config_maps_by_owner[uid])
        frozen = next((tasks for tasks in lists if tasks is not None), None)
        return EpisodeSetInput(
            episode_set=episode_set,
            frozen=frozen,
            list_absent=tasks_name(episode_set) in self.memory.absent(uid),
            tasks=self.tasks_by_namespace[namespace] if frozen is None else (),
            children=self.children[uid],
            refused=self.memory.refusal(uid),
            creating=self.memory.creating(uid, self.clock.now()),
            policy=self.policy,
        )

    def task_state(self, episode: EpisodeView) -> TaskState:
        """The state of the Episode's task."""
        spec = episode.spec
        if spec.task is not None:
            return TaskState(state="inline", entrypoint_timeout_seconds=spec.task.entrypoint_timeout_seconds)
        found = self.tasks.get((episode.metadata.namespace, spec.task_ref.name)) if spec.task_ref is not None else None
        if found is None:
            return TaskState(state="missing")
        seconds = found.spec.entrypoint_timeout_seconds
        return TaskState(state="found", uid=found.metadata.uid, entrypoint_timeout_seconds=seconds)

    def _pods_of(self, uid: str) -> tuple[Pod, ...]:
        pods, last = self.pods_by_owner[uid], self.memory.last_pod(uid)
        return pods if last is None or any(pod.key == last.key for pod in pods) else (*pods, last)

    def is_of_current_attempt(self, episode: EpisodeView, pod: Pod) -> bool:
        """Whether the pod is of the current attempt, or else of the next one, of an unfinished Episode."""
        status = episode.status
        attempt = status.attempt if status.pod_name is not None else status.attempt + 1
        return not episode.is_finished and attempt_of(pod) == attempt

    def _is_counted(self, episode: EpisodeView) -> bool:
        # Only where it matters: parsing a set's indexes in every reconcile of every child would add up.
        if episode.spec.ttl_seconds_after_finished is None or not episode.is_finished:
            return False
        episode_set = self.set_of(episode)
        return episode_set is not None and is_counted(episode_set.status, episode)


def _is_child(episode: EpisodeView) -> bool:
    owner = episode.metadata.controller
    return owner is not None and owner.kind == _SET


def _owner_of(item: WatchedObject) -> Iterable[Hashable]:
    owner = item.metadata.controller
    return (owner.uid,) if owner is not None else ()


def _agent_of(episode: EpisodeView) -> Iterable[Hashable]:
    assignment = episode.status.assignment
    return (assignment.agent_pod_uid,) if assignment is not None and not episode.is_finished else ()


def _task_of(episode: EpisodeView) -> Iterable[tuple[str, str]]:
    task = episode.spec.task_ref
    return ((episode.metadata.namespace, task.name),) if task is not None and not episode.is_finished else ()
