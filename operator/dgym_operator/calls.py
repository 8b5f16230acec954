"""HTTP calls to pods: agents and sidecars. Every call has a deadline, every answer a size limit.

The answer of a sidecar is believed with its signature alone: a program of the sandbox may have taken its port.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

import aiohttp
import msgspec

from dgym.decoding import DECODE_ERRORS
from dgym.kube import Clock, WorkQueue
from dgym.logs import fields
from dgym.wire import EndReason
from dgym.wire.assignments import (
    ASSIGNMENTS_PATH,
    HOUR_SECONDS,
    AgentReport,
    Assignment,
    AssignmentState,
    AssignmentStatus,
    make_agent_key,
    make_assign_token,
    make_pool_key,
)
from dgym.wire.http import AttemptState, Path, Role, VerifyResponse, make_token
from dgym.wire.signing import SIGNATURE_HEADER, answer_is_signed, content_digest, sign_request, verdict_is_signed
from dgym_operator.pooled import bind_token

V = TypeVar("V")

_log = logging.getLogger(__name__)
_ANSWER_LIMIT = 16 * 1024**2
_MESSAGE_LIMIT = 500
_NOT_FOUND = 404
_DONE, _ATTEMPT_OVER = 200, 410
"""Statuses by which a sidecar acknowledges a call; 202 is none yet."""
_REMEMBERED = 20_000


class CallFailed(Exception):
    """Base of failures. The call is repeated later: all calls are idempotent."""


class Unreachable(CallFailed):
    """No answer: the pod is gone, starting, or unreachable."""


class Refused(CallFailed):
    """An answer that is an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class Answer(NamedTuple):
    """An answer of a pod, not yet believed."""

    status: int
    body: bytes
    signature: str

    @property
    def text(self) -> str:
        """The beginning of the body."""
        return self.body[:_MESSAGE_LIMIT].decode("utf-8", "replace")


class PodCaller:
    """Calls to all pods over one session."""

    def __init__(self, session: aiohttp.ClientSession, *, deadline_seconds: float) -> None:
        self._session = session
        self._deadline = aiohttp.ClientTimeout(total=deadline_seconds, connect=min(3.0, deadline_seconds))

    async def call(self, method: str, url: str, *, authorization: str, body: bytes | None = None) -> Answer:
        """Make one request.

        Raises:
            CallFailed: There is no answer, or one that is too long.
        """
        headers = {"Authorization": authorization}
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            async with self._session.request(
                method, url, data=body, headers=headers, timeout=self._deadline, allow_redirects=False
            ) as response:
                return Answer(response.status, await _read(response), response.headers.get(SIGNATURE_HEADER, ""))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unreachable(f"{method} {url}: {str(error) or type(error).__name__}") from error


async def _read(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > _ANSWER_LIMIT:
            raise Refused(response.status, f"the answer has more than {_ANSWER_LIMIT:,} bytes")
    return bytes(body)


class AgentAddress(NamedTuple):
    """Where an agent listens, and what the token for it is derived from."""

    url: str
    pod_uid: str
    pool: str = ""


class AgentClient:
    """The client of all agents. The token of each is derived from the cluster's key, and lasts for an hour."""

    def __init__(self, caller: PodCaller, key: bytes, clock: Clock) -> None:
        self._caller = caller
        self._key = key
        self._clock = clock

    async def report(self, agent: AgentAddress) -> AgentReport:
        """Get the agent's report."""
        answer = await self._call(agent, "GET", ASSIGNMENTS_PATH)
        try:
            report = msgspec.json.decode(answer.body, type=AgentReport)
        except DECODE_ERRORS as error:
            raise Refused(answer.status, f"its report cannot be read: {error}") from None
        believed = tuple(self._believed(status) for status in report.assignments)
        return msgspec.structs.replace(report, assignments=believed)

    async def assign(self, agent: AgentAddress, assignment: Assignment) -> None:
        """Deliver an assignment; repeating it is harmless."""
        path = f"{ASSIGNMENTS_PATH}/{assignment.episode_uid}"
        await self._call(agent, "PUT", path, msgspec.json.encode(assignment))

    async def withdraw(self, agent: AgentAddress, episode_uid: str) -> None:
        """Withdraw an episode, running or over. An unknown episode counts as withdrawn."""
        try:
            await self._call(agent, "DELETE", f"{ASSIGNMENTS_PATH}/{episode_uid}")
        except Refused as error:
            if error.status != _NOT_FOUND:
                raise

    async def _call(self, agent: AgentAddress, method: str, path: str, body: bytes | None = None) -> Answer:
        agent_key = make_agent_key(make_pool_key(self._key, agent.pool), agent.pod_uid)
        token = make_assign_token(agent_key, int(self._clock.now().timestamp()) // HOUR_SECONDS)
        answer = await self._caller.call(method, agent.url + path, authorization=f"Bearer {token}", body=body)
        if answer.status >= 300:
            raise Refused(answer.status, answer.text)
        return answer

    def _believed(self, status: AssignmentStatus) -> AssignmentStatus:
        """``status``, or a lost sandbox in place of a verdict without the sidecar's signature.

        An agent may have got such a verdict from a program of the sandbox that answered on the sidecar's port.
        """
        if status.reason is None or not status.reason.is_verdict:
            return status
        uid, attempt = status.episode_uid, status.attempt
        if verdict_is_signed(self._key, status.outcome, status.reason, episode_uid=uid, attempt=attempt):
            return status
        return msgspec.structs.replace(
            status,
            state=AssignmentState.FAILED,
            reason=EndReason.SANDBOX_LOST,
            outcome=None,
            message=f"the agent reports {status.reason} without the signature of the episode's sidecar",
        )


class SidecarCall(NamedTuple):
    """One request to one sidecar, and its identity for deduplication; ``pooled_as`` while it serves no attempt yet."""

    path: Path
    url: str
    episode_uid: str
    attempt: int
    body: bytes | None = None
    pooled_as: str = ""

    @property
    def method(self) -> str:
        """The method of the request."""
        return "GET" if self.path is Path.STATE else "POST"


class SidecarAnswer(NamedTuple):
    """What a sidecar has answered, and when it was asked. Without ``content`` it has acknowledged the call."""

    call: SidecarCall
    asked: datetime
    content: VerifyResponse | AttemptState | None = None


class SidecarCalls:
    """Calls to sidecars: queued once, made by a few workers with a short deadline, and not repeated once acknowledged.

    A sidecar may be slow or gone, so no decision waits for it: ``answered`` gets its answer. A failed call is requested
    again by a later decision, and so are those that ask for clocks.
    """

    def __init__(
        self,
        caller: PodCaller,
        key: bytes,
        queue: WorkQueue[SidecarCall],
        *,
        clock: Clock,
        answered: Callable[[SidecarAnswer], None] = lambda _answer: None,
    ) -> None:
        self._caller = caller
        self._key = key
        self._answered = answered
        self._queue = queue
        self._clock = clock
        self._acknowledged: OrderedDict[SidecarCall, None] = OrderedDict()
        self._failures: OrderedDict[SidecarCall, str] = OrderedDict()

    def request(self, call: SidecarCall) -> None:
        """Queue the call unless it is acknowledged."""
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
        about = fields(episode_uid=call.episode_uid, attempt=call.attempt, url=call.url, call=call.path.value)
        token = _token(self._key, call)
        # The token signs the request and does not travel: a program of the sandbox may have the port by now.
        authorization = sign_request(token, call.method, call.path, content=content_digest(call.body or b""))
        asked = self._clock.now()
        try:
            answer = await self._caller.call(
                call.method, call.url + call.path, authorization=authorization, body=call.body
            )
            if not answer_is_signed(token, authorization, answer.status, answer.body, answer.signature):
                raise Unreachable(f"{answer.status} without the signature of the episode's sidecar: {answer.text}")
            if answer.status >= 300 and answer.status != _ATTEMPT_OVER:
                raise Refused(answer.status, answer.text)
            content = _content(call, answer)
        except CallFailed as error:
            self._log_failure(call, str(error), about)
            return
        if answer.status in (_DONE, _ATTEMPT_OVER):
            _log.info("a sidecar was called", extra=about)
            self._failures.pop(call, None)
            if _is_acknowledged(content):
                _remember(self._acknowledged, call, None)
            self._answered(SidecarAnswer(call, asked, content))

    def _log_failure(self, call: SidecarCall, failure: str, about: dict[str, Any]) -> None:
        """Log each cause once: the call is repeated every few seconds."""
        if self._failures.get(call) != failure:
            _log.warning("a call to a sidecar failed: %s", failure, extra=about)
        _remember(self._failures, call, failure)


def _token(key: bytes, call: SidecarCall) -> str:
    if call.pooled_as:
        return bind_token(key, call.pooled_as)
    return make_token(key, episode_uid=call.episode_uid, attempt=call.attempt, role=Role.OPERATE)


def _content(call: SidecarCall, answer: Answer) -> VerifyResponse | AttemptState | None:
    kind = {Path.VERIFY: VerifyResponse, Path.STATE: AttemptState}.get(call.path)
    if kind is None or answer.status != _DONE:
        return None
    try:
        content: VerifyResponse | AttemptState = msgspec.json.decode(answer.body, type=kind)
    except DECODE_ERRORS as error:
        raise Refused(answer.status, f"its answer cannot be read: {error}") from None
    return content


def _is_acknowledged(content: VerifyResponse | AttemptState | None) -> bool:
    """Whether the call need not be repeated: a sidecar may not know yet under which step its sandbox died."""
    if isinstance(content, VerifyResponse):
        return content.expected or content.known or content.poisoned_step is not None
    return content is None


def _remember(records: OrderedDict[SidecarCall, V], call: SidecarCall, value: V) -> None:
    records[call] = value
    if len(records) > _REMEMBERED:
        records.popitem(last=False)
