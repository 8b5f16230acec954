import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgym.episodes import SetCosts
from dgym.episodes._worker_processes import Schedule
from dgym.results import StoredResult
from dgym.wire import EndReason

RESULT = StoredResult(resolved=True, reason=EndReason.RESOLVED)
FAILED = StoredResult(resolved=False, reason=EndReason.AGENT_POD_LOST)


def paid(price):
    return StoredResult(resolved=False, reason=EndReason.UNRESOLVED, price=price)


def lost_attempt(job, *prices):
    folder = job.folder.path / "1"
    folder.mkdir(parents=True)
    exchanges = [{"sent": [[0, 0]], "usage": {"price": price}} for price in prices]
    step = {"seq": 0, "call": None, "observation": {"text": ""}}
    lines = [{"schemaVersion": 1}, step, {**step, "seq": 1, "exchanges": exchanges}]
    (folder / "trajectory.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"seq": 2, "exch')


def stored(job, price):
    folder = job.folder.path / "1"
    folder.mkdir(parents=True)
    (folder / "result.json").write_bytes(msgspec.json.encode(paid(price)))


def test_jobs_start_in_order(make_job):
    jobs = [make_job(name) for name in "abc"]
    schedule = Schedule(jobs)
    assert [schedule.next() for _ in range(4)] == [*jobs, None]
    assert not schedule.finished
    for job in jobs:
        schedule.done(job, RESULT)
    assert schedule.finished


def test_a_full_group_does_not_delay_other_jobs(make_job):
    grouped = [make_job(name, group="set", parallelism=1) for name in "ab"]
    alone = make_job("alone")
    schedule = Schedule([*grouped, alone])
    assert [schedule.next() for _ in range(3)] == [grouped[0], alone, None]
    schedule.done(grouped[0], RESULT)
    assert schedule.next() == grouped[1]


def test_a_repeated_job_is_scheduled_first(make_job):
    jobs = [make_job(name, group="set", parallelism=1) for name in "ab"]
    schedule = Schedule(jobs)
    schedule.again(schedule.next())
    assert schedule.next() == jobs[0]


def test_a_set_is_given_up_beyond_max_failed(make_job):
    jobs = [make_job(name, group="set", max_failed=1) for name in "abcd"]
    schedule = Schedule(jobs)
    schedule.done(schedule.next(), FAILED)
    assert schedule.next() == jobs[1]
    schedule.done(jobs[1], FAILED)
    assert schedule.next() is None
    assert schedule.finished


@given(groups=st.lists(st.sampled_from(["", "x", "y"]), max_size=30), limit=st.integers(1, 4))
def test_every_job_runs_once_and_no_group_exceeds_its_limit(groups, limit):
    from collections import Counter

    class Item:
        def __init__(self, group):
            self.group = group
            self.parallelism = limit
            self.max_failed = None
            self.cost_limit = None

    items = [Item(group) for group in groups]
    schedule = Schedule(items)
    active, ran = [], []
    while not schedule.finished:
        while (item := schedule.next()) is not None:
            active.append(item)
            assert all(number <= limit for group, number in Counter(one.group for one in active).items() if group)
        done = active.pop(0)
        ran.append(done)
        schedule.done(done, RESULT)
    assert Counter(map(id, ran)) == Counter(map(id, items))


def test_a_set_stops_once_its_cost_limit_is_spent(make_job):
    jobs = [make_job(name, group="set", cost_limit="1") for name in "abcd"]
    alone = make_job("alone")
    costs = SetCosts(jobs)
    schedule = Schedule([*jobs, alone], costs)
    schedule.done(schedule.next(), paid("0.4"))
    running = schedule.next()
    assert running == jobs[1]
    schedule.done(schedule.next(), paid("0.6"))
    assert schedule.next() == alone
    assert schedule.next() is None
    assert costs.spent(jobs[0]) == "1"
    schedule.done(running, paid(None))
    schedule.done(alone, paid("9"))
    assert schedule.finished
    assert costs.spent(alone) is None


@pytest.mark.parametrize(("afresh", "spent"), [(False, "0.9"), (True, "0.3")])
def test_results_and_lost_attempts_of_earlier_runs_count_once(make_job, afresh, spent):
    finished, lost = (make_job(name, group="set", cost_limit="0.1") for name in "ab")
    stored(finished, "0.6")
    lost_attempt(lost, "0.1", "0.2")
    costs = SetCosts([finished, lost], afresh=afresh)
    assert costs.spent(lost) == spent
    assert Schedule([lost], costs).next() is None
    costs.add(lost, paid("0.5"))
    assert costs.spent(lost) == ("0.5" if afresh else "1.1")
