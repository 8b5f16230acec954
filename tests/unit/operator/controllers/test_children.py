"""Tests of the children of a set. The incremental counts must equal a new count of all children."""

from itertools import islice

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dgym_operator.controllers import Children, Indexes, child_index
from tests.unit.operator.controllers.reconcile_builders import child, finished, replace

TOTAL = 8
INDEXES = st.integers(0, TOTAL + 2)


def named(name, index, view):
    metadata = replace(view.metadata, name=name, labels={"dgym.dev/index": str(index)} if index is not None else {})
    return replace(view, metadata=metadata)


class Machine(RuleBasedStateMachine):
    """Children appear, change and disappear. Several children may have one index. The completed indexes change."""

    def __init__(self):
        super().__init__()
        self.children = Children()
        self.present = {}
        self.completed = Indexes()

    @rule(
        name=st.sampled_from("abcdef"),
        index=st.none() | INDEXES,
        is_finished=st.booleans(),
        suspend=st.booleans(),
    )
    def put(self, name, index, is_finished, suspend):
        status = finished() if is_finished else None
        view = named(name, index, child(0, status=status, suspend=suspend))
        before = self.present.get(name)
        if before is not None and child_index(before) != index:
            # A child that changes its index becomes the last child of the new index.
            del self.present[name]
        self.present[name] = view
        self.children.put(view)

    @rule(name=st.sampled_from("abcdef"))
    def remove(self, name):
        self.present.pop(name, None)
        self.children.remove(("ns", name))

    @rule(indexes=st.sets(INDEXES))
    def count(self, indexes):
        self.completed = self.completed.plus(indexes)

    @rule(indexes=st.sets(INDEXES))
    def correct(self, indexes):
        self.completed = Indexes().plus(indexes)

    @invariant()
    def agrees(self):
        assert self.children.completed(str(self.completed)) == self.completed
        by_index = {}
        for view in self.present.values():
            if child_index(view) is not None:
                by_index[child_index(view)] = view
        for total in (TOTAL, TOTAL + 3):
            fresh = {at: view for at, view in by_index.items() if at < total and at not in self.completed}
            done = {at: view for at, view in fresh.items() if view.is_finished}
            rest = [view for at, view in sorted(fresh.items()) if at not in done]
            assert self.children.finished(total) == done
            assert list(self.children.unfinished(total)) == rest
            assert self.children.count_unfinished(total) == (len(rest), sum(view.spec.suspend for view in rest))
            free = [at for at in range(total) if at not in self.completed and at not in by_index and at != 1]
            assert list(self.children.missing(total, {1})) == free
            assert list(islice(self.children.missing(total, {1}), 2)) == free[:2]
        assert all(self.children.at(at) == view for at, view in by_index.items())


TestChildren = Machine.TestCase
TestChildren.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
