"""Conditions, reasons and causes of an Episode's status, and the controller's treatment of each final reason."""

from enum import StrEnum


class ConditionType(StrEnum):
    """Conditions of an Episode; a set has no ``SandboxReady`` and ``Resolved``, a pool ``Ready`` and ``Stalled``.

    A DebugTask has ``Healthy``.
    """

    SANDBOX_READY = "SandboxReady"
    FINISHED = "Finished"
    RESOLVED = "Resolved"
    SUSPENDED = "Suspended"
    HEALTHY = "Healthy"
    READY = "Ready"
    MODEL_AVAILABLE = "ModelAvailable"
    RESULT_STORE_AVAILABLE = "ResultStoreAvailable"
    STALLED = "Stalled"


class ResolvedReason(StrEnum):
    """Reasons of the condition ``Resolved``: what is not solved was either scored and failed, or never scored."""

    SOLVED = "Solved"
    UNSOLVED = "Unsolved"
    NOT_SCORED = "NotScored"


class EpisodeState(StrEnum):
    """``status.state``: whether ``status.reason`` is that of a wait, of an attempt under way or of the end."""

    WAITING = "Waiting"
    RUNNING = "Running"
    FINISHED = "Finished"


class EndCause(StrEnum):
    """``status.ending.cause``: whose doing the end of an attempt is. What a fault leaves unknown is infrastructure."""

    AGENT = "agent"
    INFRASTRUCTURE = "infrastructure"
    DISRUPTION = "disruption"
    USER = "user"


class ProgressReason(StrEnum):
    """``status.reason`` while an episode is under way."""

    PENDING = "Pending"
    WAITING_FOR_SLOT = "WaitingForSlot"
    WAITING_FOR_TASK = "WaitingForTask"
    POD_NOT_CREATED = "PodNotCreated"
    SCHEDULING_GATED = "SchedulingGated"
    STARTING = "Starting"
    RUNNING = "Running"
    VERIFYING = "Verifying"
    STORING = "Storing"
    RESULT_STORE_UNAVAILABLE = "ResultStoreUnavailable"
    TERMINATING = "Terminating"
    SUSPENDED = "Suspended"


class Treatment(StrEnum):
    """The controller's treatment of an episode that stopped; each reason has exactly one."""

    VERDICT = "verdict"
    WAIT = "wait"
    REASSIGN = "reassign"
    NEW_POD = "new pod"
    TERMINAL = "terminal"


TREATMENTS: dict[str, Treatment] = {
    "Resolved": Treatment.VERDICT,
    "Unresolved": Treatment.VERDICT,
    "Submitted": Treatment.VERDICT,
    "StepLimitReached": Treatment.VERDICT,
    "RewriteLimitReached": Treatment.VERDICT,
    "TokenBudgetExhausted": Treatment.VERDICT,
    "CostLimitReached": Treatment.VERDICT,
    "ContextExhausted": Treatment.VERDICT,
    "ModelRefused": Treatment.VERDICT,
    "NoToolCall": Treatment.VERDICT,
    "DeadlineExceeded": Treatment.VERDICT,
    "DriverIdle": Treatment.VERDICT,
    "SandboxKilled": Treatment.VERDICT,
    "Cancelled": Treatment.VERDICT,
    "Unschedulable": Treatment.WAIT,
    "ImagePullFailed": Treatment.WAIT,
    "QuotaExceeded": Treatment.WAIT,
    "TaskNotFound": Treatment.WAIT,
    "AgentLost": Treatment.REASSIGN,
    "ModelError": Treatment.REASSIGN,
    "SandboxLost": Treatment.NEW_POD,
    "SandboxStartFailed": Treatment.NEW_POD,
    "InvalidSpec": Treatment.TERMINAL,
    "PodRejected": Treatment.TERMINAL,
    "SourceFailed": Treatment.TERMINAL,
    "SetupFailed": Treatment.TERMINAL,
    "VerifierFailed": Treatment.TERMINAL,
    "InternalError": Treatment.TERMINAL,
}
