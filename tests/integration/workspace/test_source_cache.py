"""Tests of the cache of sources for many episodes: allowed hosts only, one fetch for each source, a size limit."""

import asyncio
import contextlib
import hashlib
import io
import socket
import tarfile

import pytest

from dgym.api import ArchiveSource, GitSource, InlineFile, SourceSpec
from dgym.errors import SourceFailed
from dgym.workspace.sources import SourceCache, SourceHosts


@pytest.fixture
def new_cache(tmp_path):
    def make(hosts, limit_bytes=10**9):
        return SourceCache(tmp_path / "cache", limit_bytes=limit_bytes, hosts=SourceHosts.parse(hosts))

    return make


@pytest.fixture
def archive(web):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        tar.addfile(tarfile.TarInfo("calc/x.py"))
    (web.root / "archive").write_bytes(stream.getvalue())
    digest = hashlib.sha256(stream.getvalue()).hexdigest()
    return lambda path="archive": SourceSpec(archive=ArchiveSource(url=f"{web.url}/{path}", sha256=digest))


async def pack(cache, source, namespace="default"):
    async with cache.packed(source, namespace) as path:
        return path.read_bytes()


async def test_concurrent_requests_fetch_a_source_once(new_cache, archive, web):
    cache = new_cache("127.0.0.1")
    packed = await asyncio.gather(*(pack(cache, archive()) for _ in range(8)))
    assert len(set(packed)) == 1
    assert web.requests == ["/archive"]


@pytest.mark.attack("cache")
async def test_a_namespace_does_not_get_what_another_has_fetched(new_cache, archive, web):
    """The address may contain a password that only one of the namespaces has."""
    cache = new_cache("127.0.0.1")
    first = await pack(cache, archive(), "one")
    assert await pack(cache, archive(), "two") == first
    assert web.requests == ["/archive"] * 2
    with pytest.raises(SourceFailed, match="404"):
        await pack(cache, archive("nothing"), "one")


async def test_hosts_are_checked_before_the_cache(new_cache, archive, web):
    await pack(new_cache("127.0.0.1"), archive())
    with pytest.raises(SourceFailed, match=r"may not come from 127\.0\.0\.1"):
        await pack(new_cache(""), archive())


@pytest.mark.attack("internal-sources")
@pytest.mark.parametrize(
    ("hosts", "path", "message"),
    [
        ("", "archive", "may not come from 127.0.0.1"),
        ("*", "archive", "private address"),
        ("127.0.0.1", "elsewhere", "may not come from localhost"),
    ],
)
async def test_other_hosts_are_not_reached(new_cache, archive, web, hosts, path, message):
    (web.root / "location").write_text(f"http://localhost:{web.server_address[1]}/archive")
    with pytest.raises(SourceFailed, match=message):
        await pack(new_cache(hosts), archive(path))
    assert "/archive" not in web.requests


@pytest.mark.parametrize(("hosts", "message"), [("", "may not come from"), ("*", "private address")])
async def test_git_does_not_reach_other_hosts(new_cache, web, hosts, message):
    source = SourceSpec(git=GitSource(url=f"{web.url}/repo", revision="main"))
    with pytest.raises(SourceFailed, match=message):
        await pack(new_cache(hosts), source)
    assert web.requests == []


@pytest.mark.attack("internal-sources")
async def test_git_follows_no_redirection(new_cache, web):
    (web.root / "location").write_text(f"http://127.0.0.1:{web.server_address[1]}/repo")
    source = SourceSpec(git=GitSource(url=f"{web.url}/elsewhere", revision="main"))
    with pytest.raises(SourceFailed):
        await pack(new_cache("127.0.0.1"), source)
    assert not any(path.startswith("/repo") for path in web.requests)


async def test_the_least_recently_used_tar_is_removed_unless_it_is_in_use(new_cache):
    cache = new_cache("", limit_bytes=25_000)
    sources = [SourceSpec(files=(InlineFile(path=f"{name}.py", content=""),)) for name in "abc"]
    async with cache.packed(sources[0], "default") as first:
        for source in sources[1:]:
            await pack(cache, source)
        assert first.exists()
    await pack(cache, SourceSpec(files=(InlineFile(path="d.py", content=""),)))
    assert not first.exists()


async def test_space_is_freed_before_packing(new_cache, archive, tmp_path):
    """Space is freed even if the packing fails. A source that was requested again recently is kept."""
    cache = new_cache("", limit_bytes=45_000)
    sources = [SourceSpec(files=(InlineFile(path=f"{name}.py", content=""),)) for name in "abcd"]
    for source in sources:
        await pack(cache, source)
    kept = set((tmp_path / "cache").glob("*/*.tar"))
    await pack(cache, sources[-1])
    assert set((tmp_path / "cache").glob("*/*.tar")) == kept
    with pytest.raises(SourceFailed):
        await pack(cache, archive())
    assert sum(path.stat().st_size for path in (tmp_path / "cache").glob("*/*.tar")) <= 22_500


async def test_no_more_than_two_are_packed_at_once(new_cache, tmp_path):
    with contextlib.ExitStack() as servers:
        silent = [servers.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        loop = asyncio.get_running_loop()
        reached = []
        for server in silent:
            server.setblocking(False)
            loop.add_reader(server, reached_by, server, reached, loop)
        cache = new_cache("127.0.0.1")
        sources = [
            ArchiveSource(url=f"http://127.0.0.1:{server.getsockname()[1]}/x", sha256=str(number) * 64)
            for number, server in enumerate(silent)
        ]
        tasks = [asyncio.create_task(pack(cache, SourceSpec(archive=source))) for source in sources]
        async with asyncio.timeout(90):
            while len(reached) < 2:
                await asyncio.sleep(0.01)
        assert len(list((tmp_path / "cache").glob("*/.packing-*"))) == 2
        # A cancelled fetch allows the third fetch to start.
        tasks[0].cancel()
        async with asyncio.timeout(90):
            while len(reached) < 3:
                await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
        for connection in reached:
            connection.close()
        await asyncio.gather(*tasks, return_exceptions=True)


def reached_by(server, reached, loop):
    loop.remove_reader(server)
    reached.append(server.accept()[0])


async def test_unfinished_files_of_a_killed_process_are_removed(new_cache, tmp_path):
    for left in ("cache/.packing-x", "cache/remote/.packing-y", "cache/local/.packing-z"):
        (tmp_path / left).mkdir(parents=True)
        (tmp_path / left / "packed.tar").write_bytes(b"x")
    await pack(new_cache(""), SourceSpec(files=(InlineFile(path="a.py", content=""),)))
    assert not list((tmp_path / "cache").rglob(".packing-*"))


@pytest.mark.attack("local-path")
async def test_a_local_path_is_refused_in_a_cluster(new_cache):
    with pytest.raises(SourceFailed, match="local runs"):
        await pack(new_cache("*"), SourceSpec(local_path="/etc"))
