"""Delivers assignments: the assignment in an Episode's status is sent to its agent until the agent acknowledges it.

Level-triggered: a delivery sends the status of its moment. A failed delivery is repeated when the agent's next report
lacks the assignment; so no delivery has to succeed.
"""

import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec
from prometheus_client import Counter

from dgym.api import DebugTask, Episode, PodOverrides
from dgym.api import labels as keys
from dgym.api.quantities import parse_quantity
from dgym.kube import EPISODES, ApiError, EventRecorder, Key, NotFound, WorkQueue
from dgym.logs import fields
from dgym.wire.assignments import Assignment, AssignmentMode, AssignmentState, AssignmentStatus
from dgym.wire.http import NamedTool, Role, make_token
from dgym.wire.messages import EndReason
from dgym_operator.actions import ApiReader, Unmet
from dgym_operator.cache import Agent, Cache
from dgym_operator.calls import AgentClient, CallFailed
from dgym_operator.controllers import sidecar_url
from dgym_operator.controllers.episode import remaining_seconds
from dgym_operator.objects import EpisodeView, Pod
from dgym_operator.render import DEFAULT, sandbox_resources

_log = logging.getLogger(__name__)


class Delivery(NamedTuple):
    """The delivery of an Episode's assignment to its agent."""

    key: Key


class Withdrawal(NamedTuple):
    """The withdrawal of an episode from an agent."""

    agent_uid: str
    episode_uid: str


class Deliveries:
    """Queued deliveries and withdrawals."""

    def __init__(
        self,
        cache: Cache,
        *,
        reader: ApiReader,
        client: AgentClient,
        events: EventRecorder,
        enqueue: Callable[[Key], None],
        queue: WorkQueue[Delivery | Withdrawal],
        key: bytes,
        counter: Counter,
    ) -> None:
        self._cache = cache
        self._reader = reader
        self._client = client
        self._events = events
        self._enqueue = enqueue
        self._queue = queue
        self._key = key
        self._counter = counter
        self._in_flight: set[Key] = set()

    def deliver(self, key: Key) -> None:
        """Queue the delivery of the Episode's assignment."""
        self._in_flight.add(key)
        self._queue.add(Delivery(key))

    def withdraw(self, agent: Agent, episode_uid: str) -> None:
        """Queue the withdrawal of the episode from the agent."""
        self._queue.add(Withdrawal(agent.uid, episode_uid))

    def delivered_since(self, agent: Agent, episode: EpisodeView, moment: float) -> bool:
        """Whether the Episode's present assignment was delivered to the agent after that moment, or is about to be.

        A report requested at that moment cannot be expected to contain the assignment.
        """
        if episode.key in self._in_flight:
            return True
        assignment = episode.status.assignment
        term, delivered_at = agent.delivered.get(episode.metadata.uid, (None, 0.0))
        if assignment is None or term is None:
            return False
        return term == (episode.status.attempt, assignment.epoch) and delivered_at >= moment

    async def work(self) -> None:
        """Deliver and withdraw until cancelled. Several workers may run."""
        while True:
            async with self._queue.take() as item:
                if isinstance(item, Delivery):
                    await self._deliver(item.key)
                    self._in_flight.discard(item.key)
                else:
                    await self._withdraw(item)

    async def _deliver(self, key: Key) -> None:
        episode = self._cache.episodes.get(key)
        found = _assigned(episode, self._cache) if episode is not None else None
        if episode is None or found is None:
            return
        agent, pod = found
        about = fields(
            namespace=key[0], episode=key[1], attempt=episode.status.attempt, agent=agent.name, pod=pod.metadata.name
        )
        try:
            await self._send(episode, agent, pod)
        except (ApiError, CallFailed) as error:
            self._counter.labels(result="failed").inc()
            _log.info("an assignment could not be delivered: %s", error, extra=about)
        except Unmet as error:
            self._counter.labels(result="unmet").inc()
            self._fail(episode, error)
        else:
            self._counter.labels(result="delivered").inc()
            self._cache.agents.record_delivered(episode.metadata.uid)
            _log.info("assigned", extra=about)

    def _fail(self, episode: EpisodeView, error: Unmet) -> None:
        """Record the assignment as failed: without its task or sources the agent could only fail."""
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
        if self._cache.agents.record_undeliverable(failed):
            self._events.record(EPISODES, episode, type="Warning", reason=error.reason.value, message=error.message)
            self._enqueue(episode.key)

    async def _send(self, episode: EpisodeView, agent: Agent, pod: Pod) -> None:
        metadata, assignment = episode.metadata, episode.status.assignment
        assert assignment is not None
        try:
            read, full = await self._reader.episode(metadata.namespace, metadata.name)
        except NotFound:
            return
        if read.metadata.uid != metadata.uid or read.status.assignment != assignment:
            return
        task = await self._with_files(await self._reader.task(full))
        attempt = read.status.attempt
        body = build_assignment(
            full,
            task,
            attempt=attempt,
            epoch=assignment.epoch,
            pod_name=pod.metadata.name,
            sidecar_url=sidecar_url(pod),
            remaining_seconds=remaining_seconds(read),
            key=self._key,
        )
        now = self._cache.clock.monotonic()
        await self._client.assign(agent.url, body)
        agent.delivered[metadata.uid] = ((attempt, assignment.epoch), now)

    async def _with_files(self, task: DebugTask) -> DebugTask:
        try:
            return await self._reader.with_files(task)
        except Unmet as error:
            # The files existed when the pod was created: their absence is final from then on.
            raise Unmet(EndReason.SOURCE_FAILED, error.message) from None

    async def _withdraw(self, item: Withdrawal) -> None:
        agent = self._cache.agents.get(item.agent_uid)
        if agent is None or not agent.url:
            return
        agent.delivered.pop(item.episode_uid, None)
        try:
            await self._client.withdraw(agent.url, item.episode_uid)
        except CallFailed as error:
            _log.info("an assignment could not be withdrawn: %s", error, extra=fields(agent=agent.name))


def compare(agent: Agent, cache: Cache, before: set[str]) -> tuple[list[EpisodeView], list[str]]:
    """Episodes to deliver to the agent, and UIDs of episodes to withdraw from it, by its last report.

    ``before`` are the UIDs in the report before: an episode that only the last report has may have been assigned by a
    write that the watch does not show yet.
    """
    expected = {episode.metadata.uid: episode for episode in cache.episodes_by_agent[agent.uid]}
    missing = [episode for episode in expected.values() if not _is_acknowledged(agent, episode)]
    surplus = [uid for uid in agent.observed if uid not in expected and (uid in before or _is_over(cache, uid))]
    return missing, surplus


def _is_acknowledged(agent: Agent, episode: EpisodeView) -> bool:
    assignment = episode.status.assignment
    if assignment is None:
        return False
    # Delivered again under an epoch that has failed, the episode would take a slot that is not counted.
    term = (episode.status.attempt, assignment.epoch)
    return assignment.failed_time is not None or agent.acknowledges(episode.metadata.uid, term)


def _is_over(cache: Cache, uid: str) -> bool:
    episode = cache.episode_of(uid)
    return episode is not None and episode.is_finished


def _assigned(episode: EpisodeView, cache: Cache) -> tuple[Agent, Pod] | None:
    """Agent and pod of an unfinished Episode that is assigned."""
    status = episode.status
    if status.assignment is None or status.pod_name is None or episode.is_finished:
        return None
    agent = cache.agents.get(status.assignment.agent_pod_uid)
    pod = cache.pods.get((episode.metadata.namespace, status.pod_name))
    if agent is None or not agent.url or pod is None or not pod.status.pod_ip:
        return None
    return agent, pod


def build_assignment(
    episode: Episode,
    task: DebugTask,
    *,
    attempt: int,
    epoch: int,
    pod_name: str,
    sidecar_url: str,
    remaining_seconds: float,
    key: bytes,
) -> Assignment:
    """All that an agent needs for one attempt."""
    metadata, spec = episode.metadata, episode.spec
    uid = metadata.uid or ""
    return Assignment(
        namespace=metadata.namespace or "",
        episode=metadata.name,
        episode_uid=uid,
        attempt=attempt,
        epoch=epoch,
        pod_name=pod_name,
        sidecar_url=sidecar_url,
        prepare_token=make_token(key, episode_uid=uid, attempt=attempt, role=Role.PREPARE),
        drive_token=make_token(key, episode_uid=uid, attempt=attempt, role=Role.DRIVE),
        task=msgspec.to_builtins(_with_resources(task, spec.pod_overrides)),
        agent=msgspec.to_builtins(spec.agent) if spec.agent is not None else None,
        tools=tuple(
            tool if isinstance(tool, str) else NamedTool(name=tool.name, options=tool.options) for tool in spec.tools
        ),
        sample=_sample(metadata.labels),
        remaining_seconds=remaining_seconds,
        mode=AssignmentMode.RUN if spec.agent is not None else AssignmentMode.PREPARE,
    )


def _with_resources(task: DebugTask, overrides: PodOverrides) -> DebugTask:
    """The task with the resources of its pod: the runner holds programs to that memory.

    A task with the same memory is not changed and keeps its digest, by which results are compared.
    """
    given, effective = task.spec.resources, sandbox_resources(task.spec.resources, overrides)
    memory = given.limits.get("memory", DEFAULT.limits["memory"])
    if parse_quantity(effective.limits["memory"]) == parse_quantity(memory):
        return task
    return msgspec.structs.replace(task, spec=msgspec.structs.replace(task.spec, resources=effective))


def _sample(labels: Mapping[str, str]) -> int:
    text = labels.get(keys.SAMPLE, "0")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
