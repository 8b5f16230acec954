"""Tests of saves of a trajectory that are cancelled while the store is writing."""

import asyncio
import json

import pytest

from dgym.episodes.agent_pod import EpisodeLog
from dgym.results import DirectoryStore, Record, StoreUnavailable, TrajectoryHeader
from dgym.wire import Observation, Step, ToolCall

PATH = "n/e/uid/1"
WAIT_SECONDS = 60


class SlowDirectory(DirectoryStore):
    """A directory store that writes appended data some time after the check of the file's size."""

    def __init__(self, root):
        super().__init__(root)
        self.file = root / PATH / "trajectory.jsonl"
        self.checked = asyncio.Event()
        self.writable = asyncio.Event()
        self.failure = None

    async def append(self, path, data, *, size):
        if (self.file.stat().st_size if self.file.exists() else 0) != size:
            return False
        # The write continues when its caller is cancelled, as a write in a thread does.
        await asyncio.shield(asyncio.ensure_future(self._append_later(data)))
        return True

    async def _append_later(self, data):
        self.checked.set()
        await self.writable.wait()
        if self.failure is not None:
            raise self.failure
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.open("ab") as file:
            file.write(data)

    def seqs(self):
        _, *lines = self.file.read_text().splitlines()
        return [json.loads(line)["seq"] for line in lines]


@pytest.fixture
def store(tmp_path):
    return SlowDirectory(tmp_path)


@pytest.fixture
async def record(store):
    """A record whose header is already stored."""
    record = Record(store, PATH, EpisodeLog().text, unavailable=lambda _: None)
    await record.load(TrajectoryHeader(task="calc"))
    store.writable.set()
    await record.save()
    store.writable.clear()
    store.checked.clear()
    return record


def step(number):
    call = ToolCall(tool="view") if number else None
    return Step(seq=number, call=call, observation=Observation(text=f"step {number}"))


async def cancelled_save(store, record):
    """Start a save and cancel it between the check of the file's size and the write."""
    saving = asyncio.create_task(record.keep_saving())
    record.write(step(0))
    await asyncio.wait_for(store.checked.wait(), WAIT_SECONDS)
    saving.cancel()
    await asyncio.wait([saving])
    assert saving.cancelled()


async def idle():
    """Let every task run until it waits for an event."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_save_after_a_cancelled_one_stores_every_step_once(store, record):
    await cancelled_save(store, record)
    record.write(step(1))
    last = asyncio.create_task(record.save())
    await idle()
    store.writable.set()
    await asyncio.wait_for(last, WAIT_SECONDS)
    assert store.seqs() == [0, 1]


async def test_a_save_after_a_cancelled_one_that_fails_stores_every_step(store, record):
    await cancelled_save(store, record)
    store.failure = StoreUnavailable("no space left on device")
    last = asyncio.create_task(record.save())
    await idle()
    store.writable.set()
    with pytest.raises(StoreUnavailable):
        await asyncio.wait_for(last, WAIT_SECONDS)
    store.failure = None
    await asyncio.wait_for(record.save(), WAIT_SECONDS)
    assert store.seqs() == [0]


async def test_a_save_of_a_store_that_hangs_can_be_given_up(store, record):
    await cancelled_save(store, record)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await record.save()
    store.writable.set()
    await asyncio.wait_for(record.save(), WAIT_SECONDS)
    assert store.seqs() == [0]
