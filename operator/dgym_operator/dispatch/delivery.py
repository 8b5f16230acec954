"""Tells agents what the Episodes' status already says: first it is written, then it is told, and told again if need be.

Level-triggered: what is delivered is read from the status at that moment. A delivery that fails is repeated when the
agent's next report shows that it does not know; so no delivery has to succeed.
"""

import logging
from collections.abc import Callable
from typing import NamedTuple

from prometheus_client import Counter

from dgym.api import DebugTask
from dgym.kube import EPISODES, ApiError, EventRecorder, Key, NotFound, WorkQueue
from dgym.wire.assignments import AssignmentState, AssignmentStatus
from dgym.wire.messages import EndReason
from dgym_operator.actions import Reader, Unmet
from dgym_operator.cache import Agent, World, is_finished
from dgym_operator.calls import AgentClient, CallFailed
from dgym_operator.controllers import remaining_seconds, sidecar_url
from dgym_operator.dispatch.assignment import Attempt, build_assignment
from dgym_operator.logs import fields
from dgym_operator.objects import EpisodeView, Pod

_log = logging.getLogger(__name__)


class Delivery(NamedTuple):
    """An Episode whose agent is to be told."""

    key: Key


class Withdrawal(NamedTuple):
    """An episode that an agent is to forget."""

    agent_uid: str
    episode_uid: str


class Deliveries:
    """Deliveries and withdrawals under way."""

    def __init__(
        self,
        world: World,
        *,
        reader: Reader,
        client: AgentClient,
        events: EventRecorder,
        enqueue: Callable[[Key], None],
        queue: WorkQueue[Delivery | Withdrawal],
        key: bytes,
        counter: Counter,
    ) -> None:
        self._world = world
        self._reader = reader
        self._client = client
        self._events = events
        self._enqueue = enqueue
        self._queue = queue
        self._key = key
        self._counter = counter
        self._under_way: set[Key] = set()

    def deliver(self, key: Key) -> None:
        """Tell the Episode's agent, soon."""
        self._under_way.add(key)
        self._queue.add(Delivery(key))

    def withdraw(self, agent: Agent, episode_uid: str) -> None:
        """Have the agent forget the episode, soon."""
        self._queue.add(Withdrawal(agent.uid, episode_uid))

    def told_since(self, agent: Agent, episode: EpisodeView, moment: float) -> bool:
        """Whether the Episode's present assignment to the agent was delivered after that moment, or is about to be.

        A report that was asked for then cannot be expected to know it.
        """
        if episode.key in self._under_way:
            return True
        assignment = episode.status.assignment
        told = agent.told.get(episode.metadata.uid)
        if assignment is None or told is None:
            return False
        return told[:2] == (episode.status.attempt, assignment.epoch) and told[2] >= moment

    async def work(self) -> None:
        """Deliver and withdraw until cancelled. Several may do so."""
        while True:
            async with self._queue.take() as item:
                if isinstance(item, Delivery):
                    await self._deliver(item.key)
                    self._under_way.discard(item.key)
                else:
                    await self._withdraw(item)

    async def _deliver(self, key: Key) -> None:
        episode = self._world.episodes.get(key)
        found = _serving(episode, self._world) if episode is not None else None
        if episode is None or found is None:
            return
        agent, pod = found
        about = fields(
            namespace=key[0], episode=key[1], attempt=episode.status.attempt, agent=agent.name, pod=pod.metadata.name
        )
        try:
            await self._tell(episode, agent, pod)
        except (ApiError, CallFailed) as error:
            self._counter.labels(result="failed").inc()
            _log.info("an assignment could not be delivered: %s", error, extra=about)
        except Unmet as error:
            self._counter.labels(result="unmet").inc()
            self._cannot(episode, error)
        else:
            self._counter.labels(result="delivered").inc()
            self._world.agents.told(episode.metadata.uid)
            _log.info("assigned", extra=about)

    def _cannot(self, episode: EpisodeView, error: Unmet) -> None:
        """Without its task or sources an agent could only fail; deciding is for those who hear that it did."""
        assignment = episode.status.assignment
        assert assignment is not None
        failed = AssignmentStatus(
            episode_uid=episode.metadata.uid,
            attempt=episode.status.attempt,
            epoch=assignment.epoch,
            state=AssignmentState.FAILED,
            reason=error.reason,
            message=error.message,
        )
        if self._world.agents.take_untold(failed):
            self._events.record(EPISODES, episode, type="Warning", reason=error.reason.value, message=error.message)
            self._enqueue(episode.key)

    async def _tell(self, episode: EpisodeView, agent: Agent, pod: Pod) -> None:
        metadata, assignment = episode.metadata, episode.status.assignment
        assert assignment is not None
        try:
            read, full = await self._reader.episode(metadata.namespace, metadata.name)
        except NotFound:
            return
        if read.metadata.uid != metadata.uid or read.status.assignment != assignment:
            return
        task = await self._with_files(await self._reader.task(full))
        attempt = Attempt(
            number=read.status.attempt,
            epoch=assignment.epoch,
            pod_name=pod.metadata.name,
            sidecar_url=sidecar_url(pod),
            remaining_seconds=remaining_seconds(read),
        )
        now = self._world.clock.monotonic()
        await self._client.assign(agent.url, build_assignment(full, task, attempt, self._key))
        agent.told[metadata.uid] = (read.status.attempt, assignment.epoch, now)

    async def _with_files(self, task: DebugTask) -> DebugTask:
        try:
            return await self._reader.with_files(task)
        except Unmet as error:
            # They were there when the pod was made: from then on nobody waits for them.
            raise Unmet(EndReason.SOURCE_FAILED, error.message) from None

    async def _withdraw(self, item: Withdrawal) -> None:
        agent = self._world.agents.get(item.agent_uid)
        if agent is None or not agent.url:
            return
        agent.told.pop(item.episode_uid, None)
        try:
            await self._client.withdraw(agent.url, item.episode_uid)
        except CallFailed as error:
            _log.info("an assignment could not be withdrawn: %s", error, extra=fields(agent=agent.name))


def compare(agent: Agent, world: World, before: set[str]) -> tuple[list[EpisodeView], list[str]]:
    """Episodes that the agent ought to be told of, and UIDs of those it ought to forget, after its report.

    ``before`` are the UIDs that its report before this one held: an episode that only this one holds may have been
    assigned by a write that the watch has yet to show.
    """
    expected = {episode.metadata.uid: episode for episode in world.episodes_by_agent[agent.uid]}
    missing = [episode for episode in expected.values() if not _is_known(agent, episode)]
    surplus = [uid for uid in agent.heard if uid not in expected and (uid in before or _is_over(world, uid))]
    return missing, surplus


def _is_known(agent: Agent, episode: EpisodeView) -> bool:
    assignment = episode.status.assignment
    if assignment is None:
        return False
    # Begun again under an epoch that has failed, it would take a slot that nobody counts.
    return assignment.failed_time is not None or agent.knows(
        episode.metadata.uid, episode.status.attempt, assignment.epoch
    )


def _is_over(world: World, uid: str) -> bool:
    episode = world.episode_of(uid)
    return episode is not None and is_finished(episode)


def _serving(episode: EpisodeView, world: World) -> tuple[Agent, Pod] | None:
    """Agent and pod of an Episode that is assigned and goes on."""
    status = episode.status
    if status.assignment is None or status.pod_name is None or is_finished(episode):
        return None
    agent = world.agents.get(status.assignment.agent_pod_uid)
    pod = world.pods.get((episode.metadata.namespace, status.pod_name))
    if agent is None or not agent.url or pod is None or not pod.status.pod_ip:
        return None
    return agent, pod
