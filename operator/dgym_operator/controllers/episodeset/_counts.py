"""The counts of a set's episodes, and the retry of failed episodes on request of the annotation ``dgym.dev/retry``."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from decimal import Decimal
from hashlib import sha256
from itertools import islice

import msgspec

from dgym.api import (
    RETRY_KEY,
    TREATMENTS,
    ArmStatus,
    ConditionType,
    EpisodeSetStatus,
    FailedIndexes,
    ResolvedReason,
    Treatment,
)
from dgym.wire import EndReason, read_cost
from dgym_operator.controllers._children import Children, Indexes
from dgym_operator.controllers._conditions import find, fit, is_true, set_condition
from dgym_operator.controllers._inputs import EpisodeSetInput
from dgym_operator.controllers._plan import Action, DeleteEpisode, Emit, Plan
from dgym_operator.objects import EpisodeView

_RUNNING = "Running"
_VALUE_LIMIT = 256
_AGAIN_SECONDS = 1.0


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of a set and of each of its arms.

    ``cost`` is the cost of the finished episodes, and ``spent`` includes the unfinished ones if the set has a cost
    limit. ``unfinished`` and ``suspended`` count children that are neither finished nor completed. ``creating`` has the
    indexes of children that are being created and were not observed yet.
    """

    total: int
    completed: Indexes
    resolved: int
    unresolved: int
    failed: int
    cancelled: int
    cost: Decimal
    spent: Decimal
    failed_indexes: tuple[FailedIndexes, ...]
    arms: tuple[ArmStatus, ...]
    children: Children
    unfinished: int
    suspended: int
    creating: frozenset[int]

    @property
    def active(self) -> int:
        """Number of unfinished episodes, including suspended ones. They count against the parallelism."""
        return self.unfinished + len(self.creating)

    def pending(self, active: int) -> int:
        """Return the number of episodes that have not started if ``active`` episodes are active."""
        return max(0, self.total - len(self.completed) - active)


def tally(view: EpisodeSetInput, total: int) -> Tally:
    """Return the counts in status plus the children that finished since that status was written."""
    status, children = view.episode_set.status, view.children
    before = children.completed(status.completed_indexes)
    done = children.finished(total)
    resolved, unresolved, failed, cancelled = _ends(done.values())
    completed = before.plus(done)
    unfinished, suspended = children.count_unfinished(total)
    cost = read_cost(status.cost) + _cost_of(done.values())
    limited = view.episode_set.spec.cost_limit is not None
    return Tally(
        total=total,
        completed=completed,
        resolved=status.resolved + resolved,
        unresolved=status.unresolved + unresolved,
        failed=status.failed + failed,
        cancelled=status.cancelled + cancelled,
        cost=cost,
        spent=cost + _cost_of(children.unfinished(total)) if limited else cost,
        failed_indexes=_failed_indexes(status.failed_indexes, done),
        arms=tuple(_arms(view, total, done)),
        children=children,
        unfinished=unfinished,
        suspended=suspended,
        creating=frozenset(index for index in view.creating if index not in children and index not in completed),
    )


def _cost_of(children: Iterable[EpisodeView]) -> Decimal:
    return sum((read_cost(child.status.cost) for child in children if child.status.cost), Decimal(0))


def _failed_indexes(before: tuple[FailedIndexes, ...], done: Mapping[int, EpisodeView]) -> tuple[FailedIndexes, ...]:
    """Return the failed indexes by reason, including the failed children in ``done``."""
    new: dict[str, list[int]] = {}
    for index, child in done.items():
        finished = find(child.status.conditions, ConditionType.FINISHED)
        if finished is not None and not _is_cancelled(child) and not _reason_is_counted(child):
            new.setdefault(finished.reason, []).append(index)
    if not new:
        return before
    known = {each.reason: Indexes.parse(each.indexes) for each in before}
    merged = {reason: known.get(reason, Indexes()).plus(new.get(reason, ())) for reason in {**known, **new}}
    return tuple(FailedIndexes(reason=reason, indexes=str(merged[reason])) for reason in sorted(merged))


def _arms(view: EpisodeSetInput, total: int, done: Mapping[int, EpisodeView]) -> Iterator[ArmStatus]:
    """Yield the counts of each arm. The arm of an index is the index modulo the number of arms."""
    arms = view.episode_set.spec.arms
    before = {each.name: each for each in view.episode_set.status.arms}
    for number, arm in enumerate(arms):
        counted = before.get(arm.name, ArmStatus(name=arm.name))
        resolved, unresolved, failed, _ = _ends(child for index, child in done.items() if index % len(arms) == number)
        yield ArmStatus(
            name=arm.name,
            total=total // len(arms),
            resolved=counted.resolved + resolved,
            unresolved=counted.unresolved + unresolved,
            failed=counted.failed + failed,
            pass_at_1=pass_at_1(counted.resolved + resolved, counted.unresolved + unresolved),
        )


def resolved_by_arm(arms: Iterable[ArmStatus]) -> str:
    """Return the resolved and the scored episodes of each arm, such as ``debug 12/20, rewrite 8/20``."""
    return ", ".join(f"{arm.name} {arm.resolved}/{arm.resolved + arm.unresolved}" for arm in arms)


def _ends(children: Iterable[EpisodeView]) -> tuple[int, int, int, int]:
    """Return the numbers of finished children that are resolved, unresolved, failed, and cancelled without a score."""
    resolved = unresolved = failed = cancelled = 0
    for child in children:
        if _is_cancelled(child):
            cancelled += 1
        elif not _reason_is_counted(child):
            failed += 1
        elif is_true(child.status.conditions, ConditionType.RESOLVED):
            resolved += 1
        else:
            unresolved += 1
    return resolved, unresolved, failed, cancelled


def pass_at_1(resolved: int, unresolved: int) -> str:
    """Return the resolved share of the scored episodes over all tasks. Empty before the first scored episode.

    The mean over tasks would require counts per task, also for deleted children, and status does not contain them. Both
    are equal if all tasks have the same number of samples and every sample is scored.
    """
    counted = resolved + unresolved
    return f"{resolved / counted:.4f}" if counted else ""


def next_indexes(counted: Tally, number: int) -> list[int]:
    """Return the first ``number`` indexes for which a child is missing."""
    return list(islice(counted.children.missing(counted.total, counted.creating), max(0, number)))


def _is_cancelled(child: EpisodeView) -> bool:
    """True if the child was cancelled and not scored. It then counts neither as failed nor as unresolved."""
    finished = find(child.status.conditions, ConditionType.FINISHED)
    resolved = find(child.status.conditions, ConditionType.RESOLVED)
    cancelled = finished is not None and finished.reason == EndReason.CANCELLED
    return cancelled and (resolved is None or resolved.reason == ResolvedReason.NOT_SCORED)


def _reason_is_counted(child: EpisodeView) -> bool:
    finished = find(child.status.conditions, ConditionType.FINISHED)
    return finished is not None and TREATMENTS.get(finished.reason) is Treatment.COUNTED


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """The next actions of a requested retry.

    Attributes:
        plan: The deletions of Episodes, and when to requeue.
        status: The status that frees the indexes or records the refusal. None while Episodes are being deleted.
        message: The message of the Event that is recorded with the status.
        refused: True if no episode can be retried.
    """

    plan: Plan = Plan()
    status: EpisodeSetStatus | None = None
    message: str = ""
    refused: bool = False

    @property
    def event(self) -> Emit:
        """The Event that is recorded with the status."""
        if self.refused:
            return Emit(type="Warning", reason="RetryRefused", message=self.message)
        return Emit(type="Normal", reason="Retried", message=self.message)


def plan_retry(view: EpisodeSetInput, now: datetime) -> Retry | None:
    """Return the next actions of the retry that the set's annotation requests, or None if it requests nothing new."""
    episode_set = view.episode_set
    value, status = episode_set.retry[:_VALUE_LIMIT].strip(), episode_set.status
    if value in ("", status.retry) or status.start_time is None:
        return None
    if episode_set.spec.cancel:
        return _refused(status, value, "the set is cancelled; create a new EpisodeSet")
    if view.frozen is None:
        lost = "the set's list of tasks was deleted; create a new EpisodeSet"
        return _refused(status, value, lost) if view.list_absent else Retry()
    reasons = _reasons(value)
    wanted = [each for each in status.failed_indexes if reasons is None or each.reason in reasons]
    if not wanted:
        return _refused(status, value, _nothing_to_retry(status, reasons))
    targets = {each.reason: Indexes.parse(each.indexes) for each in wanted}
    present = [child for indexes in targets.values() for index in indexes if (child := view.children.at(index))]
    if present:
        return Retry(plan=_deletions(view, present, retry_label(value)))
    return Retry(status=_freed(view, value, targets, now), message=_message(targets))


def retry_label(value: str) -> str:
    """Return the label value of Episodes that are created after this value of the annotation was handled."""
    return sha256(value.encode()).hexdigest()[:16]


def _reasons(value: str) -> frozenset[str] | None:
    _, _, names = value.partition(" ")
    return frozenset(name.strip() for name in names.split(",")) if names.strip() else None


def _refused(status: EpisodeSetStatus, value: str, message: str) -> Retry:
    return Retry(status=msgspec.structs.replace(status, retry=value), message=message, refused=True)


def _nothing_to_retry(status: EpisodeSetStatus, reasons: frozenset[str] | None) -> str:
    if reasons is None or not status.failed_indexes:
        return "no episode of the set has failed"
    failed = ", ".join(f"{each.reason} {len(Indexes.parse(each.indexes))}" for each in status.failed_indexes)
    return fit(f"no episode of the set has failed with {', '.join(sorted(reasons))}; failed: {failed}")


def _deletions(view: EpisodeSetInput, present: list[EpisodeView], label: str) -> Plan:
    """Delete finished Episodes that were created before the request."""
    actions: list[Action] = [
        DeleteEpisode(name=child.metadata.name, uid=child.metadata.uid)
        for child in present
        if child.is_finished
        and child.metadata.deletion_timestamp is None
        and child.metadata.labels.get(RETRY_KEY) != label
    ]
    return Plan(actions=tuple(actions[: view.policy.creates_per_round]), requeue_after=_AGAIN_SECONDS)


def _freed(view: EpisodeSetInput, value: str, targets: dict[str, Indexes], now: datetime) -> EpisodeSetStatus:
    """Return the status in which these episodes have not started."""
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
