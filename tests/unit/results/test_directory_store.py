"""Tests of a results store in a directory."""

import asyncio
import os
import threading

import pytest

from dgym.errors import ManifestError
from dgym.results import DirectoryStore, StoreUnavailable, open_store
from dgym.results._store import attempt_path

PATH = "n/e/uid/1/trajectory.jsonl"


def listed(files):
    return [(file.path, file.size) for file in files]


@pytest.fixture
def store(tmp_path):
    return open_store(str(tmp_path / "results"))


async def test_files_are_written_read_and_listed(store, tmp_path):
    assert await store.read(PATH) is None
    assert await store.open(PATH) is None
    assert await store.files("n/e") == []
    await store.write(PATH, b"one")
    await store.write("n/e/uid/1/result.json", b"{}")
    await store.write("n/other/uid/1/result.json", b"{}")
    assert await store.read(PATH) == b"one"
    content = await store.open(PATH)
    assert (content.size, b"".join([chunk async for chunk in content.chunks])) == (3, b"one")
    assert listed(await store.files("n/e")) == [("n/e/uid/1/result.json", 2), (PATH, 3)]
    assert store.uri("n/e/uid/1") == (tmp_path / "results/n/e/uid/1").as_uri()


async def test_a_hanging_directory_blocks_only_callers_of_the_store(store, tmp_path):
    """All models, sources and results of an agent pod share asyncio's threads, so the store uses its own."""
    directory = tmp_path / "results/n/e/uid"
    directory.mkdir(parents=True)
    fifos = [directory / str(number) for number in range(60)]
    for fifo in fifos:
        os.mkfifo(fifo)
    # Threads of the stores of earlier tests may still exist.
    earlier = set(threading.enumerate())

    def threads():
        return [each for each in set(threading.enumerate()) - earlier if each.name.startswith("dgym-results")]

    reads = [asyncio.create_task(store.read(f"n/e/uid/{number}")) for number in range(60)]
    async with asyncio.timeout(60):
        while not threads():
            await asyncio.sleep(0)
        assert await asyncio.gather(*(asyncio.to_thread(str, number) for number in range(100)))
        assert len(threads()) <= 16
        assert not any(read.done() for read in reads)
        # Reads that waited for a thread also finish, after the reads before them.
        for fifo, read in zip(fifos, reads, strict=True):
            await asyncio.to_thread(fifo.write_bytes, b"late")
            assert await read == b"late"


async def test_create_does_not_overwrite_an_existing_file(store):
    assert await store.create(PATH, b"first")
    assert not await store.create(PATH, b"second")
    assert await store.read(PATH) == b"first"


async def test_append_requires_the_current_size(store):
    assert await store.append(PATH, b"ab", size=0)
    assert await store.append(PATH, b"cd", size=2)
    assert not await store.append(PATH, b"xx", size=2)
    assert not await store.append("n/e/uid/2/trajectory.jsonl", b"xx", size=2)
    assert await store.read(PATH) == b"abcd"


async def test_a_reader_gets_what_was_there_when_it_began(store):
    await store.write(PATH, b"ab")
    content = await store.open(PATH)
    await store.append(PATH, b"cd", size=2)
    assert b"".join([chunk async for chunk in content.chunks]) == b"ab"


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a//b", "a/.hidden", "", "a/../b", "a/b\0", "a/" + "x" * 300])
async def test_paths_out_of_the_store_are_refused(store, path):
    with pytest.raises(ManifestError):
        await store.read(path)
    with pytest.raises(ManifestError):
        await store.write(path, b"")


async def test_links_are_not_followed(store, tmp_path):
    await store.write(PATH, b"x")
    secret = tmp_path / "secret"
    secret.write_text("secret")
    (tmp_path / "results/n/e/uid/1/result.json").symlink_to(secret)
    with pytest.raises(StoreUnavailable):
        await store.read("n/e/uid/1/result.json")
    assert [item.path for item in await store.files("n/e")] == [PATH]


async def test_a_directory_that_cannot_be_is_unavailable(tmp_path):
    (tmp_path / "file").write_text("")
    store = DirectoryStore(tmp_path / "file" / "results")
    for failing in (store.check(), store.write(PATH, b"")):
        with pytest.raises(StoreUnavailable, match="results directory"):
            await failing


async def test_a_check_leaves_no_file(store, tmp_path):
    await store.check()
    assert list((tmp_path / "results").iterdir()) == []


@pytest.mark.parametrize("location", ["gs://bucket", "s3://", "http://x"])
def test_invalid_locations(location):
    with pytest.raises(ManifestError, match="results store"):
        open_store(location)


def test_names_are_parts_of_paths():
    assert attempt_path("n", "e.1", "uid", 3) == "n/e.1/uid/3"
    with pytest.raises(ManifestError):
        attempt_path("n", "..", "uid", 3)
