"""How a set's episodes stand.

What is finished is counted once, from the indexes that are not among the completed ones yet; both are written in one
status, and only where nobody wrote before. So no restart, no old view and no repeated decision counts anything twice,
and what was counted may be deleted.
"""

from collections.abc import Iterable

import msgspec

from dgym.api import TREATMENTS, ConditionType, EpisodeSetStatus, Treatment
from dgym.api.labels import INDEX
from dgym_operator.reconcile.conditions import find, is_true
from dgym_operator.reconcile.indexes import Indexes
from dgym_operator.reconcile.setinputs import EpisodeSetInput
from dgym_operator.reconcile.views import EpisodeView


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """Counts as of this view. ``busy`` are the unfinished children; ``coming`` were asked for and not seen yet."""

    total: int
    completed: Indexes
    resolved: int
    unresolved: int
    failed: int
    busy: tuple[EpisodeView, ...]
    coming: frozenset[int]
    taken: frozenset[int]

    @property
    def active(self) -> int:
        """How many are under way, suspended ones included: they keep their place in the parallelism."""
        return len(self.busy) + len(self.coming)

    @property
    def suspended(self) -> int:
        """How many of them are suspended."""
        return sum(child.spec.suspend for child in self.busy)


def child_index(child: EpisodeView) -> int | None:
    """Which of its set's episodes a child is."""
    text = child.metadata.labels.get(INDEX, "")
    return int(text) if text.isdecimal() else None


def is_counted(status: EpisodeSetStatus, child: EpisodeView) -> bool:
    """Whether the set has written down that this child is finished, so that its time to live may end."""
    index = child_index(child)
    return index is not None and index in Indexes.parse(status.completed_indexes)


def tally(view: EpisodeSetInput, total: int) -> Tally:
    """Count what was finished since the last status."""
    status = view.episode_set.status
    before = Indexes.parse(status.completed_indexes)
    children = {index: child for child in view.children if (index := child_index(child)) is not None and index < total}
    fresh = {index: child for index, child in children.items() if index not in before}
    done = {index: child for index, child in fresh.items() if is_true(child.status.conditions, ConditionType.FINISHED)}
    verdicts = [child for child in done.values() if _has_verdict(child)]
    resolved = sum(is_true(child.status.conditions, ConditionType.RESOLVED) for child in verdicts)
    completed = before.plus(done)
    return Tally(
        total=total,
        completed=completed,
        resolved=status.resolved + resolved,
        unresolved=status.unresolved + len(verdicts) - resolved,
        failed=status.failed + len(done) - len(verdicts),
        busy=tuple(child for index, child in sorted(fresh.items()) if index not in done),
        coming=frozenset(index for index in view.creating if index not in children and index not in completed),
        taken=frozenset(children) | view.creating,
    )


def pass_at_1(resolved: int, unresolved: int) -> str:
    """The share of the verdicts that are solved, all tasks pooled; empty before the first verdict.

    The mean over tasks would need a count of each task, and that of children which are deleted: no status holds it.
    With as many samples of each task both are equal, but only once every sample has a verdict.
    """
    verdicts = resolved + unresolved
    return f"{resolved / verdicts:.4f}" if verdicts else ""


def next_indexes(counted: Tally, number: int) -> list[int]:
    """The first indexes that nobody has begun."""
    found: list[int] = []
    for index in _limited(counted, number):
        found.append(index)
        if len(found) == number:
            break
    return found


def _limited(counted: Tally, number: int) -> Iterable[int]:
    if number <= 0:
        return ()
    return (index for index in counted.completed.missing(counted.total) if index not in counted.taken)


def _has_verdict(child: EpisodeView) -> bool:
    finished = find(child.status.conditions, ConditionType.FINISHED)
    return finished is not None and TREATMENTS.get(finished.reason) is Treatment.VERDICT
