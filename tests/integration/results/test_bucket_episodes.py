"""Tests of an attempt's files in a bucket: checkpoints, an outage and a second writer."""

import asyncio

import msgspec
import pytest

from dgym.episodes.agent_pod import EpisodeLog
from dgym.results import Record, StoredResult, TrajectoryHeader, open_store
from dgym.wire import EndReason, Observation, Step, ToolCall

PATH = "n/e/uid/1"
RESULT = StoredResult(resolved=True, reason=EndReason.RESOLVED, patch="+x\n")


@pytest.fixture
def store(s3_server, monkeypatch):
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return open_store(f"s3://{s3_server.bucket()}/p")


@pytest.fixture
def new_record(store):
    def make(unavailable=lambda _: None):
        return Record(store, PATH, EpisodeLog().text, unavailable=unavailable, longest_pause_seconds=0.1)

    return make


def step(number):
    call = ToolCall(tool="view") if number else None
    return Step(seq=number, call=call, observation=Observation(text=f"step {number}"))


async def test_a_trajectory_is_written_every_ten_steps_and_taken_up(store, new_record):
    record = new_record()
    assert await record.load(TrajectoryHeader(task="calc")) == ()
    saving = asyncio.create_task(record.keep_saving())
    for number in range(10):
        record.write(step(number))
    async with asyncio.timeout(90):
        while await store.read(f"{PATH}/trajectory.jsonl") is None:
            await asyncio.sleep(0.01)
    saving.cancel()
    record.write(step(10))
    again = new_record()
    assert [each.seq for each in await again.load(TrajectoryHeader(task="other"))] == list(range(10))
    again.write(step(10))
    stored = await again.finish(RESULT)
    assert stored.result_uri == store.uri(PATH)
    lines = (await store.read(f"{PATH}/trajectory.jsonl")).splitlines()
    assert msgspec.json.decode(lines[0])["task"] == "calc"
    assert [msgspec.json.decode(line)["seq"] for line in lines[1:]] == list(range(11))
    assert await store.read(f"{PATH}/patch.diff") == b"+x\n"


async def test_a_second_writer_leaves_the_result_alone(store, new_record):
    first = await new_record().finish(RESULT)
    second = await new_record().finish(msgspec.structs.replace(RESULT, resolved=False, reason=EndReason.UNRESOLVED))
    assert second == first
    assert second.resolved


async def test_an_outage_is_waited_out(s3_server, new_record):
    reported = []
    s3_server.stop()
    try:
        finishing = asyncio.create_task(new_record(reported.append).finish(RESULT))
        async with asyncio.timeout(60):
            while not reported:
                await asyncio.sleep(0.01)
    finally:
        s3_server.start()
    assert (await asyncio.wait_for(finishing, 60)).resolved
    assert reported[-1] is None
    assert "s3://" in str(reported[0])
