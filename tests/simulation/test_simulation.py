"""Tests of simulated clusters under faults. They are a sample: ``make simulate`` plays thousands of schedules."""

import pytest

from tests.simulation.api_server import ApiServer
from tests.simulation.faults import CANCELLED_SET, Fault
from tests.simulation.mutations import FOUND_BY, MUTATIONS
from tests.simulation.schedule import Schedule, draw, draw_users, play, shrink

CHUNK = 10
SEEDS = 20
LONG = ("an agent whose model is out gets its episodes", "the deadline runs while an episode waits for its model")
"""Mutations whose schedules take hours of virtual time."""


@pytest.fixture(autouse=True)
def quiet(caplog):
    caplog.set_level("CRITICAL")


@pytest.mark.parametrize("first", range(0, 30, CHUNK))
def test_episodes_end_correctly_under_faults(first):
    failed = {schedule: found for schedule in map(draw, range(first, first + CHUNK)) if (found := play(schedule))}
    assert not failed, "\n".join(f"{shrink(schedule)}\n{found}" for schedule, found in failed.items())


@pytest.mark.parametrize("first", range(0, 20, CHUNK))
def test_sets_end_correctly_under_actions_of_users(first):
    failed = {each: found for each in map(draw_users, range(first, first + CHUNK)) if (found := play(each))}
    assert not failed, "\n".join(f"{shrink(schedule)}\n{found}" for schedule, found in failed.items())


@pytest.mark.parametrize(
    "mutation", [pytest.param(each, marks=pytest.mark.thorough if each in LONG else ()) for each in FOUND_BY]
)
def test_a_reverted_fix_is_found(mutation):
    """Check that the invariants can fail: a schedule passes with the fix and fails without it."""
    schedules = [FOUND_BY[mutation]._replace(seed=seed) for seed in range(SEEDS)]
    with MUTATIONS[mutation]():
        found = next((schedule for schedule in schedules if play(schedule)), None)
    assert found is not None
    assert play(found) == []


def test_a_schedule_that_fails_is_shrunk_to_what_it_needs():
    cancelled = Fault(25.0, "episode: cancelled", 0, 0.0)
    others = (Fault(5.0, "leader: stopped", 0, 10.0), cancelled, Fault(30.0, "cluster: watches lag", 0, 5.0))
    mutated = MUTATIONS["a cancelled attempt is not scored"]
    with mutated():
        drawn = (Schedule(seed, (cancelled,), 0.0, ("agent", "driver"), max_active=3) for seed in range(SEEDS))
        failing = (schedule._replace(faults=others) for schedule in drawn if play(schedule))
        small = shrink(next(schedule for schedule in failing if play(schedule)))
        assert small.faults == (cancelled,)
        assert (len(small.episodes), small.max_active) == (1, None)
        assert any("not scored" in problem for problem in play(small))
    assert play(small) == []


def test_a_schedule_is_deterministic(monkeypatch):
    writes = []

    def store(self, *args, **metadata):
        writes.append((self._version, args[0], args[1], self._clock.monotonic()))
        return original(self, *args, **metadata)

    original = ApiServer._store
    monkeypatch.setattr(ApiServer, "_store", store)
    play(draw(3))
    first = list(writes)
    writes.clear()
    play(draw(3))
    assert writes == first
    assert len(first) > 50


def test_the_number_of_requests_does_not_depend_on_network_delays():
    """Check the number of requests of an episode without faults."""
    for seed in range(4):
        assert play(Schedule(seed, (), 0.0, ttl=10)) == []


def test_an_agent_that_never_stores_is_found():
    """Check that episodes do not end while the results store is away for hours."""
    away = Schedule(1, (Fault(1.0, "cluster: store away", 0, 1e9),), 0.0)
    assert any("never ended" in problem for problem in play(away, limit=600.0))


@pytest.mark.parametrize("seed", range(4))
def test_a_full_quota_does_not_cause_refused_requests(seed):
    assert play(Schedule(seed, (), 0.0, ("agent",) * 12, 8, quota=3)) == []


@pytest.mark.parametrize("seed", range(4))
def test_a_set_counts_its_episodes_and_shows_what_they_wait_for(seed):
    cancelled = Fault(40.0, CANCELLED_SET, 0, 0.0)
    assert play(Schedule(seed, (), 0.0, ("agent",), quota=2, samples=6)) == []
    assert play(Schedule(seed, (cancelled,), 0.0, ("agent",), quota=2, samples=9)) == []


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("at", [0.0, 30.0])
def test_a_model_that_is_out_for_two_hours_ends_no_episode_and_loses_no_attempt(seed, at):
    away = Fault(at, "cluster: model away", 0, 7200.0)
    assert play(Schedule(seed, (away,), 0.0, ("agent",) * 2, samples=6)) == []


REGRESSIONS = {
    "a new leader counts the slots that its predecessor has given": Schedule(
        1313, (Fault(25.41, "leader: stopped", 4, 16.4),), 0.15
    ),
    "a stored outcome outlives agent and node": Schedule(
        1, (Fault(0.0, "cluster: agent and node lost after an outcome", 0, 150.0),), 0.0
    ),
    "a late outcome is not stored beside a new attempt": Schedule(
        1, (Fault(0.0, "cluster: agent and pod lost as it stores", 0, 90.0),), 0.0
    ),
    "the sidecar is asked though its agent reports the loss first": Schedule(
        180, (), 0.0, ("deadly once", "driver", "agent"), 1, 2
    ),
    "a deadly step whose record is lost is counted as any other": Schedule(
        22839, (Fault(16.28, "cluster: store away", 3, 10.8),), 0.0, ("agent", "deadly twice", "driver", "agent"), 2
    ),
    "a cancelled episode is scored though its pod has no address in the view of a new leader": Schedule(
        27098,
        (Fault(19.36, "leader: stopped", 4, 17.2), Fault(21.36, "episode: cancelled", 0, 56.1)),
        0.0,
        ("agent", "agent", "driver", "agent"),
        2,
    ),
    "a pod whose creation is not answered keeps its grant": Schedule(10, (), 0.15, ("agent",) * 3, 2, 2),
}


@pytest.mark.parametrize("schedule", REGRESSIONS.values(), ids=REGRESSIONS)
def test_schedules_that_failed_before(schedule):
    assert play(schedule) == []
