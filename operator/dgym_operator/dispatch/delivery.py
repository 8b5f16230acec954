"""Delivers assignments: the assignment in an Episode's status is sent to its agent until the agent's report has it.

Level-triggered: a delivery sends the status of its moment. A failed delivery is repeated when the agent's next report
lacks the assignment; so no delivery has to succeed.
"""

import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec
from prometheus_client import Counter

from dgym.api import ARM_LABEL, SAMPLE_LABEL, DebugTask, Episode, PodOverrides, PoisonedStep, Resources, parse_quantity
from dgym.kube import EPISODES, ApiError, EventRecorder, Key, NotFound, WorkQueue
from dgym.logs import fields
from dgym.tracing import OFF, Tracer
from dgym.wire import assignments as wire
from dgym.wire.assignments import Assignment, AssignmentMode, AssignmentState, AssignmentStatus
from dgym.wire.http import NamedTool, Role, make_token
from dgym.wire.messages import EndReason
from dgym.wire.signing import make_epochs
from dgym_operator.actions import ApiReader, Unmet, with_step_limit
from dgym_operator.cache import Agent, Cache
from dgym_operator.calls import AgentClient, CallFailed
from dgym_operator.controllers import sidecar_url
from dgym_operator.controllers.episode import remaining_seconds
from dgym_operator.defaults import SANDBOX
from dgym_operator.objects import EpisodeView, Pod
from dgym_operator.render import sandbox_resources
from dgym_operator.settings import Settings

_log = logging.getLogger(__name__)
_DIGEST_CHARACTERS = 128


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
        settings: Settings,
        tracer: Tracer = OFF,
    ) -> None:
        self._cache = cache
        self._reader = reader
        self._client = client
        self._events = events
        self._enqueue = enqueue
        self._queue = queue
        self._key = key
        self._counter = counter
        self._settings = settings
        self._tracer = tracer
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
            read, full = await self._reader.episode(episode)
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
            earlier_price=read.status.cost or None,
            key=self._key,
            settings=self._settings,
            image_digest=image_digest_of(pod),
            traceparent=self._tracer.traceparent(metadata.uid),
        )
        now = self._cache.clock.monotonic()
        await self._client.assign(agent.address, body)
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
            await self._client.withdraw(agent.address, item.episode_uid)
        except CallFailed as error:
            _log.info("an assignment could not be withdrawn: %s", error, extra=fields(agent=agent.name))


def _assigned(episode: EpisodeView, cache: Cache) -> tuple[Agent, Pod | None] | None:
    """Agent and pod of an unfinished Episode that is assigned; a verdict is recovered without the pod."""
    status = episode.status
    if status.assignment is None or status.pod_name is None or episode.is_finished:
        return None
    agent = cache.agents.get(status.assignment.agent_pod_uid)
    pod = cache.pods.get((episode.metadata.namespace, status.pod_name))
    if agent is None or not agent.url:
        return None
    reference = status.pod_ref
    if pod is not None and (not cache.owns(pod) or (reference is not None and pod.metadata.uid != reference.uid)):
        pod = None
    reachable = pod is not None and bool(pod.status.pod_ip)
    return (agent, pod) if reachable or status.assignment.mode == AssignmentMode.RECOVER.value else None


def image_digest_of(pod: Pod | None) -> str:
    """The digest of the sandbox's image; empty where the kubelet has not reported one."""
    sandbox = pod.container("sandbox") if pod is not None else None
    return sandbox.image_id.rpartition("@")[2][:_DIGEST_CHARACTERS] if sandbox is not None else ""


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
    earlier_price: str | None = None,
    key: bytes,
    settings: Settings,
    image_digest: str = "",
    traceparent: str = "",
) -> Assignment:
    """All that an agent needs for one attempt; without a task it recovers a stored verdict."""
    metadata, spec = episode.metadata, episode.spec
    limits = settings.namespace_policies.of(metadata.namespace or "").limits
    uid = metadata.uid or ""
    return Assignment(
        namespace=metadata.namespace or "",
        episode=metadata.name,
        episode_uid=uid,
        attempt=attempt,
        epoch=epoch,
        epochs=make_epochs(key, episode_uid=uid, attempt=attempt, epoch=epoch),
        pod_name=pod_name,
        sidecar_url=sidecar_url,
        prepare_token=make_token(key, episode_uid=uid, attempt=attempt, role=Role.PREPARE),
        drive_token=make_token(key, episode_uid=uid, attempt=attempt, role=Role.DRIVE),
        task=msgspec.to_builtins(_with_resources(task, spec.pod_overrides, settings.default_resources.sandbox))
        if task is not None
        else {},
        agent=msgspec.to_builtins(with_step_limit(spec.agent, limits)) if spec.agent is not None else None,
        tools=tuple(
            tool if isinstance(tool, str) else NamedTool(name=tool.name, options=tool.options) for tool in spec.tools
        ),
        sample=_sample(metadata.labels),
        arm=metadata.labels.get(ARM_LABEL, ""),
        remaining_seconds=remaining_seconds,
        driver_idle_seconds=float(spec.driver_idle_timeout_seconds),
        mode=_mode(episode, task),
        replay_attempt=replay_attempt,
        poisoned_steps=tuple(wire.PoisonedStep(step=each.step, reason=each.reason) for each in poisoned_steps),
        earlier_price=earlier_price,
        image_digest=image_digest,
        traceparent=traceparent,
    )


def _mode(episode: Episode, task: DebugTask | None) -> AssignmentMode:
    if task is None:
        return AssignmentMode.RECOVER
    return AssignmentMode.RUN if episode.spec.agent is not None else AssignmentMode.PREPARE


def _with_resources(task: DebugTask, overrides: PodOverrides, default: Resources) -> DebugTask:
    """The task with the resources of its pod: the runner holds programs to that memory.

    A task with the same memory is not changed and keeps its digest, by which results are compared.
    """
    given, effective = task.spec.resources, sandbox_resources(task.spec.resources, overrides, default)
    memory = given.limits.get("memory", SANDBOX.limits["memory"])
    if parse_quantity(effective.limits["memory"]) == parse_quantity(memory):
        return task
    return msgspec.structs.replace(task, spec=msgspec.structs.replace(task.spec, resources=effective))


def _sample(labels: Mapping[str, str]) -> int:
    text = labels.get(SAMPLE_LABEL, "0")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
