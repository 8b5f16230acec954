"""The HTTP protocol of an episode's sidecar: headers, limits, errors, requests and responses. Pure.

Bodies are JSON. Unknown fields are ignored, so that a sidecar and a driver may be a minor version apart.

Errors have a closed set of codes. A tool that fails returns an observation and not an error. A fault of the
infrastructure is an error and not an observation. Each attempt has a token for each role, derived from the cluster's
key. The pod's specification has only the digests of the tokens.
"""

import hashlib
import hmac
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

import msgspec

from dgym.errors import (
    AccessRefused,
    ConflictError,
    DgymError,
    EpisodeOver,
    InfrastructureError,
    ManifestError,
    SandboxLost,
    SetupFailed,
    Superseded,
    VerifierFailed,
)
from dgym.tracing import Span
from dgym.wire.messages import Breakpoint, Observation, Score, Step, ToolCall
from dgym.wire.outcome import Count, EndReason, Result, RunEnvironment, read_cost

EPOCH_HEADER = "Dgym-Epoch"
"""The epoch of the caller's assignment, with the operator's proof. Lower epochs than the highest are superseded."""
IDEMPOTENCY_HEADER = "Idempotency-Key"
"""The idempotency key of a reset."""
PROXIED_AUTHORIZATION_HEADER = "Dgym-Authorization"
"""Replaces ``Authorization`` behind a proxy that uses that header itself, such as the Kubernetes API server."""
TRACEPARENT_HEADER = "traceparent"
"""The caller's span (W3C Trace Context)."""
ANSWER_SECONDS = 30.0
"""A call that takes longer answers 202; the client repeats the request."""

WORKSPACE_LIMIT = 2 * 1024**3
"""Bytes of an uploaded workspace."""
PREPARE_LIMIT = 8 * 1024**2
"""Bytes of the body of ``POST /v1/prepare``, which contains the task with its hidden files."""
REPLAY_LIMIT = 32 * 1024**2
"""Bytes of the steps of an earlier attempt in ``PUT /v1/trajectory``; the session keeps them in memory."""
BODY_LIMIT = 2 * 1024**2
"""Bytes of every other body."""
TRAJECTORY_PAGE_LIMIT = 4 * 1024**2
"""Approximate bytes of steps in one answer of ``GET /v1/steps``."""

_END = r"$(?!\n)"
"""Without the second part, Python's ``$`` also matches before a line's end."""
Price = Annotated[str, msgspec.Meta(pattern=f"^[0-9]{{1,12}}(\\.[0-9]{{1,12}})?{_END}", max_length=25)]
Digest = Annotated[str, msgspec.Meta(pattern=f"^[0-9a-f]{{64}}{_END}", max_length=64)]
"""A SHA-256 in lower-case hexadecimal digits."""


class Role(StrEnum):
    """The caller's role. Each role has its own token for each attempt of an episode."""

    PREPARE = "prepare"
    DRIVE = "drive"
    OPERATE = "operate"


class ErrorCode(StrEnum):
    """The code of an error."""

    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    INVALID_ARGUMENT = "invalid_argument"
    CONFLICT = "conflict"
    GAP = "gap"
    SUPERSEDED = "superseded"
    ATTEMPT_OVER = "attempt_over"
    TOO_LARGE = "too_large"
    LIMIT_REACHED = "limit_reached"
    BUSY = "busy"
    SANDBOX_LOST = "sandbox_lost"
    SETUP_FAILED = "setup_failed"
    VERIFIER_FAILED = "verifier_failed"
    INTERNAL = "internal"

    @property
    def status(self) -> int:
        """The HTTP status of an answer with this code."""
        return _ANSWERS[self][0]

    @property
    def exception(self) -> type[DgymError]:
        """The exception that a client raises for this code."""
        return _ANSWERS[self][1]

    @property
    def retryable(self) -> bool:
        """Whether repeating the request may help; the other errors end the call, and often the attempt."""
        return self is ErrorCode.BUSY


_ANSWERS: dict[ErrorCode, tuple[int, type[DgymError]]] = {
    ErrorCode.UNAUTHENTICATED: (401, AccessRefused),
    ErrorCode.FORBIDDEN: (403, AccessRefused),
    ErrorCode.NOT_FOUND: (404, InfrastructureError),
    ErrorCode.INVALID_ARGUMENT: (400, ManifestError),
    ErrorCode.CONFLICT: (409, ConflictError),
    ErrorCode.GAP: (409, ConflictError),
    ErrorCode.SUPERSEDED: (409, Superseded),
    ErrorCode.ATTEMPT_OVER: (410, EpisodeOver),
    ErrorCode.TOO_LARGE: (413, ManifestError),
    ErrorCode.LIMIT_REACHED: (409, EpisodeOver),
    ErrorCode.BUSY: (503, InfrastructureError),
    ErrorCode.SANDBOX_LOST: (502, SandboxLost),
    ErrorCode.SETUP_FAILED: (422, SetupFailed),
    ErrorCode.VERIFIER_FAILED: (500, VerifierFailed),
    ErrorCode.INTERNAL: (500, InfrastructureError),
}


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of every answer whose status is 400 or above."""

    code: ErrorCode
    message: str
    retryable: bool = False


def error_body(code: ErrorCode, message: str) -> ErrorBody:
    """The body of an error of that code."""
    return ErrorBody(code=code, message=message, retryable=code.retryable)


class CallError(DgymError):
    """A call is refused."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class WireMessage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base class of bodies."""


class BindRequest(WireMessage, frozen=True, kw_only=True):
    """The attempt that a sidecar of a sandbox pool serves. Other sidecars have these values in their environment.

    ``episode`` is ``namespace/name``; the digests are of the tokens of the attempt's roles, which all differ.
    """

    episode: Annotated[str, msgspec.Meta(pattern=f"^[a-z0-9-]{{1,63}}/[a-z0-9.-]{{1,253}}{_END}", max_length=317)]
    episode_uid: Annotated[str, msgspec.Meta(pattern=f"^[0-9A-Za-z._-]{{1,64}}{_END}", max_length=64)]
    attempt: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
    prepare_sha256: Digest
    drive_sha256: Digest
    operate_sha256: Digest

    def __post_init__(self) -> None:
        if len({self.prepare_sha256, self.drive_sha256, self.operate_sha256}) < len(Role):
            raise ValueError("`prepareSha256`, `driveSha256` and `operateSha256` must differ: use different tokens")


class Epochs(WireMessage, frozen=True, kw_only=True):
    """The header ``Dgym-Epoch`` of an assignment, for each role whose token the assignment has."""

    prepare: str
    drive: str


class SpansResponse(WireMessage, frozen=True, kw_only=True):
    """The newest ``MOST_SPANS`` spans of calls with a sampled ``traceparent``, oldest first."""

    spans: tuple[Span, ...] = ()


class Usage(WireMessage, frozen=True, kw_only=True):
    """The model's tokens so far, counted by the driver, and their price as a decimal number; None without prices."""

    input_tokens: Count = 0
    output_tokens: Count = 0
    price: Price | None = None

    def merged(self, other: "Usage") -> "Usage":
        """The maximum of each number. The numbers only grow, and may arrive out of order."""
        return Usage(
            input_tokens=max(self.input_tokens, other.input_tokens),
            output_tokens=max(self.output_tokens, other.output_tokens),
            price=max(self.price, other.price, key=read_cost),
        )


class UploadResponse(WireMessage, frozen=True, kw_only=True):
    """An uploaded file: an uncompressed tar (``PUT /v1/workspace``), or a step per line (``PUT /v1/trajectory``)."""

    bytes: Count
    sha256: str


class ToolWithOptions(WireMessage, frozen=True, kw_only=True):
    """A tool with options."""

    name: str
    options: dict[str, Any] = msgspec.field(default_factory=dict)


class PrepareRequest(WireMessage, frozen=True, kw_only=True):
    """The episode's task and limits. Only the role ``prepare`` sends or sees scoring, hidden files and the solution.

    ``task`` is a DebugTask. ``workspace_sha256`` names the tar that was uploaded; None: the image contains
    the repository. ``remaining_seconds`` is the rest of the episode's deadline from the reset on; None: unbounded.
    ``driver_idle_seconds`` is the longest time without a call of the driver, from the preparation on; None: unbounded.

    ``trajectory_sha256`` names the uploaded steps of an earlier attempt, which the reset replays without those of
    ``poisoned_steps``; None: the episode starts from the beginning. ``usage`` counts the tokens of these steps.
    """

    task: dict[str, Any]
    tools: Annotated[tuple[str | ToolWithOptions, ...], msgspec.Meta(min_length=1, max_length=64)]
    workspace_sha256: str | None = None
    max_steps: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 50
    max_rewrites: Annotated[int, msgspec.Meta(ge=0, le=10_000)] | None = None
    remaining_seconds: Annotated[float, msgspec.Meta(ge=0)] | None = 3600.0
    driver_idle_seconds: Annotated[float, msgspec.Meta(gt=0)] | None = None
    trajectory_sha256: str | None = None
    poisoned_steps: Annotated[tuple[Count, ...], msgspec.Meta(max_length=10_000)] = ()
    usage: Usage | None = None


class PrepareResponse(WireMessage, frozen=True, kw_only=True):
    """The tools that were loaded."""

    tools: tuple[str, ...]


class ReleaseRequest(WireMessage, frozen=True, kw_only=True):
    """The result is stored at ``result_uri``; the pod may end. ``reason`` is used if the sidecar has no outcome."""

    result_uri: Annotated[str, msgspec.Meta(max_length=2048)] = msgspec.field(default="", name="resultURI")
    reason: EndReason | None = None
    message: Annotated[str, msgspec.Meta(max_length=4096)] = ""


class ResetRequest(WireMessage, frozen=True, kw_only=True):
    """``evaluate`` runs the tests and shows their output in the first observation."""

    evaluate: bool = False


class StepRequest(WireMessage, frozen=True, kw_only=True):
    """One call: ``tool`` and ``arguments``, or ``action``, a line of text or any other value that the session parses.

    A repeated request is the same step if everything except ``usage`` is equal.
    """

    tool: str | None = None
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)
    action: Any = msgspec.UNSET
    usage: Usage | None = None

    def __post_init__(self) -> None:
        if self.tool is None and self.action is msgspec.UNSET:
            raise ValueError("neither `tool` nor `action` is given")

    @property
    def given(self) -> Any:
        """The call, or the ``action``."""
        return self.action if self.tool is None else ToolCall(tool=self.tool, arguments=self.arguments)


class StepState(WireMessage, frozen=True, kw_only=True):
    """The state of the episode after a step; the source of Gymnasium's ``info``.

    ``tools`` are the names of the tools available now, ``evaluation`` is the output of the last test run, ``usage`` the
    model's tokens as last reported by a driver.
    """

    steps: Count
    rewrites: Count
    tools: tuple[str, ...]
    evaluation: str | None = None
    breakpoints: tuple[Breakpoint, ...] = ()
    focus_file: str | None = None
    end_reason: EndReason | None = None
    score: Score | None = None
    usage: Usage | None = None


class StepResponse(WireMessage, frozen=True, kw_only=True):
    """The step as it is recorded (number 0: the reset) and the state of the episode after it."""

    step: Step
    state: StepState


class PeekResponse(WireMessage, frozen=True, kw_only=True):
    """The observation of a peek, which is not a step."""

    observation: Observation


class StepsResponse(WireMessage, frozen=True, kw_only=True):
    """Recorded steps in order; ``next`` is the number of the first step left out, None after the last."""

    steps: tuple[Step, ...]
    next: int | None = None


class ToolDescription(WireMessage, frozen=True, kw_only=True):
    """A tool in the format of function-calling APIs, and its instructions for a prompt."""

    name: str
    description: str
    parameters: dict[str, Any]
    instructions: str


class ToolsResponse(WireMessage, frozen=True, kw_only=True):
    """The task's instructions and the tools. ``notices`` are texts of the tools' ``on_reset``.

    ``environment`` is where the task's programs run; None before the reset.
    """

    instructions: str
    tools: tuple[ToolDescription, ...]
    notices: tuple[str, ...] = ()
    environment: RunEnvironment | None = None


class PatchResponse(WireMessage, frozen=True, kw_only=True):
    """The agent's changes as a patch for ``git apply``."""

    patch: str


class FinishRequest(WireMessage, frozen=True, kw_only=True):
    """End and score the episode. ``reason`` is the driver's: it gave up, used up its tokens, or was cancelled."""

    reason: EndReason = EndReason.UNRESOLVED
    usage: Usage | None = None


class FinishResponse(WireMessage, frozen=True, kw_only=True):
    """The result of the episode."""

    result: Result


class TerminatedResponse(WireMessage, frozen=True, kw_only=True):
    """The cause of the end of the sandbox's container.

    ``expected`` is False if no call had ordered the end. ``poisoned_step`` is the step that was in flight at that time.
    ``known`` is False while this is not certain, because a call is in flight; repeat the request.
    """

    expected: bool
    poisoned_step: int | None = None
    known: bool = False


class AttemptState(WireMessage, frozen=True, kw_only=True):
    """The clocks of an attempt, for the operator.

    ``elapsed_seconds`` is how long the episode's deadline has run here, ``remaining_seconds`` is the rest of it; None:
    unlimited. ``running`` is False while it does not run. ``step_in_flight`` is the step that is being executed,
    ``poisoned_steps`` those during which a sandbox of this attempt died. ``ending`` is True once the episode has ended,
    scored or not, ``ended`` once the attempt has a result or has failed.
    """

    elapsed_seconds: float = 0.0
    remaining_seconds: float | None = None
    running: bool = False
    steps: Count = 0
    step_in_flight: Count | None = None
    poisoned_steps: tuple[Count, ...] = ()
    ending: bool = False
    ended: bool = False


class RunningRequest(WireMessage, frozen=True, kw_only=True):
    """The sandbox's container was running at ``observed``, a time that the kubelet of its node wrote into the pod."""

    observed: Annotated[datetime, msgspec.Meta(tz=True)]


class PauseRequest(WireMessage, frozen=True, kw_only=True):
    """The agent pod of assignment ``epoch`` is lost: the deadline does not run until the next call of a driver."""

    epoch: Count


class Accepted(WireMessage, frozen=True, kw_only=True):
    """The call has begun or was recorded; with status 202 the client repeats the request."""

    running: bool = False


DRIVER_REASONS = frozenset(
    {
        EndReason.UNRESOLVED,
        EndReason.TOKEN_BUDGET_EXHAUSTED,
        EndReason.COST_LIMIT_REACHED,
        EndReason.CONTEXT_EXHAUSTED,
        EndReason.MODEL_REFUSED,
        EndReason.NO_TOOL_CALL,
        EndReason.CANCELLED,
        EndReason.MODEL_ERROR,
    }
)
"""Reasons that a driver may give with ``finish``; the sidecar determines the others."""


def make_token(key: bytes, *, episode_uid: str, attempt: int, role: Role) -> str:
    """The token of ``role`` for one attempt: an HMAC of the cluster's key."""
    message = "\0".join((episode_uid, str(attempt), role.value)).encode()
    return hmac.new(key, message, hashlib.sha256).hexdigest()


def token_digest(token: str) -> str:
    """The SHA-256 of a token, as the pod's specification has it."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
