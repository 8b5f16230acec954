"""The HTTP protocol of an episode's sidecar: paths, headers, requests and responses. Pure.

Bodies are JSON. Unknown fields are ignored, so that a sidecar and a driver may be a minor version apart.

Errors have a closed set of codes. What a tool cannot do is an observation and never an error; a fault of the
infrastructure is an error and never an observation. Each attempt has a bearer token for each role, made from the
cluster's key; the pod's specification holds their digests alone.
"""

import hashlib
import hmac
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

import msgspec

from dgym.tracing import Span
from dgym.wire.costs import read_cost
from dgym.wire.error_codes import ErrorBody as ErrorBody
from dgym.wire.error_codes import ErrorCode as ErrorCode
from dgym.wire.error_codes import error_body as error_body
from dgym.wire.messages import Breakpoint, EndReason, Observation, Result, Score, Step, ToolCall
from dgym.wire.provenance import RunEnvironment

EPOCH_HEADER = "Dgym-Epoch"
"""The epoch of the caller's assignment, with the operator's proof; one below the highest seen is superseded."""
IDEMPOTENCY_HEADER = "Idempotency-Key"
"""The idempotency key of a reset."""
PROXIED_AUTHORIZATION_HEADER = "Dgym-Authorization"
"""In place of ``Authorization`` where a proxy takes that for itself, as the Kubernetes API server does."""
TRACEPARENT_HEADER = "traceparent"
"""The caller's span, as the W3C's Trace Context names it."""
ANSWER_SECONDS = 30.0
"""A call that takes longer answers 202; the client repeats the request."""

WORKSPACE_LIMIT = 2 * 1024**3
"""Bytes of an uploaded workspace."""
PREPARE_LIMIT = 8 * 1024**2
"""Bytes of the body of ``POST /v1/prepare``, which holds the task with its hidden files."""
REPLAY_LIMIT = 32 * 1024**2
"""Bytes of the steps of an earlier attempt in ``PUT /v1/history``; the session keeps them in memory."""
BODY_LIMIT = 2 * 1024**2
"""Bytes of every other body."""
HISTORY_LIMIT = 4 * 1024**2
"""Approximate bytes of steps in one answer of ``GET /v1/steps``."""

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
_END = r"$(?!\n)"
"""Python's ``$`` alone allows a line's end behind it."""
Price = Annotated[str, msgspec.Meta(pattern=f"^[0-9]{{1,12}}(\\.[0-9]{{1,12}})?{_END}", max_length=25)]
Digest = Annotated[str, msgspec.Meta(pattern=f"^[0-9a-f]{{64}}{_END}", max_length=64)]
"""A SHA-256 in lower-case hexadecimal digits."""


class Role(StrEnum):
    """The caller's role. Each role has its own token for each attempt of an episode."""

    PREPARE = "prepare"
    DRIVE = "drive"
    OPERATE = "operate"


class Path(StrEnum):
    """The path of each call; ``STEPS`` is followed by a slash and the step's number."""

    BIND = "/v1/bind"
    WORKSPACE = "/v1/workspace"
    HISTORY = "/v1/history"
    PREPARE = "/v1/prepare"
    SOLUTION = "/v1/solution"
    RESULT = "/v1/result"
    RELEASE = "/v1/release"
    RESET = "/v1/reset"
    STEPS = "/v1/steps"
    PEEK = "/v1/peek"
    TOOLS = "/v1/tools"
    DIFF = "/v1/diff"
    CLOSE = "/v1/close"
    VERIFY = "/v1/verify"
    RUNNING = "/v1/running"
    PAUSE = "/v1/pause"
    CANCEL = "/v1/cancel"
    STATE = "/v1/state"
    SPANS = "/v1/spans"
    HEALTH = "/healthz"
    READY = "/readyz"


class Message(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A body."""


class BindRequest(Message, frozen=True, kw_only=True):
    """The attempt that a pooled sidecar is to serve: what another one has in its environment.

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
            raise ValueError("`prepareSha256`, `driveSha256` and `operateSha256` must differ: give each role its token")


class Epochs(Message, frozen=True, kw_only=True):
    """The header ``Dgym-Epoch`` of an assignment, for each role that it has a token of."""

    prepare: str
    drive: str


class SpansResponse(Message, frozen=True, kw_only=True):
    """Spans of the calls whose ``traceparent`` asked for them, oldest first; the newest ``MOST_SPANS`` at most."""

    spans: tuple[Span, ...] = ()


class Usage(Message, frozen=True, kw_only=True):
    """The model's tokens so far, counted by the driver, and their price as a decimal number; None: it has no prices."""

    input_tokens: Count = 0
    output_tokens: Count = 0
    price: Price | None = None

    def merged(self, other: "Usage") -> "Usage":
        """The higher of both numbers each: they only grow, and may arrive out of order."""
        return Usage(
            input_tokens=max(self.input_tokens, other.input_tokens),
            output_tokens=max(self.output_tokens, other.output_tokens),
            price=max(self.price, other.price, key=read_cost),
        )


class UploadResponse(Message, frozen=True, kw_only=True):
    """What arrived by ``PUT /v1/workspace``, an uncompressed tar, or ``PUT /v1/history``, a line of JSON a step."""

    bytes: Count
    sha256: str


class NamedTool(Message, frozen=True, kw_only=True):
    """A tool with options of its own."""

    name: str
    options: dict[str, Any] = msgspec.field(default_factory=dict)


class PrepareRequest(Message, frozen=True, kw_only=True):
    """The episode's task and limits. Only the role ``prepare`` sends or sees scoring, hidden files and the solution.

    ``task`` is a DebugTask. ``workspace_sha256`` names the tar that was uploaded; None: the image holds the
    repository. ``remaining_seconds`` is what is left of the episode's deadline from the reset on; None: unbounded.
    ``driver_idle_seconds`` is how long the driver may make no call, from the preparation on; None: unbounded.

    ``history_sha256`` names the uploaded steps of an earlier attempt, which the reset replays without those of
    ``poisoned_steps``; None: the episode begins afresh. ``usage`` is what the model has used in them.
    """

    task: dict[str, Any]
    tools: Annotated[tuple[str | NamedTool, ...], msgspec.Meta(min_length=1, max_length=64)]
    workspace_sha256: str | None = None
    max_steps: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 50
    max_rewrites: Annotated[int, msgspec.Meta(ge=0, le=10_000)] | None = None
    remaining_seconds: Annotated[float, msgspec.Meta(ge=0)] | None = 3600.0
    driver_idle_seconds: Annotated[float, msgspec.Meta(gt=0)] | None = None
    history_sha256: str | None = None
    poisoned_steps: Annotated[tuple[Count, ...], msgspec.Meta(max_length=10_000)] = ()
    usage: Usage | None = None


class PrepareResponse(Message, frozen=True, kw_only=True):
    """The tools that were loaded."""

    tools: tuple[str, ...]


class ReleaseRequest(Message, frozen=True, kw_only=True):
    """The result is stored at ``result_uri``; the pod may end. ``reason`` counts only where there is no verdict."""

    result_uri: Annotated[str, msgspec.Meta(max_length=2048)] = msgspec.field(default="", name="resultURI")
    reason: EndReason | None = None
    message: Annotated[str, msgspec.Meta(max_length=4096)] = ""


class ResetRequest(Message, frozen=True, kw_only=True):
    """``evaluate`` runs the tests and shows their output in the first observation."""

    evaluate: bool = False


class StepRequest(Message, frozen=True, kw_only=True):
    """One call: ``tool`` and ``arguments``, or ``action``, a line of text or anything else that the session reads.

    The argument ``action`` of a tool "" means the same. A repeated step is the same step when all but ``usage`` is
    equal.
    """

    tool: str | None = None
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)
    action: Any = msgspec.UNSET
    usage: Usage | None = None

    def __post_init__(self) -> None:
        if self.tool is None and self.action is msgspec.UNSET:
            raise ValueError("neither `tool` nor `action` is given")

    @property
    def call(self) -> ToolCall:
        """The call; of an ``action`` one without a tool, which the session reads."""
        if self.tool is None:
            return ToolCall(tool="", arguments={"action": self.action})
        return ToolCall(tool=self.tool, arguments=self.arguments)


class EpisodeState(Message, frozen=True, kw_only=True):
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


class StepResponse(Message, frozen=True, kw_only=True):
    """The step as it is recorded (number 0: the reset) and the state of the episode after it."""

    step: Step
    state: EpisodeState


class PeekResponse(Message, frozen=True, kw_only=True):
    """The observation of a peek, which is not a step."""

    observation: Observation


class StepsResponse(Message, frozen=True, kw_only=True):
    """Recorded steps in order; ``next`` is the number of the first step left out, None after the last."""

    steps: tuple[Step, ...]
    next: int | None = None


class ToolDescription(Message, frozen=True, kw_only=True):
    """A tool as function-calling APIs take it, and its instructions for a prompt."""

    name: str
    description: str
    parameters: dict[str, Any]
    instructions: str


class ToolsResponse(Message, frozen=True, kw_only=True):
    """The task's instructions and the tools. ``notices`` are texts of the tools' ``on_reset``.

    ``environment`` is where the task's programs run; None before the reset.
    """

    instructions: str
    tools: tuple[ToolDescription, ...]
    notices: tuple[str, ...] = ()
    environment: RunEnvironment | None = None


class DiffResponse(Message, frozen=True, kw_only=True):
    """The agent's changes as a patch for ``git apply``."""

    patch: str


class CloseRequest(Message, frozen=True, kw_only=True):
    """End and score the episode. ``reason`` is the driver's: it gave up, used up its tokens, or was cancelled."""

    reason: EndReason = EndReason.UNRESOLVED
    usage: Usage | None = None


class CloseResponse(Message, frozen=True, kw_only=True):
    """The verdict."""

    result: Result


class VerifyResponse(Message, frozen=True, kw_only=True):
    """The cause of the end of the sandbox's container.

    ``expected`` is False when no call had ordered the end; ``poisoned_step`` is the step in flight at that time.
    ``known`` is False while that is not certain: the call in flight will show it, and the answer of a later repetition.
    """

    expected: bool
    poisoned_step: int | None = None
    known: bool = False


class AttemptState(Message, frozen=True, kw_only=True):
    """The clocks of an attempt, for the operator.

    ``elapsed_seconds`` is how long the episode's deadline has run here, ``remaining_seconds`` what is left of it; None:
    without end. ``running`` is False while it does not run. ``step_in_flight`` is the step that is being executed,
    ``poisoned_steps`` those under which a sandbox of this attempt died. ``ending`` is True once the episode has ended,
    scored or not, ``ended`` once there is a verdict or a failure that will not pass.
    """

    elapsed_seconds: float = 0.0
    remaining_seconds: float | None = None
    running: bool = False
    steps: Count = 0
    step_in_flight: Count | None = None
    poisoned_steps: tuple[Count, ...] = ()
    ending: bool = False
    ended: bool = False


class RunningRequest(Message, frozen=True, kw_only=True):
    """The sandbox's container was running at ``observed``, a time that the kubelet of its node wrote into the pod."""

    observed: Annotated[datetime, msgspec.Meta(tz=True)]


class PauseRequest(Message, frozen=True, kw_only=True):
    """The agent of assignment ``epoch`` is lost: the deadline does not run until the next call of a driver."""

    epoch: Count


class Accepted(Message, frozen=True, kw_only=True):
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
"""Reasons that a driver may give with ``close``; the sidecar determines the others."""


def make_token(key: bytes, *, episode_uid: str, attempt: int, role: Role) -> str:
    """The token of ``role`` for one attempt: an HMAC of the cluster's key."""
    message = "\0".join((episode_uid, str(attempt), role.value)).encode()
    return hmac.new(key, message, hashlib.sha256).hexdigest()


def token_digest(token: str) -> str:
    """The SHA-256 of a token, as the pod's specification has it."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
