"""Conditions by the conventions of Kubernetes.

There is one condition of each type. Its transition time changes only when its status changes.
"""

from datetime import UTC, datetime
from typing import Literal

import msgspec

from dgym.api import (
    TREATMENTS,
    Condition,
    ConditionType,
    EpisodeSetStatus,
    EpisodeState,
    EpisodeStatus,
    Treatment,
)

Conditions = tuple[Condition, ...]
MESSAGE_LIMIT = 1024
EPOCH = datetime.fromtimestamp(0, UTC)


def find(conditions: Conditions, kind: ConditionType) -> Condition | None:
    """Return the condition of this type, or None."""
    return next((condition for condition in conditions if condition.type == kind), None)


def is_true(conditions: Conditions, kind: ConditionType) -> bool:
    """True if the condition of this type exists and has the status True."""
    condition = find(conditions, kind)
    return condition is not None and condition.status == "True"


def since(conditions: Conditions, kind: ConditionType, status: Literal["True", "False"]) -> datetime | None:
    """Return the transition time of the condition, or None if it does not have this status."""
    condition = find(conditions, kind)
    return condition.last_transition_time if condition is not None and condition.status == status else None


def set_condition(
    conditions: Conditions,
    kind: ConditionType,
    status: Literal["True", "False"],
    *,
    reason: str,
    message: str = "",
    at: datetime,
    restamp: bool = False,
) -> Conditions:
    """Return the conditions with this condition set. The order does not change.

    ``restamp`` sets the transition time even if the status is unchanged. It is for conditions that from now on describe
    another pod.
    """
    old = find(conditions, kind)
    kept = old is not None and old.status == status and not restamp
    new = Condition(
        type=kind.value,
        status=status,
        reason=reason,
        message=fit(message),
        last_transition_time=old.last_transition_time if old is not None and kept else at,
    )
    if old is None:
        return (*conditions, new)
    return tuple(new if condition is old else condition for condition in conditions)


def state_of(status: EpisodeStatus) -> EpisodeState:
    """Return the ``status.state`` of an Episode."""
    if is_true(status.conditions, ConditionType.FINISHED):
        return EpisodeState.FINISHED
    return EpisodeState.RUNNING if status.pod_name is not None else EpisodeState.WAITING


def with_readiness(
    conditions: Conditions, *, ready: bool, stalled: bool, reason: str, message: str, at: datetime
) -> Conditions:
    """Return the conditions with ``Ready`` and ``Stalled`` set by the rules of kstatus, which Flux and Helm use.

    kstatus reports Failed while ``Stalled`` is True, InProgress while ``Ready`` is False, and Current otherwise.
    """
    kept = tuple(each for each in conditions if stalled or each.type != ConditionType.STALLED)
    reason = reason or "Pending"
    for kind, holds in ((ConditionType.READY, ready), (ConditionType.STALLED, stalled)):
        if holds or kind is ConditionType.READY:
            status: Literal["True", "False"] = "True" if holds else "False"
            kept = set_condition(kept, kind, status, reason=reason, message=message, at=at)
    return kept


def with_derived(status: EpisodeStatus, at: datetime) -> EpisodeStatus:
    """Return the Episode's status with ``state``, ``Ready`` and ``Stalled``, which are derived from other fields."""
    finished = is_true(status.conditions, ConditionType.FINISHED)
    stalled = finished and TREATMENTS.get(status.reason) is not Treatment.COUNTED
    ready = not stalled and (finished or is_true(status.conditions, ConditionType.SUSPENDED))
    conditions = with_readiness(
        status.conditions, ready=ready, stalled=stalled, reason=status.reason, message=status.message, at=at
    )
    return msgspec.structs.replace(status, conditions=conditions, state=state_of(status).value)


def set_with_readiness(status: EpisodeSetStatus, at: datetime) -> EpisodeSetStatus:
    """Return the EpisodeSet's status with ``Ready`` and ``Stalled``, which are derived from other fields."""
    finished = is_true(status.conditions, ConditionType.FINISHED)
    failed = status.failed > 0 and not status.resolved + status.unresolved
    stopped = status.reason in ("MaxFailedReached", "TaskListLost") or (status.reason == "Completed" and failed)
    stalled = (finished and stopped) or status.reason == "EpisodeRefused"
    ready = not stalled and (finished or status.reason == "Suspended")
    conditions = with_readiness(
        status.conditions, ready=ready, stalled=stalled, reason=status.reason, message=status.message, at=at
    )
    return msgspec.structs.replace(status, conditions=conditions)


def fit(text: str, limit: int = MESSAGE_LIMIT) -> str:
    """Return the text as one line of at most ``limit`` characters. A text that was cut ends in an ellipsis.

    Unprintable characters become spaces, because terminals show the text and programs in a sandbox may have written it.
    """
    text = " ".join("".join(each if each.isprintable() else " " for each in text).split())
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"


def observed_generation(before: int | None, generation: int) -> int | None:
    """Return the next ``observedGeneration``. It never decreases."""
    return max(generation, before or 0) or None


def is_outdated(observed: int | None, generation: int) -> bool:
    """True if the status was written for an older generation of the object. False if it was never written."""
    return 0 < (observed or 0) < generation
