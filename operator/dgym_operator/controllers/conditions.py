"""Conditions as Kubernetes has them: one of each type, the time of whose transition is kept while the status is."""

from datetime import UTC, datetime
from typing import Literal

import msgspec

from dgym.api import Condition, ConditionType, EpisodeState, EpisodeStatus

Conditions = tuple[Condition, ...]
MESSAGE_LIMIT = 1024
EPOCH = datetime.fromtimestamp(0, UTC)


def find(conditions: Conditions, kind: ConditionType) -> Condition | None:
    """The condition of that type."""
    return next((condition for condition in conditions if condition.type == kind), None)


def is_true(conditions: Conditions, kind: ConditionType) -> bool:
    """Whether that was observed."""
    condition = find(conditions, kind)
    return condition is not None and condition.status == "True"


def since(conditions: Conditions, kind: ConditionType, status: Literal["True", "False"]) -> datetime | None:
    """Since when the condition has that status; None when it has another."""
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
    """The conditions with this one set; the others stay in their places.

    ``restamp`` sets the time although the status is the same: the condition is of another pod from now on.
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


def fit(text: str, limit: int = MESSAGE_LIMIT) -> str:
    """The text in one line of as many characters as it may have, the cut marked.

    What cannot be printed is left out: some of it was written by programs in a sandbox, and is shown in terminals.
    """
    text = " ".join("".join(each if each.isprintable() else " " for each in text).split())
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"


def observed(status: msgspec.Struct, generation: int) -> int | None:
    """What ``observedGeneration`` becomes: never lower than it was."""
    before: int | None = getattr(status, "observed_generation", None)
    return max(generation, before or 0) or None
