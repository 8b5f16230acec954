"""Delivers assignments: the assignment in an Episode's status is sent to its agent until the agent's report has it.

Level-triggered: a delivery sends the status of its moment. A failed delivery is repeated when the agent's next report
lacks the assignment; so no delivery has to succeed.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec
from prometheus_client import Counter

from dgym.api import SAMPLE_LABEL, DebugTask, Episode, PodOverrides, PoisonedStep, parse_quantity
from dgym.kube import EPISODES, ApiError, EventRecorder, Key, NotFound, WorkQueue
from dgym.logs import fields
from dgym.wire import assignments as wire
from dgym.wire.assignments import AgentReport, Assignment, AssignmentMode, AssignmentState, AssignmentStatus
from dgym.wire.http import NamedTool, Role, make_token
from dgym.wire.messages import EndReason
from dgym_operator.actions import ApiReader, Unmet
from dgym_operator.cache import Agent, Cache
from dgym_operator.calls import AgentClient, CallFailed, Refused
from dgym_operator.controllers import sidecar_url
from dgym_operator.controllers.episode import remaining_seconds
from dgym_operator.dispatch.dispatcher import Dispatcher
from dgym_operator.objects import EpisodeView, Pod
from dgym_operator.render import DEFAULT, sandbox_resources

_log = logging.getLogger(__name__)
_UNAUTHORIZED = 401
_PARALLEL_POLLS = 128
"""Polls at the same time: half of the connections, so that agents that hang leave the others to deliveries."""


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
            namespace=key[0],
            episode=key[1],
            attempt=episode.status.attempt,
            agent=agent.name,
            pod=episode.status.pod_name,
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

    async def _send(self, episode: EpisodeView, agent: Agent, pod: Pod | None) -> None:
        metadata, assignment = episode.metadata, episode.status.assignment
        assert assignment is not None
        try:
            read, full = await self._reader.episode(metadata.namespace, metadata.name)
        except NotFound:
            return
        if read.metadata.uid != metadata.uid or read.status.assignment != assignment:
            return
        attempt = read.status.attempt
        # A stored verdict is found without the task, which may be gone by now.
        recovers = assignment.mode == AssignmentMode.RECOVER.value
        task = None if recovers else await self._with_files(await self._reader.task(full))
        body = build_assignment(
            full,
            task,
            attempt=attempt,
            epoch=assignment.epoch,
            pod_name=read.status.pod_name or "",
            sidecar_url=sidecar_url(pod) if pod is not None else "",
            remaining_seconds=remaining_seconds(read),
            replay_attempt=read.status.replay.attempt if read.status.replay is not None else 0,
            poisoned_steps=read.status.poisoned_steps,
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


def _assigned(episode: EpisodeView, cache: Cache) -> tuple[Agent, Pod | None] | None:
    """Agent and pod of an unfinished Episode that is assigned; a verdict is recovered without the pod."""
    status = episode.status
    if status.assignment is None or status.pod_name is None or episode.is_finished:
        return None
    agent = cache.agents.get(status.assignment.agent_pod_uid)
    pod = cache.pods.get((episode.metadata.namespace, status.pod_name))
    if agent is None or not agent.url:
        return None
    reachable = pod is not None and bool(pod.status.pod_ip)
    return (agent, pod) if reachable or status.assignment.mode == AssignmentMode.RECOVER.value else None


def build_assignment(
    episode: Episode,
    task: DebugTask | None,
    *,
    attempt: int,
    epoch: int,
    pod_name: str,
    sidecar_url: str,
    remaining_seconds: float,
    replay_attempt: int = 0,
    poisoned_steps: tuple[PoisonedStep, ...] = (),
    key: bytes,
) -> Assignment:
    """All that an agent needs for one attempt; without a task it recovers a stored verdict."""
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
        task=msgspec.to_builtins(_with_resources(task, spec.pod_overrides)) if task is not None else {},
        agent=msgspec.to_builtins(spec.agent) if spec.agent is not None else None,
        tools=tuple(
            tool if isinstance(tool, str) else NamedTool(name=tool.name, options=tool.options) for tool in spec.tools
        ),
        sample=_sample(metadata.labels),
        remaining_seconds=remaining_seconds,
        driver_idle_seconds=float(spec.driver_idle_timeout_seconds),
        mode=_mode(episode, task),
        replay_attempt=replay_attempt,
        poisoned_steps=tuple(wire.PoisonedStep(step=each.step, reason=each.reason) for each in poisoned_steps),
    )


def _mode(episode: Episode, task: DebugTask | None) -> AssignmentMode:
    if task is None:
        return AssignmentMode.RECOVER
    return AssignmentMode.RUN if episode.spec.agent is not None else AssignmentMode.PREPARE


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
    text = labels.get(SAMPLE_LABEL, "0")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


class AgentPoller:
    """Polls every agent in a task of its own, so that an agent that hangs delays no other."""

    def __init__(
        self,
        cache: Cache,
        *,
        client: AgentClient,
        deliveries: Deliveries,
        dispatcher: Dispatcher,
        enqueue: Callable[[Key], None],
        token_refused: Callable[[Agent], None],
        interval_seconds: float,
    ) -> None:
        self._cache = cache
        self._client = client
        self._deliveries = deliveries
        self._dispatcher = dispatcher
        self._enqueue = enqueue
        self._token_refused = token_refused
        self._interval = interval_seconds
        self._slots = asyncio.Semaphore(_PARALLEL_POLLS)
        self._agents_polled: set[str] = set()

    async def run(self) -> None:
        """Poll until cancelled."""
        agents = self._cache.agents
        agents.start_polling()
        async with asyncio.TaskGroup() as group:
            while True:
                agents.appeared.clear()
                for agent in agents:
                    if agent.url and agent.uid not in self._agents_polled:
                        self._agents_polled.add(agent.uid)
                        group.create_task(self._poll(agent.uid))
                await agents.appeared.wait()

    async def _poll(self, uid: str) -> None:
        """Poll one agent until it is gone."""
        clock = self._cache.clock
        try:
            while (agent := self._cache.agents.get(uid)) is not None:
                begun = clock.monotonic()
                if agent.url:
                    await self._poll_once(agent)
                await clock.sleep(max(0.0, begun + self._interval - clock.monotonic()))
        finally:
            self._agents_polled.discard(uid)

    async def _poll_once(self, agent: Agent) -> None:
        async with self._slots:
            requested_at = self._cache.clock.monotonic()
            try:
                report = await self._client.report(agent.url)
            except CallFailed as error:
                self._record_failure(agent, error)
                # The status of waiting episodes shows the failure.
                self._dispatcher.wake()
                self._enqueue_if_lost(agent)
                return
        self._observe_report(agent, report, requested_at)

    def _observe_report(self, agent: Agent, report: AgentReport, requested_at: float) -> None:
        agents = self._cache.agents
        slots, failed = agents.open_slots(agent), agent.failure
        returned = self._cache.episodes_by_agent[agent.uid] if agents.is_silent(agent) else ()
        if failed:
            _log.info("an agent answers again", extra=fields(agent=agent.name))
        before = set(agent.observed)
        changed = agents.observe_report(agent, report)
        missing, surplus = compare(agent, self._cache, before)
        for episode in missing:
            if report.draining:
                self._enqueue(episode.key)
            elif not self._deliveries.delivered_since(agent, episode, requested_at):
                self._deliveries.deliver(episode.key)
        for uid in surplus:
            self._deliveries.withdraw(agent, uid)
        for uid in changed:
            episode_of = self._cache.episode_of(uid)
            if episode_of is not None:
                self._enqueue(episode_of.key)
        for episode in returned:
            # Even if the report has not changed: their status must not show AgentLost any longer.
            self._enqueue(episode.key)
        if agents.open_slots(agent) != slots or failed:
            self._dispatcher.wake()

    def _record_failure(self, agent: Agent, error: CallFailed) -> None:
        failure = str(error)
        if isinstance(error, Refused) and error.status == _UNAUTHORIZED:
            failure = "it refuses the operator's token, which does not come from the key the agent was started with"
            self._token_refused(agent)
        if agent.failure != failure:
            # The agent is polled every few seconds; each cause is logged once.
            _log.warning("an agent does not answer: %s", error, extra=fields(agent=agent.name))
        agent.failure = failure

    def _enqueue_if_lost(self, agent: Agent) -> None:
        if self._cache.agents.is_silent(agent):
            for episode in self._cache.episodes_by_agent[agent.uid]:
                self._enqueue(episode.key)
