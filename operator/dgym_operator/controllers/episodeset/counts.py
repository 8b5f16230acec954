"""The counts of a set's episodes.

A finished child is counted once: when its index is not among the completed indexes yet. Counts and indexes are written
in one status, with the resourceVersion of the view. So no restart, no old view and no repeated decision counts a child
twice, and a counted child may be deleted.
"""

from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from itertools import islice

import msgspec

from dgym.api import TREATMENTS, ArmStatus, ConditionType, FailedIndexes, ResolvedReason, Treatment
from dgym.wire import EndReason, read_cost
from dgym_operator.controllers.children import Children, Indexes
from dgym_operator.controllers.conditions import find, is_true
from dgym_operator.controllers.inputs import EpisodeSetInput
from dgym_operator.objects import EpisodeView


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """Counts as of a view, and those of each arm.

    ``cost`` is that of the finished episodes; ``spent`` includes those under way. ``unfinished`` and ``suspended``
    count children that are neither finished nor completed, ``creating`` holds the indexes of those not observed yet.
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
        """Number of unfinished episodes, suspended ones included: they count against the parallelism."""
        return self.unfinished + len(self.creating)

    def pending(self, active: int) -> int:
        """Number of episodes that have not begun once so many are active."""
        return max(0, self.total - len(self.completed) - active)


def tally(view: EpisodeSetInput, total: int) -> Tally:
    """Add the children that have finished since the last status."""
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
    """The failed indexes by reason with those of the children that have finished since."""
    new: dict[str, list[int]] = {}
    for index, child in done.items():
        finished = find(child.status.conditions, ConditionType.FINISHED)
        if finished is not None and not _is_cancelled(child) and not _has_verdict(child):
            new.setdefault(finished.reason, []).append(index)
    if not new:
        return before
    known = {each.reason: Indexes.parse(each.indexes) for each in before}
    merged = {reason: known.get(reason, Indexes()).plus(new.get(reason, ())) for reason in {**known, **new}}
    return tuple(FailedIndexes(reason=reason, indexes=str(merged[reason])) for reason in sorted(merged))


def _arms(view: EpisodeSetInput, total: int, done: Mapping[int, EpisodeView]) -> Iterator[ArmStatus]:
    """The counts of each arm: the last of an index's factors."""
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
    """``debug 12/20, rewrite 8/20``: the resolved episodes of those with a verdict."""
    return ", ".join(f"{arm.name} {arm.resolved}/{arm.resolved + arm.unresolved}" for arm in arms)


def _ends(children: Iterable[EpisodeView]) -> tuple[int, int, int, int]:
    """How many finished children are resolved, got another verdict, got none, and were cancelled without a score."""
    resolved = unresolved = failed = cancelled = 0
    for child in children:
        if _is_cancelled(child):
            cancelled += 1
        elif not _has_verdict(child):
            failed += 1
        elif is_true(child.status.conditions, ConditionType.RESOLVED):
            resolved += 1
        else:
            unresolved += 1
    return resolved, unresolved, failed, cancelled


def pass_at_1(resolved: int, unresolved: int) -> str:
    """The share of the verdicts that are solved, all tasks pooled; empty before the first verdict.

    The mean over tasks would need a count of each task, and that of children which are deleted: no status holds it.
    With as many samples of each task both are equal, but only once every sample has a verdict.
    """
    verdicts = resolved + unresolved
    return f"{resolved / verdicts:.4f}" if verdicts else ""


def next_indexes(counted: Tally, number: int) -> list[int]:
    """The first ``number`` indexes that have no child yet."""
    return list(islice(counted.children.missing(counted.total, counted.creating), max(0, number)))


def _is_cancelled(child: EpisodeView) -> bool:
    """Whether the child was cancelled before there was anything to score: no verdict about its agent."""
    finished = find(child.status.conditions, ConditionType.FINISHED)
    resolved = find(child.status.conditions, ConditionType.RESOLVED)
    cancelled = finished is not None and finished.reason == EndReason.CANCELLED
    return cancelled and (resolved is None or resolved.reason == ResolvedReason.NOT_SCORED)


def _has_verdict(child: EpisodeView) -> bool:
    finished = find(child.status.conditions, ConditionType.FINISHED)
    return finished is not None and TREATMENTS.get(finished.reason) is Treatment.VERDICT
