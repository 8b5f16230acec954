"""Tests of the trajectory and the result when a driver stores them after another driver superseded it."""

import asyncio

import msgspec
import obstore
import pytest

from dgym.episodes.agent_pod import EpisodeLog
from dgym.errors import Superseded
from dgym.results import Record, StoredResult, StoreUnavailable, TrajectoryHeader, open_store
from dgym.wire import EndReason, Observation, Step, ToolCall

PATH = "n/e/uid/1"
TRAJECTORY = f"{PATH}/trajectory.jsonl"
RESULT = StoredResult(resolved=True, reason=EndReason.RESOLVED, score=1, max_score=1)


@pytest.fixture(params=["directory", pytest.param("bucket", marks=pytest.mark.thorough)])
def store(request, tmp_path, monkeypatch):
    if request.param == "directory":
        return open_store(str(tmp_path / "results"))
    s3_server = request.getfixturevalue("s3_server")
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return open_store(f"s3://{s3_server.bucket()}/p")


@pytest.fixture
def new_record(store):
    async def make(steps):
        record = Record(store, PATH, EpisodeLog().text, unavailable=lambda _: None)
        begun = await record.load(TrajectoryHeader(task="calc"))
        add(record, range(len(begun), steps))
        return record

    return make


def add(record, numbers):
    for number in numbers:
        call = ToolCall(tool="view") if number else None
        record.write(Step(seq=number, call=call, observation=Observation(text=f"step {number}")))


async def stored_steps(store):
    _, *lines = (await store.read(TRAJECTORY)).splitlines()
    return [msgspec.json.decode(line)["seq"] for line in lines]


async def test_a_superseded_drivers_last_save_leaves_a_longer_trajectory_alone(store, new_record):
    superseded = await new_record(3)
    await superseded.save()
    driver = await new_record(7)
    await driver.save()
    add(superseded, [3])
    await superseded.save()
    assert await stored_steps(store) == list(range(7))
    add(driver, [7])
    await driver.save()
    assert await stored_steps(store) == list(range(8))


async def test_the_longer_trajectory_is_kept_regardless_of_the_order_of_saves(store, new_record):
    superseded = await new_record(1)
    await superseded.save()
    driver = await new_record(2)
    add(superseded, [1, 2, 3])
    await superseded.save()
    await driver.save()
    assert await stored_steps(store) == [0, 1, 2, 3]
    add(driver, [2, 3, 4])
    await driver.save()
    assert await stored_steps(store) == [0, 1, 2, 3, 4]


async def test_an_invalid_trajectory_is_replaced(store, new_record):
    await store.write(TRAJECTORY, b"{}\n" * 9)
    await (await new_record(2)).save()
    assert await stored_steps(store) == [0, 1]


async def test_a_file_that_changes_under_every_write_is_given_up(s3_server, monkeypatch):
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    store = open_store(f"s3://{s3_server.bucket()}/p")
    versions = iter(range(100))
    await store.write(TRAJECTORY, b"initial")

    def changes(_present):
        # Another writer changes the object between the read and the conditional write.
        obstore.put(store._bucket, TRAJECTORY, b"%d" % next(versions))
        return False

    with pytest.raises(StoreUnavailable, match="changes under every write"):
        await store.replace(TRAJECTORY, b"x", version=None, keep=changes)


async def test_a_late_agent_stores_no_result_of_an_attempt_that_was_given_up(store, new_record):
    late, recovering = await new_record(2), await new_record(0)
    assert await recovering.give_up() is None
    with pytest.raises(Superseded, match="attempt 1 was given up"):
        await late.finish(RESULT)
    assert await recovering.result() is None
    assert await (await new_record(0)).give_up() is None


async def test_an_attempt_with_a_result_is_not_given_up(store, new_record):
    stored = await (await new_record(2)).finish(RESULT)
    assert await (await new_record(0)).give_up() == stored
    assert await (await new_record(0)).result() == stored


async def test_concurrent_finish_and_give_up_agree_on_the_result(store):
    for attempt in range(1, 11):
        storing, recovering = (Record(store, f"n/e/uid/{attempt}", EpisodeLog().text) for _ in range(2))
        stored, found = await asyncio.gather(storing.finish(RESULT), recovering.give_up(), return_exceptions=True)
        assert isinstance(stored, Superseded) if found is None else stored == found
        assert await recovering.result() == found


async def test_a_result_that_is_being_written_is_waited_for(store, new_record):
    record = await new_record(0)
    await store.write(f"{PATH}/result.json", b"")
    with pytest.raises(StoreUnavailable, match=r"result\.json is being written"):
        await record.give_up()
