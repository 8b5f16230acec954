from hypothesis import given
from hypothesis import strategies as st

from dgym.episodes.pool import Schedule


def test_jobs_start_in_order(make_job):
    jobs = [make_job(name) for name in "abc"]
    schedule = Schedule(jobs)
    assert [schedule.next() for _ in range(4)] == [*jobs, None]
    assert not schedule.finished
    for job in jobs:
        schedule.done(job, failed=False)
    assert schedule.finished


def test_a_full_group_does_not_hold_up_others(make_job):
    grouped = [make_job(name, group="set", parallelism=1) for name in "ab"]
    alone = make_job("alone")
    schedule = Schedule([*grouped, alone])
    assert [schedule.next() for _ in range(3)] == [grouped[0], alone, None]
    schedule.done(grouped[0], failed=False)
    assert schedule.next() == grouped[1]


def test_a_job_that_has_to_run_again_comes_first(make_job):
    jobs = [make_job(name, group="set", parallelism=1) for name in "ab"]
    schedule = Schedule(jobs)
    schedule.again(schedule.next())
    assert schedule.next() == jobs[0]


def test_a_set_is_given_up_beyond_max_failed(make_job):
    jobs = [make_job(name, group="set", max_failed=1) for name in "abcd"]
    schedule = Schedule(jobs)
    schedule.done(schedule.next(), failed=True)
    assert schedule.next() == jobs[1]
    schedule.done(jobs[1], failed=True)
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

    items = [Item(group) for group in groups]
    schedule = Schedule(items)
    active, ran = [], []
    while not schedule.finished:
        while (item := schedule.next()) is not None:
            active.append(item)
            assert all(number <= limit for group, number in Counter(one.group for one in active).items() if group)
        done = active.pop(0)
        ran.append(done)
        schedule.done(done, failed=False)
    assert Counter(map(id, ran)) == Counter(map(id, items))
