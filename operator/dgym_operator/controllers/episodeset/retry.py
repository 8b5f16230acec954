"""Failed episodes of a set that run again, by the annotation ``dgym.dev/retry``.

Its value is a text that differs from the last one and, behind a space, the reasons: ``2 ModelError,AgentLost``. Without
reasons all failed episodes run again. First their Episodes are deleted. The indexes are freed in one write of the
status once none of these Episodes is left, so that a leader which takes over in between continues. An Episode has the
value's digest as a label: a leader with an old view of the set does not delete Episodes that have been made since.
"""

from collections import Counter
from datetime import datetime
from hashlib import sha256

import msgspec

from dgym.api import RETRY_KEY, ConditionType, EpisodeSetStatus
from dgym_operator.controllers.children import Indexes
from dgym_operator.controllers.conditions import fit, set_condition
from dgym_operator.controllers.inputs import EpisodeSetInput
from dgym_operator.controllers.plan import Action, DeleteEpisode, Emit, Plan
from dgym_operator.objects import EpisodeView

_RUNNING = "Running"
_VALUE_LIMIT = 256
_AGAIN_SECONDS = 1.0


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """What a requested retry needs now.

    Attributes:
        plan: The Episodes to delete, and when to look again.
        status: The status that frees the indexes; None: not yet.
        message: The message of the Event that goes with it.
        refused: Whether nothing can run again.
    """

    plan: Plan = Plan()
    status: EpisodeSetStatus | None = None
    message: str = ""
    refused: bool = False

    @property
    def event(self) -> Emit:
        """The Event of the status."""
        if self.refused:
            return Emit(type="Warning", reason="RetryRefused", message=self.message)
        return Emit(type="Normal", reason="Retried", message=self.message)


def plan_retry(view: EpisodeSetInput, now: datetime) -> Retry | None:
    """What the annotation of the set requests; None: nothing new."""
    episode_set = view.episode_set
    value, status = episode_set.retry[:_VALUE_LIMIT].strip(), episode_set.status
    if value in ("", status.retry) or status.start_time is None:
        return None
    if episode_set.spec.cancel:
        return _refused(status, value, "the set is cancelled; make a new EpisodeSet")
    if view.frozen is None:
        lost = "the set's list of tasks was deleted; make a new EpisodeSet"
        return _refused(status, value, lost) if view.list_absent else Retry()
    reasons = _reasons(value)
    wanted = [each for each in status.failed_indexes if reasons is None or each.reason in reasons]
    if not wanted:
        return _refused(status, value, _nothing(status, reasons))
    targets = {each.reason: Indexes.parse(each.indexes) for each in wanted}
    present = [child for indexes in targets.values() for index in indexes if (child := view.children.at(index))]
    if present:
        return Retry(plan=_deletions(view, present, retry_label(value)))
    return Retry(status=_freed(view, value, targets, now), message=_message(targets))


def retry_label(value: str) -> str:
    """The label of the Episodes that are made after this value of the annotation was seen."""
    return sha256(value.encode()).hexdigest()[:16]


def _reasons(value: str) -> frozenset[str] | None:
    _, _, names = value.partition(" ")
    return frozenset(name.strip() for name in names.split(",")) if names.strip() else None


def _refused(status: EpisodeSetStatus, value: str, message: str) -> Retry:
    return Retry(status=msgspec.structs.replace(status, retry=value), message=message, refused=True)


def _nothing(status: EpisodeSetStatus, reasons: frozenset[str] | None) -> str:
    if reasons is None or not status.failed_indexes:
        return "no episode of the set has failed"
    failed = ", ".join(f"{each.reason} {len(Indexes.parse(each.indexes))}" for each in status.failed_indexes)
    return fit(f"no episode of the set has failed with {', '.join(sorted(reasons))}; failed: {failed}")


def _deletions(view: EpisodeSetInput, present: list[EpisodeView], label: str) -> Plan:
    """Delete finished Episodes that were made before the request."""
    actions: list[Action] = [
        DeleteEpisode(name=child.metadata.name, uid=child.metadata.uid)
        for child in present
        if child.is_finished
        and child.metadata.deletion_timestamp is None
        and child.metadata.labels.get(RETRY_KEY) != label
    ]
    return Plan(actions=tuple(actions[: view.policy.creates_per_round]), requeue_after=_AGAIN_SECONDS)


def _freed(view: EpisodeSetInput, value: str, targets: dict[str, Indexes], now: datetime) -> EpisodeSetStatus:
    """The status in which these episodes have not begun."""
    status, number = view.episode_set.status, len(view.episode_set.spec.arms)
    freed = Indexes().plus(index for indexes in targets.values() for index in indexes)
    by_arm = Counter(index % number for index in freed) if number else Counter()
    arms = [msgspec.structs.replace(arm, failed=arm.failed - by_arm[place]) for place, arm in enumerate(status.arms)]
    return msgspec.structs.replace(
        status,
        conditions=set_condition(status.conditions, ConditionType.FINISHED, "False", reason=_RUNNING, at=now),
        reason=_RUNNING,
        message="",
        completed_indexes=str(Indexes.parse(status.completed_indexes).without(freed)),
        pending=status.pending + len(freed),
        failed=status.failed - len(freed),
        failed_indexes=tuple(each for each in status.failed_indexes if each.reason not in targets),
        arms=tuple(arms),
        retry=value,
        completion_time=None,
    )


def _message(targets: dict[str, Indexes]) -> str:
    return fit("failed episodes run again: " + ", ".join(f"{name} {len(each)}" for name, each in targets.items()))
