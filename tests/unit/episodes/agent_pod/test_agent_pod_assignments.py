"""Tests of assignments: slots, epochs and reports, with a fake player."""

import asyncio

import pytest

from dgym.episodes.agent_pod._assignments import Assignments, Ending, NoSlot, Outdated, Stage, failure
from dgym.wire import AttemptOutcome, EndReason
from dgym.wire.assignments import Assignment, AssignmentMode, AssignmentState
from dgym.wire.http import Epochs

DONE = Ending(state=AssignmentState.FINISHED, outcome=AttemptOutcome(resolved=True, reason=EndReason.RESOLVED))


def make(uid="one", epoch=1, mode=AssignmentMode.RUN, attempt=1):
    return Assignment(
        namespace="n",
        episode="e",
        episode_uid=uid,
        attempt=attempt,
        epoch=epoch,
        epochs=Epochs(prepare="p", drive="d"),
        sidecar_url="http://127.0.0.1:1",
        prepare_token="p",
        drive_token="d",
        task={"spec": {}},
        mode=mode,
    )


class Player:
    """Fake player, in which an assignment runs until a test calls ``end()``."""

    def __init__(self):
        self.futures = {}
        self.reports = {}
        self.playing = []
        self.most = 0

    async def __call__(self, assignment, report):
        key = (assignment.episode_uid, assignment.epoch)
        self.reports[key] = report
        self.playing.append(key)
        self.most = max(self.most, len([each for each in self.playing if each[0] == key[0]]))
        report(Stage(AssignmentState.RUNNING, 2))
        try:
            return await self.futures.setdefault(key, asyncio.get_running_loop().create_future())
        finally:
            self.playing.remove(key)
            del self.futures[key]

    async def end(self, uid, ending, epoch=1):
        await settle()
        future = self.futures[uid, epoch]
        if isinstance(ending, Exception):
            future.set_exception(ending)
        else:
            future.set_result(ending)
        await settle()


async def settle():
    for _ in range(10):
        await asyncio.sleep(0)


def status_of(held, uid):
    return next(status for status in held.report().assignments if status.episode_uid == uid)


@pytest.fixture
async def held():
    player = Player()
    async with Assignments(player, slots=2) as assignments:
        assignments.player = player
        yield assignments


async def test_the_same_epoch_is_the_same_assignment(held):
    assert held.assign(make()).state is AssignmentState.PREPARING
    await settle()
    status = held.assign(make())
    assert (status.state, status.steps) == (AssignmentState.RUNNING, 2)
    assert held.player.playing == [("one", 1)]


async def test_a_higher_epoch_begins_when_the_lower_one_has_ended(held):
    held.assign(make())
    await settle()
    held.assign(make(epoch=2))
    await settle()
    assert held.player.playing == [("one", 2)]
    assert held.player.most == 1
    with pytest.raises(Outdated):
        held.assign(make(epoch=1))
    assert [status.epoch for status in held.report().assignments] == [2]


async def test_a_new_attempt_is_accepted_with_any_epoch(held):
    held.assign(make(epoch=3))
    await held.player.end("one", failure(EndReason.SANDBOX_LOST, ""), epoch=3)
    assert status_of(held, "one").state is AssignmentState.FAILED
    status = held.assign(make(attempt=2))
    assert (status.state, status.attempt, status.epoch) == (AssignmentState.PREPARING, 2, 1)
    await settle()
    assert held.player.playing == [("one", 1)]
    with pytest.raises(Outdated):
        held.assign(make(attempt=1, epoch=9))
    assert status_of(held, "one").attempt == 2


async def test_a_new_attempt_under_the_epoch_of_the_one_before_is_played_in_its_place(held):
    held.assign(make())
    await settle()
    assert held.assign(make(attempt=2)).attempt == 2
    await settle()
    assert held.player.playing == [("one", 1)]
    assert held.player.most == 1


async def test_an_assignment_that_is_deleted_before_it_begins_takes_the_one_before_with_it(held):
    held.assign(make())
    await settle()
    held.assign(make(epoch=2))
    assert held.withdraw("one")
    await settle()
    assert held.player.playing == []
    assert not held.withdraw("one")


@pytest.mark.parametrize("state", [AssignmentState.STORING, AssignmentState.STORE_UNAVAILABLE])
async def test_a_result_is_stored_though_its_assignment_is_deleted(held, state):
    """The operator reads the outcome from the pod, finishes the episode and deletes its assignment."""
    held.assign(make())
    await settle()
    held.player.reports["one", 1](Stage(state))
    assert held.withdraw("one")
    await settle()
    assert held.player.playing == [("one", 1)]
    assert held.report().assignments == ()
    held.draining = True
    drained = asyncio.ensure_future(held.drained())
    await settle()
    assert not drained.done()
    await held.player.end("one", DONE)
    assert drained.done()
    assert held.player.playing == []


async def test_the_end_of_the_process_does_not_wait_for_a_deleted_assignment():
    player = Player()
    async with asyncio.timeout(10), Assignments(player, slots=1) as assignments:
        assignments.assign(make())
        await settle()
        player.reports["one", 1](Stage(AssignmentState.STORING))
        assignments.withdraw("one")
    assert player.playing == []


@pytest.mark.parametrize("deleted", [False, True])
async def test_a_recovery_waits_for_a_result_that_is_being_stored(held, deleted):
    held.assign(make())
    await settle()
    held.player.reports["one", 1](Stage(AssignmentState.STORE_UNAVAILABLE))
    if deleted:
        held.withdraw("one")
    held.assign(make(epoch=2, mode=AssignmentMode.RECOVER))
    await settle()
    assert held.player.playing == [("one", 1)]
    await held.player.end("one", DONE)
    assert held.player.playing == [("one", 2)]


async def test_a_new_attempt_does_not_wait_for_the_result_of_the_one_before(held):
    held.assign(make())
    await settle()
    held.player.reports["one", 1](Stage(AssignmentState.STORING))
    held.withdraw("one")
    held.assign(make(attempt=2, epoch=2))
    await settle()
    assert held.player.playing == [("one", 2)]


async def test_only_running_episodes_use_slots(held):
    held.assign(make("one"))
    held.assign(make("observed", mode=AssignmentMode.PREPARE))
    held.assign(make("two"))
    with pytest.raises(NoSlot, match="all 2 slots"):
        held.assign(make("three"))
    held.assign(make("two", epoch=2))
    assert held.gauges().used == 2
    await held.player.end("one", DONE)
    held.assign(make("three"))


async def test_an_ended_assignment_is_reported_until_it_is_deleted(held):
    held.assign(make())
    await held.player.end("one", DONE)
    (status,) = held.report().assignments
    assert (status.state, status.reason, status.outcome.resolved) == (
        AssignmentState.FINISHED,
        EndReason.RESOLVED,
        True,
    )
    assert held.assign(make()).state is AssignmentState.FINISHED
    held.withdraw("one")
    assert held.report().assignments == ()


async def test_a_superseded_assignment_is_not_reported(held):
    held.assign(make())
    await held.player.end("one", None)
    assert held.report().assignments == ()


async def test_an_internal_error_is_reported_as_a_failed_assignment(held):
    held.assign(make())
    await held.player.end("one", RuntimeError("broken"))
    status = status_of(held, "one")
    assert (status.state, status.reason) == (AssignmentState.FAILED, EndReason.INTERNAL_ERROR)
    assert "broken" in status.cause


async def test_draining_refuses_assignments_and_ends_after_the_last(held):
    held.assign(make())
    held.draining = True
    with pytest.raises(NoSlot, match="draining"):
        held.assign(make("two"))
    waiting = asyncio.create_task(held.drained())
    await settle()
    assert not waiting.done()
    await held.player.end("one", DONE)
    await asyncio.wait_for(waiting, 5)
