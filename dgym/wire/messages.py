"""Calls, observations, places in a program, and results."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

ACTION_LIMIT = 1024**2
"""Bytes of one action as JSON; a sidecar takes no larger bodies than twice that."""

DEPTH_LIMIT = 200
"""Levels of lists and objects in one action. Every Python reads that many; how many more differs by version."""

OBSERVATION_LIMIT = 64 * 1024
"""Bytes of text in one observation; head and tail are kept and the cut is marked."""


class Frame(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Where the program stands. ``file`` is relative to the workspace when it lies inside, else absolute."""

    file: str
    line: int
    function: str


class Breakpoint(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One breakpoint. Its number belongs to the session: restarts and edits keep it.

    ``file`` is relative to the workspace when it lies inside, else absolute; ``line`` counts from 1;
    ``ignore_count`` is the count as set (not what is left of it); ``hits`` counts over all restarts.
    """

    number: int
    file: str
    line: int
    condition: str | None = None
    ignore_count: int = 0
    hits: int = 0
    enabled: bool = True
    temporary: bool = False


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
    AGENT_LOST = "AgentLost"
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
    def is_verdict(self) -> bool:
        """True for ends that say something about the agent and are never retried."""
        return self in _VERDICTS

    @property
    def is_truncation(self) -> bool:
        """True for limits, the deadline, an idle driver and an agent that cannot go on: Gymnasium's ``truncated``."""
        return self in _TRUNCATIONS


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
_VERDICTS = _TRUNCATIONS | {
    EndReason.RESOLVED,
    EndReason.UNRESOLVED,
    EndReason.SUBMITTED,
    EndReason.SANDBOX_KILLED,
    EndReason.CANCELLED,
}


_TOO_DEEP = f"The action is nested too deeply; at most {DEPTH_LIMIT} levels are taken."


class ToolCall(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One action: a tool and its arguments. Two calls are the same call when both parts are equal."""

    tool: str
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)

    @classmethod
    def mistake(cls, problem: str) -> "ToolCall":
        """An unreadable call of a model: a step whose observation is ``problem``."""
        return cls(tool="", arguments={"problem": problem})


def action_problem(action: Any) -> str | None:
    """The reason why a session refuses ``action``, as a sentence; None for a valid action."""
    try:
        size = len(msgspec.json.encode(action, enc_hook=repr))
    except UnicodeEncodeError:
        return "The action contains half of a surrogate pair; it must be valid Unicode text."
    except RecursionError:
        return _TOO_DEEP
    if size > ACTION_LIMIT:
        return f"The action has {size:,} bytes as JSON; at most {ACTION_LIMIT:,} are taken."
    value = action.arguments if isinstance(action, ToolCall) else action
    return _TOO_DEEP if _is_deeper(value, DEPTH_LIMIT) else None


def _is_deeper(value: Any, levels: int) -> bool:
    children = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    return levels < 0 or any(_is_deeper(child, levels - 1) for child in children)


class Score(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """``score`` of ``max_score`` tests passed (0 or 1 of 1 when scored by exit status)."""

    score: int
    max_score: int

    @property
    def resolved(self) -> bool:
        """Whether at least one test counted and every counted test passed."""
        return self.score == self.max_score >= 1


class Observation(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What a tool answered. ``text`` is what a model reads; the rest is the same in a structured form.

    ``ok`` is False when the tool could not execute the call; ``exit_status`` is of the command or the program
    (negative: the signal that ended it); ``truncated_bytes`` were cut from the middle; ``end_reason`` is set on
    the observation that ends the episode. ``notes`` say how a replay before this call differed from its record.
    ``workspace_digest`` is the SHA-256 of all changes of the workspace after the call; empty where it was not taken.
    """

    text: str
    tool: str = ""
    ok: bool = True
    truncated_bytes: int = 0
    duration_seconds: float = 0.0
    exit_status: int | None = None
    frame: Frame | None = None
    breakpoints: tuple[Breakpoint, ...] | None = None
    diff: str | None = None
    score: Score | None = None
    focus_file: str | None = None
    end_reason: EndReason | None = None
    notes: tuple[str, ...] = ()
    workspace_digest: str = ""


class Step(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One entry of an episode's history. Reset is number 0 and has no call; steps count from 1."""

    seq: int
    call: ToolCall | None
    observation: Observation


class Outcome(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """``status.outcome`` of an Episode, and in a pod the sidecar's signature of it (``dgym.wire.signing``).

    ``price`` of the tokens of all attempts is a decimal number as text, None where the model has no prices.
    """

    resolved: bool
    score: int = 0
    max_score: int = 0
    steps: int = 0
    rewrites: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    price: str | None = None
    result_uri: str = msgspec.field(default="", name="resultURI")
    message: str = ""
    signature: str = ""


class IntegritySign(StrEnum):
    """Something in an episode that an honest repair does not need. It never changes a score."""

    TESTS_CHANGED = "TestsChanged"
    HOOK_PLANTED = "HookPlanted"
    PROCESSES_KILLED = "ProcessesKilled"
    CANARY_PASSED = "CanaryPassed"
    RUN_TAMPERED = "RunTampered"
    HISTORY_READ = "HistoryRead"
    PATCH_MARKED = "PatchMarked"


class Seen(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A sign, and where it was seen: paths, a command, a number of processes.

    A mark of the patch's review also has its ``file``, ``line`` (from 1; 0 for the whole file), ``construct`` and the
    reason why it is marked.
    """

    sign: IntegritySign
    detail: str
    file: str = ""
    line: int = 0
    construct: str = ""
    why: str = ""


class Integrity(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The label of a verdict: ``clean``, or ``review`` with what was seen."""

    clean: bool
    seen: tuple[Seen, ...] = ()

    @property
    def label(self) -> str:
        """``clean`` or ``review``."""
        return "clean" if self.clean else "review"


class Result(Outcome, frozen=True, kw_only=True, rename="camel"):
    """``result.json``: the outcome, its reason and the details of scoring.

    ``notes`` are for people: what was not carried to the verifier, what looked like tampering. ``tests`` maps
    test ids that counted to "passed", "failed", "skipped", "error" or "missing". ``patch`` is the agent's change
    as ``git apply`` takes it; it is stored beside ``result.json`` as ``patch.diff`` too. ``integrity`` is None where
    nothing was scored.
    """

    reason: EndReason
    notes: tuple[str, ...] = ()
    tests: dict[str, str] = msgspec.field(default_factory=dict)
    duration_seconds: float = 0.0
    patch: str = ""
    integrity: Integrity | None = None
