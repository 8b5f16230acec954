"""Conditions by the conventions of Kubernetes: one of each type, whose transition time changes with its status only."""

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
    """The condition of that type."""
    return next((condition for condition in conditions if condition.type == kind), None)


def is_true(conditions: Conditions, kind: ConditionType) -> bool:
    """Whether the condition of that type is True."""
    condition = find(conditions, kind)
    return condition is not None and condition.status == "True"


def since(conditions: Conditions, kind: ConditionType, status: Literal["True", "False"]) -> datetime | None:
    """The transition time of the condition; None unless it has that status."""
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
    """The conditions with this one set; the order is kept.

    ``restamp`` sets the transition time even if the status stays: the condition is of another pod from now on.
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
    """``status.state`` of an Episode."""
    if is_true(status.conditions, ConditionType.FINISHED):
        return EpisodeState.FINISHED
    return EpisodeState.RUNNING if status.pod_name is not None else EpisodeState.WAITING


def with_readiness(
    conditions: Conditions, *, ready: bool, stalled: bool, reason: str, message: str, at: datetime
) -> Conditions:
    """The conditions with ``Ready`` and ``Stalled`` by the rules of kstatus, which Flux, Helm and others follow.

    An object is Failed while ``Stalled`` is True, InProgress while ``Ready`` is False, else Current.
    """
    kept = tuple(each for each in conditions if stalled or each.type != ConditionType.STALLED)
    reason = reason or "Pending"
    for kind, holds in ((ConditionType.READY, ready), (ConditionType.STALLED, stalled)):
        if holds or kind is ConditionType.READY:
            status: Literal["True", "False"] = "True" if holds else "False"
            kept = set_condition(kept, kind, status, reason=reason, message=message, at=at)
    return kept


def with_derived(status: EpisodeStatus, at: datetime) -> EpisodeStatus:
    """The status of an Episode with ``state``, ``Ready`` and ``Stalled``, which follow from its other fields."""
    finished = is_true(status.conditions, ConditionType.FINISHED)
    stalled = finished and TREATMENTS.get(status.reason) is not Treatment.VERDICT
    ready = not stalled and (finished or is_true(status.conditions, ConditionType.SUSPENDED))
    conditions = with_readiness(
        status.conditions, ready=ready, stalled=stalled, reason=status.reason, message=status.message, at=at
    )
    return msgspec.structs.replace(status, conditions=conditions, state=state_of(status).value)


def set_with_readiness(status: EpisodeSetStatus, at: datetime) -> EpisodeSetStatus:
    """The status of an EpisodeSet with ``Ready`` and ``Stalled``, which follow from its other fields."""
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
    """The text in one line of at most ``limit`` characters, a cut marked.

    Unprintable characters are dropped: parts of the text may come from programs in a sandbox, and terminals show it.
    """
    text = " ".join("".join(each if each.isprintable() else " " for each in text).split())
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"


def observed_generation(before: int | None, generation: int) -> int | None:
    """The next ``observedGeneration``; it never decreases."""
    return max(generation, before or 0) or None


def is_outdated(observed: int | None, generation: int) -> bool:
    """Whether a status was written, for an older generation of the object."""
    return 0 < (observed or 0) < generation
