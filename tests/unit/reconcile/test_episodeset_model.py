"""Decisions about a set against a model of its children, in which anything happens at any time."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dgym.api import AgentOverrides, Arm, episodes_of
from tests.unit.reconcile.set_model import SetModel, verdict

REASONS = ["Resolved", "Unresolved", "SandboxLost", "ModelError", "StepLimitReached"]


@pytest.mark.parametrize("lag", [1, 2, 5])
def test_a_set_runs_every_index_once_within_its_parallelism(lag):
    model = SetModel(tasks=5, samples=3, parallelism=4)
    for number in range(300):
        if number % lag == 0:
            model.sync()
        model.operate()
        model.end(number, REASONS[number % 5])
        model.collect()
    assert model.finished
    assert model.largest <= 4
    assert model.runs == dict.fromkeys(range(15), 1)
    status = model.truth.status
    assert (status.completed_indexes, status.total, status.pending, status.active) == ("0-14", 15, 0, 0)
    resolved = sum(reason == "Resolved" for reason in model.ends.values())
    failed = sum(not verdict(reason) for reason in model.ends.values())
    assert (status.resolved, status.unresolved, status.failed) == (resolved, 15 - resolved - failed, failed)
    assert status.pass_at_1 == f"{resolved / (15 - failed):.4f}"


@pytest.mark.parametrize("keeps_children", [True, False])
def test_failed_episodes_run_again(keeps_children):
    model = SetModel(tasks=4, samples=3, parallelism=4)

    def run(*reasons):
        for number in range(100):
            model.pass_time()
            model.operate()
            model.end(0, reasons[number % len(reasons)])
            if not keeps_children:
                model.collect()

    run("Resolved", "ModelError", "SandboxLost", "Unresolved")
    assert (model.finished, model.truth.status.failed, model.truth.status.resolved) == (True, 6, 3)
    model.retry("ModelError")
    run("Resolved")
    assert (model.finished, model.truth.status.failed, model.truth.status.resolved) == (True, 3, 6)
    model.retry()
    run("ModelError")
    status = model.truth.status
    assert (model.finished, status.failed, status.resolved, status.completed_indexes) == (True, 3, 6, "0-11")
    assert sorted(model.runs.values()) == [1] * 6 + [2] * 6
    model.retry()
    run("Resolved")
    assert (model.finished, model.truth.status.failed_indexes, model.truth.status.resolved) == (True, (), 9)
    assert model.runs == model.expected


class Storm(RuleBasedStateMachine):
    """Everything that may happen to a set, in any order."""

    @initialize(numbers=st.tuples(*(st.integers(least, most) for least, most in ((1, 4), (1, 3), (1, 4), (0, 3)))))
    def begin(self, numbers):
        tasks, samples, parallelism, arms = numbers
        agent = AgentOverrides(name="solution")
        compared = tuple(Arm(name=f"arm-{number}", agent=agent) for number in range(arms))
        self.model = SetModel(tasks=tasks, samples=samples, parallelism=parallelism, arms=compared)
        self.parallelism = parallelism

    @rule(sets=st.booleans(), children=st.booleans())
    def operate(self, sets, children):
        self.model.sync(sets=sets, children=children)
        self.model.operate()

    @rule()
    def operate_on_what_is_known(self):
        self.model.operate()

    @rule(number=st.integers(0, 9), reason=st.sampled_from(REASONS))
    def an_episode_ends(self, number, reason):
        self.model.end(number, reason)

    @rule()
    def collect(self):
        self.model.collect()

    @rule(rounds=st.integers(1, 4))
    def nothing_unusual_happens(self, rounds):
        for _ in range(rounds):
            self.model.sync()
            self.model.operate()
            self.model.end(0, "Resolved")
            self.model.collect()

    @rule()
    def pass_time(self):
        self.model.pass_time()

    @rule(number=st.integers(0, 9))
    def somebody_deletes_a_child(self, number):
        self.model.remove(number)

    @rule(set_age=st.integers(0, 12), children_age=st.integers(0, 12))
    def change_leader(self, set_age, children_age):
        self.model.change_leader(set_age, children_age)
        self.model.operate()

    @rule(suspend=st.booleans())
    def suspend(self, suspend):
        self.model.edit(suspend=suspend)

    @rule(fewer=st.integers(0, 3))
    def scale(self, fewer):
        self.model.edit(parallelism=max(0, self.parallelism - fewer))

    @rule(reasons=st.sampled_from(["", "ModelError", "SandboxLost,AgentLost", "Resolved"]))
    def a_user_retries(self, reasons):
        self.model.retry(reasons)

    @invariant()
    def never_more_than_parallelism_run(self):
        if hasattr(self, "model"):
            assert self.model.largest <= self.parallelism

    def teardown(self):
        if not hasattr(self, "model"):
            return
        model = self.model
        model.settle()
        assert model.finished, "the set never ends"
        total = episodes_of(model.truth.spec, len(model.frozen))
        assert model.runs == model.expected
        status = model.truth.status
        resolved = sum(reason == "Resolved" for reason in model.ends.values())
        failed = sum(not verdict(reason) for reason in model.ends.values())
        assert (status.resolved, status.unresolved, status.failed) == (resolved, total - resolved - failed, failed)
        for number, arm in enumerate(status.arms):
            ends = [reason for index, reason in model.ends.items() if index % len(status.arms) == number]
            assert arm.total == len(ends)
            assert arm.resolved == ends.count("Resolved")
            assert arm.failed == sum(not verdict(reason) for reason in ends)
        model.sync()
        assert not model.operate().actions


TestSetStorm = Storm.TestCase
TestSetStorm.settings = settings(max_examples=50, stateful_step_count=30)
