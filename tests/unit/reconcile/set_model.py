"""An EpisodeSet with its children and a controller whose caches lag behind. Pure Python, as ``cluster_model``."""

from collections import Counter
from datetime import timedelta

import msgspec

from dgym.api import (
    INDEX_LABEL,
    RETRY_KEY,
    TREATMENTS,
    Condition,
    EpisodeSetSpec,
    EpisodeSpec,
    EpisodeStatus,
    TaskRef,
    Treatment,
    episodes_of,
    place_of,
)
from dgym_operator.controllers import EpisodeSetInput, Policy, is_true
from dgym_operator.controllers import plan as act
from dgym_operator.controllers.episodeset import Children, Indexes, child_manifest, decide_set, is_counted
from dgym_operator.objects import (
    EpisodeSetView,
    EpisodeSpecView,
    EpisodeView,
    Meta,
    SetMeta,
    TaskSpecView,
    TaskView,
)
from tests.unit.reconcile.reconcile_builders import NOW, in_

replace = msgspec.structs.replace


def task(name: str, *, labels=None, age: float = 100, uid: str | None = None, image: str | None = None) -> TaskView:
    metadata = Meta(
        name=name, namespace="ns", uid=uid or f"uid-{name}", labels=labels or {}, creation_timestamp=in_(-age)
    )
    return TaskView(metadata=metadata, spec=TaskSpecView(image=image))


def episode_set(*names: str, status=None, template=None, retry="", **spec) -> EpisodeSetView:
    if names:
        spec["tasks"] = tuple(TaskRef(name=name) for name in names)
    return EpisodeSetView(
        metadata=SetMeta(
            name="s",
            namespace="ns",
            uid="set-uid-1234",
            resource_version="1",
            generation=1,
            creation_timestamp=NOW,
            annotations={RETRY_KEY: retry} if retry else {},
        ),
        spec=EpisodeSetSpec(template=template or EpisodeSpec(), **spec),
        **({"status": status} if status else {}),
    )


def child(
    index: int, *, status: EpisodeStatus | None = None, suspend=False, cancel=False, uid: str = "", labels=None
) -> EpisodeView:
    labels = {INDEX_LABEL: str(index), **(labels or {})}
    return EpisodeView(
        metadata=Meta(name=f"s-{index}", namespace="ns", uid=uid or f"child-{index}", labels=labels),
        spec=EpisodeSpecView(suspend=suspend, cancel=cancel),
        status=status or EpisodeStatus(),
    )


def finished(reason: str = "Resolved") -> EpisodeStatus:
    solved = "True" if reason == "Resolved" else "False"
    return EpisodeStatus(
        reason=reason,
        conditions=(
            Condition(type="Finished", status="True", reason=reason),
            Condition(type="Resolved", status=solved, reason="Solved"),
        ),
    )


def verdict(reason: str) -> bool:
    return TREATMENTS[reason] is Treatment.VERDICT


class SetModel:
    """The set, its children, and what must hold at every write."""

    def __init__(self, *, tasks: int = 3, **spec) -> None:
        self.now = NOW
        names = [f"t{number}" for number in range(tasks)]
        self.frozen = tuple((name, f"uid-{name}") for name in names)
        self.truth = episode_set(*names, **spec)
        self.children: dict[int, EpisodeView] = {}
        self.runs: Counter[int] = Counter()
        self.ends: dict[int, str] = {}
        self.made = 0
        self.largest = 0
        self.retries = 0
        self.expected: Counter[int] = Counter(range(episodes_of(self.truth.spec, tasks)))
        """How often each index is to run."""
        self.past: list[tuple[EpisodeSetView, dict[int, EpisodeView]]] = []
        self.change_leader(0, 0)

    def record(self) -> None:
        now = (self.truth, dict(self.children))
        if not self.past or self.past[-1] != now:
            self.past.append(now)

    def sync(self, sets: bool = True, children: bool = True) -> None:
        self.record()
        if sets:
            self.seen = self.truth
        if children:
            self.seen_children = dict(self.children)
            self.creating.clear()

    def change_leader(self, set_age: int, children_age: int) -> None:
        self.record()
        # A new leader lists the Episodes before it acts. Where children are deleted, the decision relies on it.
        children_age = 0 if self.retries else children_age
        self.seen = self.past[max(0, len(self.past) - 1 - set_age)][0]
        self.seen_children = dict(self.past[max(0, len(self.past) - 1 - children_age)][1])
        self.creating: set[int] = set()

    def view(self) -> EpisodeSetInput:
        return EpisodeSetInput(
            episode_set=self.seen,
            frozen=self.frozen,
            children=Children(self.seen_children.values()),
            creating=frozenset(self.creating),
            policy=Policy(creates_per_round=3),
        )

    def operate(self) -> act.Plan:
        view = self.view()
        plan = decide_set(view, self.now)
        assert plan == decide_set(view, self.now)
        for action in plan.actions:
            if not self._carry_out(action):
                break
        self.record()
        return plan

    def _carry_out(self, action: act.Action) -> bool:
        match action:
            case act.PatchSetStatus():
                return self._patch(action)
            case act.CreateEpisode():
                self._create(action)
            case act.DeleteEpisode():
                index = self._index(action.name)
                found = self.children.get(index)
                if found is not None and found.metadata.uid == action.uid:
                    assert is_true(found.status.conditions, "Finished"), "an episode that runs is deleted"
                    assert not verdict(found.status.reason), "an episode with a verdict is deleted"
                    del self.children[index]
                self.seen_children.pop(index, None)
            case act.PatchChild():
                found = self.children.get(self._index(action.name))
                if found is not None:
                    given = {"suspend": action.suspend, "cancel": action.cancel}
                    spec = replace(found.spec, **{name: value for name, value in given.items() if value is not None})
                    self.children[self._index(action.name)] = replace(found, spec=spec)
                    self.seen_children[self._index(action.name)] = self.children[self._index(action.name)]
        return True

    def _index(self, name: str) -> int:
        return int(name.rpartition("-")[2])

    def _patch(self, action: act.PatchSetStatus) -> bool:
        assert action.status != self.seen.status, "a write that changes nothing"
        if self.truth.metadata.resource_version != self.seen.metadata.resource_version:
            return False
        before, after = self.truth.status, action.status
        retried = after.retry != before.retry
        if retried:
            self._check_retry(before, after)
        assert retried or not is_true(before.conditions, "Finished"), "a finished set is written again"
        for name in ("resolved", "unresolved", "failed", "cancelled"):
            assert getattr(after, name) >= getattr(before, name) or (retried and name == "failed"), "a count shrinks"
            if after.arms and name != "cancelled":
                assert sum(getattr(arm, name) for arm in after.arms) == getattr(after, name)
        failed = [index for each in after.failed_indexes for index in Indexes.parse(each.indexes)]
        assert len(set(failed)) == len(failed) == after.failed
        ended = len(Indexes.parse(after.completed_indexes))
        assert ended == after.resolved + after.unresolved + after.failed + after.cancelled
        if not self.truth.spec.cancel and self.truth.spec.max_failed is None:
            assert after.pending + after.active + after.suspended + ended == after.total
        self.edit(status=after)
        self.seen = self.truth
        return True

    def _check_retry(self, before, after) -> None:
        completed = Indexes.parse(after.completed_indexes)
        for index in Indexes.parse(before.completed_indexes):
            if index not in completed:
                assert index not in self.children, "an index is freed before its Episode is gone"
                assert not verdict(self.ends[index])
                self.expected[index] += 1
                del self.ends[index]

    def _create(self, action: act.CreateEpisode) -> None:
        completed = Indexes.parse(self.truth.status.completed_indexes)
        if action.index in self.children:
            self.creating.add(action.index)
            return
        assert action.index not in completed, "what is finished and counted is made again"
        place = place_of(self.truth.spec, len(self.frozen), action.index)
        assert (action.task, action.task_uid, action.sample) == (*self.frozen[place.task], place.sample)
        self.made += 1
        labels = child_manifest(self.seen, action).metadata.labels
        self.children[action.index] = child(action.index, uid=f"child-{action.index}-{self.made}", labels=labels)
        self.creating.add(action.index)
        self.largest = max(self.largest, self.active)

    @property
    def active(self) -> int:
        return sum(not is_true(each.status.conditions, "Finished") for each in self.children.values())

    def retry(self, reasons: str = "") -> None:
        """A user annotates the set."""
        self.retries += 1
        value = f"{self.retries} {reasons}".strip()
        metadata = replace(self.truth.metadata, annotations={RETRY_KEY: value})
        self.truth = replace(self.truth, metadata=metadata)
        self.edit()

    def edit(self, *, status=None, **spec) -> None:
        metadata = self.truth.metadata
        metadata = replace(metadata, resource_version=str(int(metadata.resource_version) + 1))
        self.truth = replace(
            self.truth,
            metadata=metadata,
            spec=replace(self.truth.spec, **spec),
            status=status or self.truth.status,
        )

    def end(self, number: int, reason: str) -> None:
        """One of the children that run ends."""
        open_ones = [
            index
            for index, each in sorted(self.children.items())
            if not is_true(each.status.conditions, "Finished") and not each.spec.suspend
        ]
        if open_ones:
            index = open_ones[number % len(open_ones)]
            self.children[index] = replace(self.children[index], status=finished(reason))
            self.runs[index] += 1
            self.ends[index] = reason

    def collect(self) -> None:
        """The time to live of children that the operator knows to be counted is over."""
        for index, each in list(self.children.items()):
            if is_true(each.status.conditions, "Finished") and is_counted(self.seen.status, each):
                del self.children[index]

    def remove(self, number: int) -> None:
        """A user deletes a child that runs."""
        open_ones = [index for index, each in self.children.items() if not is_true(each.status.conditions, "Finished")]
        if open_ones:
            del self.children[sorted(open_ones)[number % len(open_ones)]]

    @property
    def finished(self) -> bool:
        return is_true(self.truth.status.conditions, "Finished")

    def pass_time(self) -> None:
        """More than caches lag behind."""
        self.sync()
        self.now += timedelta(seconds=6)

    def settle(self) -> None:
        self.edit(suspend=False, parallelism=max(1, self.truth.spec.parallelism))
        for _ in range(200):
            self.pass_time()
            self.operate()
            self.end(0, "Resolved")
            self.collect()
            if self.finished and self.truth.status.retry == self.truth.retry:
                return
