"""What a change of one object means for others: which of them want a look."""

import msgspec

from dgym.kube import Change, Key, Source, WorkQueue
from dgym_operator.app.metrics import TransitionObserver
from dgym_operator.app.reconciler import Item, Kind, settled_seconds
from dgym_operator.cache import Agents, World, is_finished
from dgym_operator.controllers import Indexes, attempt_of, child_index, loss
from dgym_operator.dispatch import Dispatcher
from dgym_operator.objects import ConfigMapView, EpisodeSetView, EpisodeView, Pod, TaskView

_SET_SECONDS = 0.1
"""A set is looked at after so long, so that what happens to many children at once is written once."""


class Triggers:
    """Listens to the stores and, on the replica that leads, fills the queue: nobody empties that of another."""

    def __init__(
        self, world: World, *, queue: WorkQueue[Item], dispatcher: Dispatcher, observer: TransitionObserver
    ) -> None:
        self._world = world
        self._queue = queue
        self._dispatcher = dispatcher
        self._observer = observer
        self._leading = False
        world.episodes.subscribe(self._episode)
        world.sets.subscribe(self._set)
        world.pods.subscribe(self._pod)
        world.tasks.subscribe(self._task)
        world.config_maps.subscribe(self._config_map)
        world.agent_pods.subscribe(self._agent_pod)

    def lead(self) -> None:
        """Everything there is wants a look, and from now on whatever changes."""
        self._leading = True
        for episode_set in self._world.sets:
            self._add(Item(Kind.EPISODE_SET, episode_set.key), low_priority=True)
        for episode in self._world.episodes:
            self.episode(episode.key, low_priority=True)

    def namespace(self, name: str) -> None:
        """Reconcile all that the namespace holds: it is served from now on."""
        for episode_set in self._world.sets_by_namespace[name]:
            self._add(Item(Kind.EPISODE_SET, episode_set.key), low_priority=True)
        for episode in self._world.episodes_by_namespace[name]:
            self.episode(episode.key, low_priority=True)

    def episode(self, key: Key, *, low_priority: bool = False) -> None:
        """An Episode wants a look."""
        self._add(Item(Kind.EPISODE, key), low_priority=low_priority)

    def _set_of(self, namespace: str, name: str) -> None:
        self._add(Item(Kind.EPISODE_SET, (namespace, name)), _SET_SECONDS)

    def _add(self, item: Item, after: float = 0.0, *, low_priority: bool = False) -> None:
        if self._leading:
            self._queue.add(item, after, low_priority=low_priority)

    def _episode(self, change: Change[EpisodeView]) -> None:
        self._observer.episode(change)
        episode, uid = change.last, change.last.metadata.uid
        owner = episode.metadata.controller
        if owner is not None and owner.kind == Kind.EPISODE_SET:
            self._set_of(episode.metadata.namespace, owner.name)
            index = child_index(episode)
            if index is not None:
                self._world.memory.created(owner.uid, index)
        if change.new is None or (change.old is not None and change.old.metadata.uid != uid):
            gone = change.old.metadata.uid if change.old is not None else uid
            self._world.memory.forget(gone)
            self._world.agents.forget(gone)
            self._dispatcher.forget(change.key)
        last = self._world.memory.last_pod(uid)
        if last is not None and (change.new is None or not self._world.is_of_current_attempt(change.new, last)):
            self._world.memory.drop_pod(uid)
        if _slot_changed(change):
            self._dispatcher.wake()
        self.episode(change.key, low_priority=change.source is Source.LIST)

    def _set(self, change: Change[EpisodeSetView]) -> None:
        if change.new is None:
            self._world.memory.forget(change.last.metadata.uid)
            return
        item = Item(Kind.EPISODE_SET, change.key)
        if change.source is Source.OWN:
            # Looked at again at once, what could not be done after the write would be tried again without a pause.
            self._add(item, settled_seconds(self._queue.failures(item)))
        else:
            self._add(item, low_priority=change.source is Source.LIST)
        self._newly_counted(change.old, change.new)

    def _newly_counted(self, old: EpisodeSetView | None, new: EpisodeSetView) -> None:
        """Children that were counted may go once their time is over."""
        if old is None or old.status.completed_indexes == new.status.completed_indexes:
            return
        before, after = Indexes.parse(old.status.completed_indexes), Indexes.parse(new.status.completed_indexes)
        for child in self._world.children[new.metadata.uid]:
            index = child_index(child)
            if index in after and index not in before:
                self.episode(child.key)

    def _pod(self, change: Change[Pod]) -> None:
        self._observer.pod(change)
        owner = change.last.metadata.controller
        if owner is not None and owner.kind == Kind.EPISODE:
            if change.new is None:
                self._keep_last(owner.uid, change.last)
            if loss(change.last).disruption:
                # The pod and its condition may be gone before the next decision about the Episode.
                self._world.memory.is_disrupted(owner.uid, attempt_of(change.last))
            key = (change.key[0], owner.name)
            self.episode(key, low_priority=change.source is Source.LIST)

    def _keep_last(self, uid: str, pod: Pod) -> None:
        """Keep the last state of a deleted pod for the next decision: the verdict in it, or the deletion itself."""
        episode = self._world.episode_of(uid)
        if episode is None or not self._world.is_of_current_attempt(episode, pod):
            return
        sidecar = pod.container("sidecar")
        if episode.status.pod_name is not None and (sidecar is None or sidecar.state.terminated is None):
            return
        deleted = pod.metadata.deletion_timestamp or self._world.clock.now()
        metadata = msgspec.structs.replace(pod.metadata, deletion_timestamp=deleted)
        self._world.memory.keep_pod(uid, msgspec.structs.replace(pod, metadata=metadata))

    def _task(self, change: Change[TaskView]) -> None:
        for episode in self._world.episodes_by_task[change.key]:
            if episode.status.pod_name is None:
                self.episode(episode.key, low_priority=True)
        for episode_set in self._world.sets_by_namespace[change.key[0]]:
            if not self._world.config_maps_by_owner.count(episode_set.metadata.uid):
                self._set_of(*episode_set.key)

    def _config_map(self, change: Change[ConfigMapView]) -> None:
        owner = change.last.metadata.controller
        if owner is not None and owner.kind == Kind.EPISODE_SET:
            self._set_of(change.key[0], owner.name)

    def _agent_pod(self, change: Change[Pod]) -> None:
        agents: Agents = self._world.agents
        if change.old is not None and (change.new is None or change.new.metadata.uid != change.old.metadata.uid):
            agents.lose(change.old.metadata.uid)
        if change.new is not None:
            agents.see(change.new)
        if agents.get(change.last.metadata.uid) is None:
            for episode in self._world.episodes_by_agent[change.last.metadata.uid]:
                self.episode(episode.key)
        self._dispatcher.wake()


def _slot_changed(change: Change[EpisodeView]) -> bool:
    old, new = change.old, change.new
    before = old.status.assignment if old is not None and not is_finished(old) else None
    after = new.status.assignment if new is not None and not is_finished(new) else None
    return before != after
