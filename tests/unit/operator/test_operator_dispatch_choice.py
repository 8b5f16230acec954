from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from dgym_operator.dispatch.dispatcher import Candidate, choose, first, in_turn

START = datetime(2026, 1, 1, tzinfo=UTC)


def candidate(priority=0, age=0, namespace="team", **more):
    return Candidate(namespace=namespace, priority=priority, created=START - timedelta(seconds=age), **more)


def test_highest_priority_first_then_oldest():
    requests = {"young": candidate(), "old": candidate(age=10), "urgent": candidate(priority=1)}
    assert list(in_turn(requests, {})) == ["urgent", "old", "young"]
    assert first(requests, 2, {}) == ["urgent", "old"]
    assert first(requests, -1, {}) == []


def test_namespaces_take_turns_and_priority_decides_within_each():
    requests = {
        "loud-1": candidate(1000, 9, "loud"),
        "loud-2": candidate(1000, 8, "loud"),
        "loud-3": candidate(1000, 7, "loud"),
        "quiet-1": candidate(0, 2, "quiet"),
        "quiet-2": candidate(1, 1, "quiet"),
    }
    assert list(in_turn(requests, {})) == ["loud-1", "quiet-2", "loud-2", "quiet-1", "loud-3"]
    assert first(requests, 3, {"loud": 2}) == ["quiet-2", "quiet-1", "loud-1"]
    assert choose(requests, {"agent": 1}, {"loud": 1}) == {"quiet-2": "agent"}


def test_who_needs_no_slot_does_not_make_its_namespace_wait():
    requests = {
        "outside": candidate(1, namespace="a", needs_slot=False),
        "inside": candidate(namespace="a"),
        "other": candidate(0, -1, "b"),
    }
    assert list(in_turn(requests, {})) == ["outside", "inside", "other"]


def test_agents_with_the_most_free_slots_are_filled_first():
    chosen = choose({name: candidate(age=number) for number, name in enumerate("abcd")}, {"one": 1, "three": 3}, {})
    assert sorted(chosen.values()) == ["one", "three", "three", "three"]
    assert choose({"only": candidate()}, {"one": 1, "three": 3}, {}) == {"only": "three"}


def test_another_agent_is_better_than_the_one_that_failed_but_the_same_is_better_than_none():
    assert choose({"a": candidate(previous="x")}, {"x": 5, "y": 1}, {}) == {"a": "y"}
    assert choose({"a": candidate(previous="x")}, {"x": 5, "y": 0}, {}) == {"a": "x"}


def test_who_is_driven_from_outside_needs_no_slot_but_somebody():
    requests = {"outside": candidate(needs_slot=False), "inside": candidate(age=1)}
    assert choose(requests, {"full": 0}, {}) == {"outside": "full"}
    assert choose(requests, {}, {}) == {}


@given(
    st.dictionaries(st.integers(0, 50), st.tuples(st.integers(-3, 3), st.integers(0, 9), st.booleans())),
    st.dictionaries(st.sampled_from("abcde"), st.integers(0, 5)),
)
def test_slots_are_never_exceeded_and_never_left_while_somebody_waits(requests, free):
    candidates = {
        key: candidate(priority, age, needs_slot=needs_slot) for key, (priority, age, needs_slot) in requests.items()
    }
    chosen = choose(candidates, free, {})
    used = [chosen[key] for key in chosen if candidates[key].needs_slot]
    assert all(used.count(agent) <= free[agent] for agent in used)
    inside = [key for key in in_turn(candidates, {}) if candidates[key].needs_slot]
    served = [key for key in inside if key in chosen]
    assert served == inside[: sum(free.values())]
    assert choose(candidates, free, {}) == chosen
