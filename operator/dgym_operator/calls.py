"""The operator's calls to agent pods and sidecars. Every call has a deadline, and every answer has a size limit."""

import logging
from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

import msgspec

from dgym.errors import DgymError, EpisodeOver
from dgym.kube import Clock, WorkQueue
from dgym.logs import fields
from dgym.wire import AttemptOutcome, EndReason
from dgym.wire.assignments import (
    HOUR_SECONDS,
    REPORT,
    AgentPodReport,
    AssignmentState,
    AssignmentStatus,
    make_agent_pod_key,
    make_assign_token,
    make_pool_key,
)
from dgym.wire.calls import Call
from dgym.wire.client import PodClient, PodTransport, Unanswered
from dgym.wire.http import AttemptState, Role, TerminatedResponse, WireMessage, make_token
from dgym.wire.signing import outcome_is_signed
from dgym_operator.pod_identity import bind_token

Q = TypeVar("Q")
R = TypeVar("R")
V = TypeVar("V")

_log = logging.getLogger(__name__)
ANSWER_LIMIT = 16 * 1024**2
_REMEMBERED = 20_000


class AgentPodAddress(NamedTuple):
    """The URL of an agent pod, and the values from which its token is derived."""

    url: str
    pod_uid: str
    pool: str = ""


class AgentPodClient:
    """The client for all agent pods. The token of each is derived from the cluster's key and is valid for an hour."""

    def __init__(self, transport: PodTransport, key: bytes, clock: Clock) -> None:
        self._transport = transport
        self._key = key
        self._clock = clock

    async def call(
        self, agent_pod: AgentPodAddress, call: Call[Q, R], body: Q | None = None, **parameters: int | str
    ) -> R:
        """Make the call once.

        Raises:
            DgymError: The agent pod did not answer, or answered with an error.
        """
        agent_pod_key = make_agent_pod_key(make_pool_key(self._key, agent_pod.pool), agent_pod.pod_uid)
        token = make_assign_token(agent_pod_key, int(self._clock.now().timestamp()) // HOUR_SECONDS)
        client = PodClient(agent_pod.url, token, transport=self._transport)
        answer = await client.once(call, body, **parameters)
        if answer is None:
            raise Unanswered(f"{agent_pod.url} answers {call.method} {call.path} with status 202")
        return answer

    async def report(self, agent_pod: AgentPodAddress) -> AgentPodReport:
        """Get the report of the agent pod. Scored outcomes without the signature of a sidecar are replaced."""
        report = await self.call(agent_pod, REPORT)
        assignments = tuple(self._without_unsigned_outcome(status) for status in report.assignments)
        return msgspec.structs.replace(report, assignments=assignments)

    def _without_unsigned_outcome(self, status: AssignmentStatus) -> AssignmentStatus:
        """Return ``status``. A scored outcome without the sidecar's signature is replaced by a lost sandbox.

        Such an outcome may come from a program of the sandbox that answered on the sidecar's port.
        """
        outcome = status.outcome
        if outcome is None or not outcome.reason.is_counted:
            return status
        if outcome_is_signed(self._key, outcome, episode_uid=status.episode_uid, attempt=status.attempt):
            return status
        why = f"the agent pod reports {outcome.reason} without the signature of the episode's sidecar"
        lost = AttemptOutcome(resolved=False, reason=EndReason.SANDBOX_LOST, message=why)
        return msgspec.structs.replace(status, state=AssignmentState.FAILED, outcome=lost, message="")


class SidecarCall(NamedTuple):
    """A request to a sidecar. Equal requests are deduplicated.

    ``pooled_as`` is the pool identity of a pod that does not serve an attempt yet.
    """

    call: Call[Any, Any]
    url: str
    episode_uid: str
    attempt: int
    body: WireMessage | None = None
    pooled_as: str = ""


class SidecarAnswer(NamedTuple):
    """The answer of a sidecar, and when the call was made. ``content`` is None if the attempt is over."""

    call: SidecarCall
    requested: datetime
    content: WireMessage | None = None


class SidecarCalls:
    """Queue of calls to sidecars, which a few workers make with a short deadline.

    A sidecar may be slow or gone, so decisions do not wait for its answer, which is passed to ``answered``. A later
    decision requests a failed call again. A call that was acknowledged is not repeated, except the calls that read
    clocks.
    """

    def __init__(
        self,
        transport: PodTransport,
        key: bytes,
        queue: WorkQueue[SidecarCall],
        *,
        clock: Clock,
        answered: Callable[[SidecarAnswer], None] = lambda _answer: None,
    ) -> None:
        self._transport = transport
        self._key = key
        self._answered = answered
        self._queue = queue
        self._clock = clock
        self._acknowledged: OrderedDict[SidecarCall, None] = OrderedDict()
        self._failures: OrderedDict[SidecarCall, str] = OrderedDict()

    def request(self, call: SidecarCall) -> None:
        """Queue the call, unless it was acknowledged."""
        if call not in self._acknowledged:
            self._queue.add(call)

    async def work(self) -> None:
        """Make calls until cancelled. Several workers may run."""
        while True:
            async with self._queue.take() as call:
                # It may have been queued again while it was in flight.
                if call not in self._acknowledged:
                    await self._make(call)

    async def _make(self, call: SidecarCall) -> None:
        about = fields(episode_uid=call.episode_uid, attempt=call.attempt, url=call.url, call=call.call.path)
        client = PodClient(call.url, _token(self._key, call), transport=self._transport)
        requested = self._clock.now()
        try:
            content = await client.once(call.call, call.body)
            if content is None:
                return  # The sidecar is still processing the call, so it is not acknowledged yet.
        except EpisodeOver:
            content = None
        except DgymError as error:
            self._log_failure(call, str(error), about)
            return
        _log.info("a sidecar was called", extra=about)
        self._failures.pop(call, None)
        if _is_acknowledged(content):
            _remember(self._acknowledged, call, None)
        self._answered(SidecarAnswer(call, requested, content))

    def _log_failure(self, call: SidecarCall, failure: str, about: dict[str, Any]) -> None:
        """Log each cause only once, because the call is repeated every few seconds."""
        if self._failures.get(call) != failure:
            _log.warning("a call to a sidecar failed: %s", failure, extra=about)
        _remember(self._failures, call, failure)


def _token(key: bytes, call: SidecarCall) -> str:
    if call.pooled_as:
        return bind_token(key, call.pooled_as)
    return make_token(key, episode_uid=call.episode_uid, attempt=call.attempt, role=Role.OPERATE)


def _is_acknowledged(content: WireMessage | None) -> bool:
    """True if the call need not be repeated. A sidecar may detect only later during which step its sandbox died."""
    if isinstance(content, TerminatedResponse):
        return content.expected or content.known or content.poisoned_step is not None
    return not isinstance(content, AttemptState)


def _remember(records: OrderedDict[SidecarCall, V], call: SidecarCall, value: V) -> None:
    records[call] = value
    if len(records) > _REMEMBERED:
        records.popitem(last=False)
