"""Delivers assignments to agent pods, and polls agent pods for their reports.

The assignment in an Episode's status is sent to its agent pod until a report of the agent pod contains it. Delivery is
level-triggered: it sends the status at that time. A failed delivery is not retried by itself. It is repeated when the
next report of the agent pod does not contain the assignment.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import NamedTuple

import msgspec
from prometheus_client import Counter

from dgym.api import ARM_LABEL, SAMPLE_LABEL, DebugTask, Episode, PodOverrides, PoisonedStep, Resources, parse_quantity
from dgym.errors import AccessRefused, DgymError
from dgym.kube import EPISODES, ApiError, EventRecorder, Key, NotFound, WorkQueue
from dgym.logs import fields
from dgym.tracing import OFF, Tracer
from dgym.wire import AttemptOutcome, EndReason
from dgym.wire import assignments as wire
from dgym.wire.assignments import AgentPodReport, Assignment, AssignmentMode, AssignmentState, AssignmentStatus
from dgym.wire.http import Role, ToolWithOptions, make_token
from dgym.wire.signing import make_epochs
from dgym_operator.actions import ApiReader, Unmet, with_step_limit
from dgym_operator.cache import AgentPod, Cache
from dgym_operator.calls import AgentPodClient
from dgym_operator.chart_values import SANDBOX
from dgym_operator.controllers import sidecar_url
from dgym_operator.controllers.episode import remaining_seconds
from dgym_operator.dispatch._dispatcher import Dispatcher
from dgym_operator.objects import EpisodeView, Pod
from dgym_operator.render import sandbox_resources
from dgym_operator.settings import Settings

_log = logging.getLogger(__name__)
_DIGEST_CHARACTERS = 128


class Delivery(NamedTuple):
    """The delivery of an Episode's assignment to its agent pod."""

    key: Key


class Withdrawal(NamedTuple):
    """The withdrawal of an episode from an agent pod."""

    agent_pod_uid: str
    episode_uid: str


class Deliveries:
    """Queued deliveries and withdrawals."""

    def __init__(
        self,
        cache: Cache,
        *,
        reader: ApiReader,
        client: AgentPodClient,
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

    def withdraw(self, agent_pod: AgentPod, episode_uid: str) -> None:
        """Queue the withdrawal of the episode from the agent pod."""
        self._queue.add(Withdrawal(agent_pod.uid, episode_uid))

    def delivered_since(self, agent_pod: AgentPod, episode: EpisodeView, moment: float) -> bool:
        """True if the Episode's current assignment was delivered to the agent pod at or after ``moment``, or is queued.

        A report that was requested at ``moment`` may then not contain the assignment.
        """
        if episode.key in self._in_flight:
            return True
        assignment = episode.status.assignment
        term, delivered_at = agent_pod.delivered.get(episode.metadata.uid, (None, 0.0))
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
        agent_pod, pod = found
        about = fields(
            namespace=key[0],
            episode=key[1],
            attempt=episode.status.attempt,
            agent_pod=agent_pod.name,
            pod=episode.status.pod_name,
        )
        try:
            await self._send(episode, agent_pod, pod)
        except (ApiError, DgymError) as error:
            self._counter.labels(result="failed").inc()
            _log.info("an assignment could not be delivered: %s", error, extra=about)
        except Unmet as error:
            self._counter.labels(result="unmet").inc()
            self._fail(episode, error)
        else:
            self._counter.labels(result="delivered").inc()
            self._cache.agent_pods.record_delivered(episode.metadata.uid)
            _log.info("assigned", extra=about)

    def _fail(self, episode: EpisodeView, error: Unmet) -> None:
        """Record the assignment as failed, because the agent pod cannot run it without its task or sources."""
        assignment = episode.status.assignment
        assert assignment is not None
        failed = AssignmentStatus(
            episode_uid=episode.metadata.uid,
            attempt=episode.status.attempt,
            epoch=assignment.epoch,
            state=AssignmentState.FAILED,
            outcome=AttemptOutcome(resolved=False, reason=error.reason, message=error.message),
        )
        if self._cache.agent_pods.record_undeliverable(failed):
            self._events.record(EPISODES, episode, type="Warning", reason=error.reason.value, message=error.message)
            self._enqueue(episode.key)

    async def _send(self, episode: EpisodeView, agent_pod: AgentPod, pod: Pod | None) -> None:
        metadata, assignment = episode.metadata, episode.status.assignment
        assert assignment is not None
        try:
            read, full = await self._reader.episode(episode)
        except NotFound:
            return
        if read.metadata.uid != metadata.uid or read.status.assignment != assignment:
            return
        attempt = read.status.attempt
        # A stored outcome is found without the task, and the task may be gone.
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
        await self._client.call(agent_pod.address, wire.ASSIGN, body, uid=metadata.uid)
        agent_pod.delivered[metadata.uid] = ((attempt, assignment.epoch), now)

    async def _with_files(self, task: DebugTask) -> DebugTask:
        try:
            return await self._reader.with_files(task)
        except Unmet as error:
            # The files existed when the pod was created, so their absence is final now.
            raise Unmet(EndReason.SOURCE_FAILED, error.message) from None

    async def _withdraw(self, item: Withdrawal) -> None:
        agent_pod = self._cache.agent_pods.get(item.agent_pod_uid)
        if agent_pod is None or not agent_pod.url:
            return
        agent_pod.delivered.pop(item.episode_uid, None)
        try:
            await self._client.call(agent_pod.address, wire.WITHDRAW, uid=item.episode_uid)
        except DgymError as error:
            _log.info("an assignment could not be withdrawn: %s", error, extra=fields(agent_pod=agent_pod.name))


def _assigned(episode: EpisodeView, cache: Cache) -> tuple[AgentPod, Pod | None] | None:
    """Return the agent pod and the sandbox pod of an assigned, unfinished Episode, or None if they are unreachable.

    The sandbox pod may be None if the outcome is only recovered from the store.
    """
    status = episode.status
    if status.assignment is None or status.pod_name is None or episode.is_finished:
        return None
    agent_pod = cache.agent_pods.get(status.assignment.agent_pod_uid)
    pod = cache.pods.get((episode.metadata.namespace, status.pod_name))
    if agent_pod is None or not agent_pod.url:
        return None
    reference = status.pod_ref
    if pod is not None and (not cache.owns(pod) or (reference is not None and pod.metadata.uid != reference.uid)):
        pod = None
    reachable = pod is not None and bool(pod.status.pod_ip)
    return (agent_pod, pod) if reachable or status.assignment.mode == AssignmentMode.RECOVER.value else None


def image_digest_of(pod: Pod | None) -> str:
    """Return the digest of the sandbox's image. Empty if the kubelet has not reported one."""
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
    """Return the assignment of one attempt. Without a task the agent pod only recovers a stored outcome."""
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
            tool if isinstance(tool, str) else ToolWithOptions(name=tool.name, options=tool.options)
            for tool in spec.tools
        ),
        sample=_sample(metadata.labels),
        arm=metadata.labels.get(ARM_LABEL, ""),
        remaining_seconds=remaining_seconds,
        driver_idle_seconds=float(spec.driver_idle_timeout_seconds),
        mode=_mode(episode, task),
        replay_attempt=replay_attempt,
        poisoned_steps=tuple(wire.OmittedStep(step=each.step, reason=each.reason) for each in poisoned_steps),
        earlier_price=earlier_price,
        image_digest=image_digest,
        traceparent=traceparent,
    )


def _mode(episode: Episode, task: DebugTask | None) -> AssignmentMode:
    if task is None:
        return AssignmentMode.RECOVER
    return AssignmentMode.RUN if episode.spec.agent is not None else AssignmentMode.PREPARE


def _with_resources(task: DebugTask, overrides: PodOverrides, default: Resources) -> DebugTask:
    """Return the task with the resources of its pod, because the runner enforces this memory limit for programs.

    A task with the same memory is not changed. It keeps its digest, which is used to compare results.
    """
    given, effective = task.spec.resources, sandbox_resources(task.spec.resources, overrides, default)
    memory = given.limits.get("memory", SANDBOX.limits["memory"])
    if parse_quantity(effective.limits["memory"]) == parse_quantity(memory):
        return task
    return msgspec.structs.replace(task, spec=msgspec.structs.replace(task.spec, resources=effective))


def _sample(labels: Mapping[str, str]) -> int:
    text = labels.get(SAMPLE_LABEL, "0")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


_PARALLEL_POLLS = 128
"""Number of concurrent polls. It is half of the connections, so that hanging agent pods do not block deliveries."""


def compare(agent_pod: AgentPod, cache: Cache, before: set[str]) -> tuple[list[EpisodeView], list[str]]:
    """Compare the last report of the agent pod with the assignments in status.

    Args:
        agent_pod: The agent pod.
        cache: The cache.
        before: UIDs in the previous report. An episode that is only in the last report is not withdrawn, because the
            watch may not have delivered the write that assigned it.

    Returns:
        The Episodes to deliver to the agent pod, and the UIDs of episodes to withdraw from it.
    """
    expected = {episode.metadata.uid: episode for episode in cache.episodes_by_agent_pod[agent_pod.uid]}
    missing = [episode for episode in expected.values() if not _is_acknowledged(agent_pod, episode)]
    surplus = [uid for uid in agent_pod.observed if uid not in expected and (uid in before or _is_over(cache, uid))]
    return missing, surplus


def _is_acknowledged(agent_pod: AgentPod, episode: EpisodeView) -> bool:
    assignment = episode.status.assignment
    if assignment is None:
        return False
    # An assignment whose model failed must not be delivered again: the episode would use a slot that is not counted.
    term = (episode.status.attempt, assignment.epoch)
    return assignment.failed_time is not None or agent_pod.acknowledges(episode.metadata.uid, term)


def _is_over(cache: Cache, uid: str) -> bool:
    episode = cache.episode_of(uid)
    return episode is not None and episode.is_finished


class AgentPodPoller:
    """Polls each agent pod in its own asyncio task, so that an agent pod that hangs does not delay others."""

    def __init__(
        self,
        cache: Cache,
        *,
        client: AgentPodClient,
        deliveries: Deliveries,
        dispatcher: Dispatcher,
        enqueue: Callable[[Key], None],
        token_refused: Callable[[AgentPod], None],
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
        self._polled: set[str] = set()

    async def run(self) -> None:
        """Poll until cancelled."""
        agent_pods = self._cache.agent_pods
        agent_pods.start_polling()
        async with asyncio.TaskGroup() as group:
            while True:
                agent_pods.appeared.clear()
                for agent_pod in agent_pods:
                    if agent_pod.url and agent_pod.uid not in self._polled:
                        self._polled.add(agent_pod.uid)
                        group.create_task(self._poll(agent_pod.uid))
                await agent_pods.appeared.wait()

    async def _poll(self, uid: str) -> None:
        """Poll one agent pod until it is gone."""
        clock = self._cache.clock
        try:
            while (agent_pod := self._cache.agent_pods.get(uid)) is not None:
                begun = clock.monotonic()
                if agent_pod.url:
                    await self._poll_once(agent_pod)
                await clock.sleep(max(0.0, begun + self._interval - clock.monotonic()))
        finally:
            self._polled.discard(uid)

    async def _poll_once(self, agent_pod: AgentPod) -> None:
        async with self._slots:
            monotonic_at, requested = self._cache.clock.monotonic(), self._cache.clock.now()
            try:
                report = await self._client.report(agent_pod.address)
            except DgymError as error:
                self._record_failure(agent_pod, error)
                # The status of waiting episodes shows the failure.
                self._dispatcher.wake()
                self._enqueue_if_lost(agent_pod)
                return
        self._observe_report(agent_pod, report, monotonic_at, requested)

    def _observe_report(
        self, agent_pod: AgentPod, report: AgentPodReport, monotonic_at: float, requested: datetime
    ) -> None:
        agent_pods = self._cache.agent_pods
        slots, failed = agent_pods.open_slots(agent_pod), agent_pod.failure
        outages = agent_pod.report.outages if agent_pod.report is not None else ()
        returned = self._cache.episodes_by_agent_pod[agent_pod.uid] if agent_pods.is_silent(agent_pod) else ()
        if failed:
            _log.info("an agent pod answers again", extra=fields(agent_pod=agent_pod.name))
        before = set(agent_pod.observed)
        changed = agent_pods.observe_report(agent_pod, report, requested)
        missing, surplus = compare(agent_pod, self._cache, before)
        for episode in missing:
            if report.draining:
                self._enqueue(episode.key)
            elif not self._deliveries.delivered_since(agent_pod, episode, monotonic_at):
                self._deliveries.deliver(episode.key)
        for uid in surplus:
            self._deliveries.withdraw(agent_pod, uid)
        for uid in changed:
            episode_of = self._cache.episode_of(uid)
            if episode_of is not None:
                self._enqueue(episode_of.key)
        for episode in returned:
            # Necessary even if the report has not changed, because their status must no longer show AgentPodLost.
            self._enqueue(episode.key)
        if agent_pods.open_slots(agent_pod) != slots or failed or report.outages != outages:
            self._dispatcher.wake()

    def _record_failure(self, agent_pod: AgentPod, error: DgymError) -> None:
        failure = str(error)
        if isinstance(error, AccessRefused):
            failure = "it refuses the operator's token, which does not come from the key that it was started with"
            self._token_refused(agent_pod)
        if agent_pod.failure != failure:
            # An agent pod is polled every few seconds, so each cause is logged only once.
            _log.warning("an agent pod does not answer: %s", error, extra=fields(agent_pod=agent_pod.name))
        agent_pod.failure = failure

    def _enqueue_if_lost(self, agent_pod: AgentPod) -> None:
        if self._cache.agent_pods.is_silent(agent_pod):
            for episode in self._cache.episodes_by_agent_pod[agent_pod.uid]:
                self._enqueue(episode.key)
