"""Tests of the page with results in a bucket of a real S3 server."""

import shutil

import pytest

from dgym.results import open_library
from tests.integration.results.conftest import s3_server as s3_server


@pytest.fixture
def bucket(s3_server, results, monkeypatch):
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    name = s3_server.bucket()
    shutil.copytree(results, s3_server.root / name / "prefix")
    return s3_server.root / name / "prefix", f"s3://{name}/prefix"


async def test_episodes_of_a_bucket_are_listed_read_and_followed(bucket):
    directory, address = bucket
    library = open_library(address)
    await library.refresh()
    assert sorted(entry.state for entry in library.entries.values()) == ["Resolved"] * 2 + ["Unresolved"] * 2
    assert {entry.run for entry in library.entries.values()} == {"nightly"}
    entry = next(entry for entry in library.entries.values() if entry.about.episode == "calc-repair-0")
    assert b"+    total += b" in await library.read(entry, 1, "patch.diff", 10_000)
    assert await library.read(entry, 1, "trajectory.jsonl", 20) == b'{"schemaVersion":1,"'
    assert await library.read(entry, 2, "patch.diff", 10_000) is None
    before = await library.version(entry, 1)
    shutil.copytree(directory / entry.path / "1", directory / entry.path / "2")
    (directory / entry.path / "2" / "result.json").unlink()
    library = open_library(address)
    await library.refresh()
    entry = library.entries[entry.path]
    assert entry.attempts == (1, 2)
    assert entry.state == "Running"
    assert entry.about.steps == 8
    assert before == await library.version(entry, 1)
