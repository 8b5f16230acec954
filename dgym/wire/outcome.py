"""The outcome of an episode or of one attempt: reasons, the outcome, and the structs that embed it. Pure.

``Outcome`` is ``status.outcome`` of an Episode. ``AttemptOutcome`` adds the reason, the price and the sidecar's
signature. The report of an agent pod and the termination message of a sidecar contain it. ``Result`` adds the details
of scoring.
"""

import hashlib
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

import msgspec

from dgym.decoding import DECODE_ERRORS

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
MOST_POISONED = 2
"""After this number of poisoned steps the next session only replays and scores the episode. A further poisoned step
ends the episode without a score."""
TERMINATION_LIMIT = 1024
"""Maximum number of bytes of the encoded termination message."""
_URI_LIMIT = 400
_TEXT_LIMIT = 480
_CUT = " … "
_LARGEST = Decimal(10**12 - 1)
_SMALLEST = Decimal("1e-12")
MOST_DISTRIBUTIONS = 1_000
"""Maximum number of listed distributions. The digest covers all of them."""


class EndReason(StrEnum):
    """Why an episode ended: the reasons of the condition ``Finished``."""

    RESOLVED = "Resolved"
    UNRESOLVED = "Unresolved"
    SUBMITTED = "Submitted"
    STEP_LIMIT_REACHED = "StepLimitReached"
    REWRITE_LIMIT_REACHED = "RewriteLimitReached"
    TOKEN_BUDGET_EXHAUSTED = "TokenBudgetExhausted"  # noqa: S105 - tokens of a model, not a secret
    COST_LIMIT_REACHED = "CostLimitReached"
    CONTEXT_EXHAUSTED = "ContextExhausted"
    MODEL_REFUSED = "ModelRefused"
    NO_TOOL_CALL = "NoToolCall"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    DRIVER_IDLE = "DriverIdle"
    SANDBOX_KILLED = "SandboxKilled"
    CANCELLED = "Cancelled"
    UNSCHEDULABLE = "Unschedulable"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    QUOTA_EXCEEDED = "QuotaExceeded"
    TASK_NOT_FOUND = "TaskNotFound"
    AGENT_POD_LOST = "AgentPodLost"
    MODEL_ERROR = "ModelError"
    SANDBOX_LOST = "SandboxLost"
    SANDBOX_START_FAILED = "SandboxStartFailed"
    INVALID_SPEC = "InvalidSpec"
    POD_REJECTED = "PodRejected"
    SOURCE_FAILED = "SourceFailed"
    SETUP_FAILED = "SetupFailed"
    VERIFIER_FAILED = "VerifierFailed"
    INTERNAL_ERROR = "InternalError"

    @property
    def is_counted(self) -> bool:
        """True for outcomes of the agent and for cancellation, which are never retried. False for failures."""
        return self in _COUNTED

    @property
    def is_truncation(self) -> bool:
        """True for limits, the deadline, an idle driver and an agent that cannot continue (``truncated``)."""
        return self in _TRUNCATIONS

    def category(self, *, resolved: bool) -> Literal["resolved", "unresolved", "failed"]:
        """The category of an outcome with this reason. ``unresolved`` is counted, but not resolved."""
        if resolved:
            return "resolved"
        return "unresolved" if self.is_counted else "failed"


_TRUNCATIONS = frozenset(
    {
        EndReason.STEP_LIMIT_REACHED,
        EndReason.REWRITE_LIMIT_REACHED,
        EndReason.TOKEN_BUDGET_EXHAUSTED,
        EndReason.COST_LIMIT_REACHED,
        EndReason.CONTEXT_EXHAUSTED,
        EndReason.MODEL_REFUSED,
        EndReason.NO_TOOL_CALL,
        EndReason.DEADLINE_EXCEEDED,
        EndReason.DRIVER_IDLE,
    }
)

_COUNTED = _TRUNCATIONS | {
    EndReason.RESOLVED,
    EndReason.UNRESOLVED,
    EndReason.SUBMITTED,
    EndReason.SANDBOX_KILLED,
    EndReason.CANCELLED,
}


class Outcome(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The outcome of an episode, in the fields of ``result.json``.

    Attributes:
        resolved: Whether the score is the highest possible score.
        score: Number of the tests that count and passed.
        max_score: Number of the tests that count.
        steps: Number of steps.
        rewrites: Number of steps that rewrote a file.
        input_tokens: Number of tokens that the model read.
        output_tokens: Number of tokens that the model wrote.
        result_uri: URI of the stored result, patch and trajectory.
        message: Explanation for people.
    """

    resolved: bool
    score: Count = 0
    max_score: Count = 0
    steps: Count = 0
    rewrites: Count = 0
    input_tokens: Count = 0
    output_tokens: Count = 0
    result_uri: Annotated[str, msgspec.Meta(max_length=2048)] = msgspec.field(default="", name="resultURI")
    message: Annotated[str, msgspec.Meta(max_length=1024)] = ""

    @classmethod
    def of(cls, other: "Outcome", **more: Any) -> Self:
        """Return the fields that ``other`` and this type share, and ``more``, which takes precedence."""
        shared = {name: getattr(other, name) for name in cls.__struct_fields__ if hasattr(other, name)}
        return cls(**(shared | more))


def read_cost(text: str | None) -> Decimal:
    """Return the cost in ``text``. Return 0 for None and for text that is not a number from 0 to 999,999,999,999."""
    try:
        cost = Decimal(text or 0)
    except InvalidOperation:
        return Decimal(0)
    return cost if cost.is_finite() and 0 < cost <= _LARGEST else Decimal(0)


def write_cost(cost: Decimal) -> str:
    """Return the cost as text, without an exponent and with at most twelve digits before and after the point."""
    return format(min(cost, _LARGEST).quantize(_SMALLEST).normalize(), "f")


class AttemptOutcome(Outcome, frozen=True, kw_only=True):
    """The outcome of one attempt, with its reason. The length of ``message`` is not limited.

    Attributes:
        reason: Why the episode ended.
        price: Price of the tokens of all attempts, a decimal number as text. None if the model has no prices.
        message: The agent's message at ``submit``, or the cause of a failure.
        signature: Signature of the sidecar (``dgym.wire.signing``); empty outside of a cluster.
    """

    reason: EndReason
    price: str | None = None
    message: str = ""
    signature: str = ""


class IntegritySign(StrEnum):
    """Something in an episode that an honest repair does not need. It does not change the score."""

    TESTS_CHANGED = "TestsChanged"
    HOOK_PLANTED = "HookPlanted"
    PROCESSES_KILLED = "ProcessesKilled"
    CANARY_PASSED = "CanaryPassed"
    RUN_TAMPERED = "RunTampered"
    HISTORY_READ = "HistoryRead"
    PATCH_MARKED = "PatchMarked"


class SignEvidence(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An integrity sign and its evidence: paths, a command or a number of processes.

    A mark of the patch's review also has its ``file``, ``line`` (from 1; 0 for the whole file), ``construct`` and the
    reason of the mark.
    """

    sign: IntegritySign
    detail: str
    file: str = ""
    line: int = 0
    construct: str = ""
    why: str = ""


class Integrity(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The integrity of a result: ``clean``, or ``review`` with the signs that were found."""

    clean: bool
    seen: tuple[SignEvidence, ...] = ()

    @property
    def label(self) -> str:
        """``clean`` or ``review``."""
        return "clean" if self.clean else "review"


class Result(AttemptOutcome, frozen=True, kw_only=True, omit_defaults=False):
    """``result.json``: the outcome and the details of scoring.

    Attributes:
        notes: For people: changes that did not reach the verifier, signs of tampering, differences of a replay.
        tests: Each test that counts: ``passed``, ``failed``, ``skipped``, ``error`` or ``missing``.
        duration_seconds: Time without preparation and scoring.
        patch: The agent's changes in the format of ``git apply``, up to 1 MiB. ``patch.diff`` has all of them.
        integrity: ``clean``, and the signs in ``seen``. None if nothing was scored.
    """

    notes: tuple[str, ...] = ()
    tests: dict[str, str] = msgspec.field(default_factory=dict)
    duration_seconds: float = 0.0
    patch: str = ""
    integrity: Integrity | None = None


class Evidence(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The progress of an attempt, which only its sidecar can observe.

    Attributes:
        elapsed_seconds: How long the episode's deadline has run in this attempt.
        step_in_flight: Number of the step that was being executed.
        poisoned_step: Number of the step during which the sandbox died by itself.
        shutdown_requested: Whether the sidecar was requested to terminate, because the pod is deleted or its node
            shuts down.
    """

    elapsed_seconds: float = 0.0
    step_in_flight: int | None = None
    poisoned_step: int | None = None
    shutdown_requested: bool = False


class TerminationMessage(Evidence, frozen=True, kw_only=True):
    """The termination message of a sidecar's container, from which the operator reads how the attempt ended.

    The sidecar writes it at each step, so that a sidecar that is killed leaves its clock and the step that it was
    executing. The message is short, because the kubelet silently truncates longer ones. A message with a wrong checksum
    is ignored: it was truncated or written by another program. Patch, log and trajectory are in the results store.

    Attributes:
        outcome: The outcome, which may be a failure that a retry cannot fix. None: the attempt had not ended.
        price: Price of the model's tokens so far, as in an outcome.
    """

    version: int = 1
    episode_uid: str = msgspec.field(default="", name="episodeUID")
    attempt: int = 0
    outcome: AttemptOutcome | None = None
    price: str | None = None
    checksum: str = ""


def encode_termination(message: TerminationMessage) -> bytes:
    """Encode the message with its checksum as at most ``TERMINATION_LIMIT`` bytes of JSON.

    The signature is left out, because the operator reads the message from the pod's status, which the kubelet writes. A
    URI that is too long is left out, because a part of it is useless. The middle of a long text is left out.
    """
    outcome = message.outcome
    if outcome is None:
        return _with_checksum(message)
    uri = outcome.result_uri if len(outcome.result_uri.encode()) <= _URI_LIMIT else ""
    characters = _TEXT_LIMIT
    while True:
        text = _shortened(outcome.message, characters)
        short = msgspec.structs.replace(outcome, message=text, result_uri=uri, signature="")
        data = _with_checksum(msgspec.structs.replace(message, outcome=short))
        if len(data) <= TERMINATION_LIMIT or not text:
            return data
        characters = len(text) - max(1, (len(data) - TERMINATION_LIMIT) // 6)


def _shortened(text: str, characters: int) -> str:
    """Return ``text`` without its middle, because the failed operation is at the start and the cause at the end."""
    if len(text) <= characters:
        return text
    half = max(0, characters - len(_CUT)) // 2
    return f"{text[:half]}{_CUT}{text[-half:]}" if half else ""


def decode_termination(data: bytes | str) -> TerminationMessage | None:
    """Decode a message. Return None if it is incomplete or its checksum is wrong."""
    try:
        message = msgspec.json.decode(data, type=TerminationMessage)
    except DECODE_ERRORS:
        return None
    return message if message.checksum and message.checksum == _checksum(message) else None


def _with_checksum(message: TerminationMessage) -> bytes:
    return msgspec.json.encode(msgspec.structs.replace(message, checksum=_checksum(message)))


def _checksum(message: TerminationMessage) -> str:
    return hashlib.sha256(msgspec.json.encode(msgspec.structs.replace(message, checksum=""))).hexdigest()[:16]


class ReportedBySandbox(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Versions that the sandbox reported before the first step. The sandbox is untrusted and could report anything.

    Attributes:
        interpreter: Version of Python.
        distributions: Versions of the installed distributions by name, at most 1,000.
        distributions_digest: SHA-256 of the lines ``name==version`` of all distributions.
        left_out: Number of distributions that are not listed.
    """

    interpreter: str = ""
    distributions: dict[str, str] = msgspec.field(default_factory=dict)
    distributions_digest: str = ""
    left_out: int = 0


class RunEnvironment(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The sandbox in which the programs of the task run.

    Attributes:
        sandbox: ``bubblewrap``, ``none``, ``container`` or ``pod``; empty if the sandbox did not start.
        image: Digest of the container's image. Empty without one, and in a pod, whose image only the operator sees.
        reported_by_sandbox: The report of the sandbox; None without a valid report.
    """

    sandbox: str = ""
    image: str = ""
    reported_by_sandbox: ReportedBySandbox | None = None


class ModelRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A model and the fields of its requests. API keys, headers and values of environment variables are never recorded.

    Attributes:
        requested: Name of the model in requests.
        sampling: The other fields of requests. ``(not recorded)`` replaces values of environment variables and of
            fields such as ``api_key``.
        prices: Prices of ``llm.yaml``.
        served: Names of models that the server reported. Empty in the header of a trajectory.
        system_fingerprints: Fingerprints that the server reported. Empty in the header of a trajectory.
    """

    requested: str = ""
    sampling: dict[str, Any] = msgspec.field(default_factory=dict)
    prices: dict[str, str] = msgspec.field(default_factory=dict)
    served: tuple[str, ...] = ()
    system_fingerprints: tuple[str, ...] = ()


class Provenance(RunEnvironment, frozen=True, kw_only=True, rename="camel"):
    """The versions, parameters, prompts and model of a run.

    Attributes:
        dgym_version: Version of dgym in the process that ran the agent.
        dgym_commit: Its commit, which ends in ``-dirty`` if tracked files differed; empty if it is unknown.
        task_digest: Digest of the task alone.
        parameters: Parameters of the agent. ``{"sha256": ...}`` replaces one of more than 1,000 bytes.
        prompts: SHA-256 of the templates of the system and task messages, with the templates that they include.
        model: The model; None for agents without one.
    """

    dgym_version: str = ""
    dgym_commit: str = ""
    task_digest: str = ""
    parameters: dict[str, Any] = msgspec.field(default_factory=dict)
    prompts: dict[str, str] = msgspec.field(default_factory=dict)
    model: ModelRecord | None = None
