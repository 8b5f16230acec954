"""Tests of a results store in a bucket of a real S3 server."""

import pytest

from dgym.results import StoreUnavailable, open_store

PATH = "n/e/uid/1/result.json"


def listed(files):
    return [(file.path, file.size) for file in files]


@pytest.fixture
def store(s3_server, monkeypatch):
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return open_store(f"s3://{s3_server.bucket()}/some/prefix")


async def test_objects_are_written_read_and_listed(store):
    await store.check()
    assert await store.read(PATH) is None
    assert await store.open(PATH) is None
    assert await store.files("n/e") == []
    await store.write(PATH, b"{}")
    await store.write("n/e/uid/1/trajectory.jsonl", b"x" * 300_000)
    await store.write("n/ee/uid/1/result.json", b"{}")
    assert await store.read(PATH) == b"{}"
    content = await store.open("n/e/uid/1/trajectory.jsonl")
    assert content.size == len(b"".join([chunk async for chunk in content.chunks])) == 300_000
    assert listed(await store.files("n/e")) == [(PATH, 2), ("n/e/uid/1/trajectory.jsonl", 300_000)]
    assert store.uri("n/e/uid/1").startswith("s3://results-")
    assert store.uri("n/e/uid/1").endswith("/some/prefix/n/e/uid/1")


async def test_create_does_not_overwrite_an_existing_object(store):
    assert await store.create(PATH, b"first")
    assert not await store.create(PATH, b"second")
    assert await store.read(PATH) == b"first"


async def test_append_is_not_supported(store):
    assert not await store.append(PATH, b"x", size=0)
    assert await store.read(PATH) is None


async def test_a_missing_bucket_is_reported(s3_server, store):
    missing = open_store("s3://missing/x")
    for failing in (missing.check(), missing.write(PATH, b"")):
        with pytest.raises(StoreUnavailable, match="s3://missing/x"):
            await failing


async def test_wrong_credentials_are_named_and_not_shown(store, s3_server, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret")
    with pytest.raises(StoreUnavailable) as caught:
        await open_store(f"s3://{s3_server.bucket()}").check()
    assert "not-the-secret" not in str(caught.value)
    assert "\n" not in str(caught.value)
