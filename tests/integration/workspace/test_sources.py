"""Tests of sources that are packed into tars: contents, refused sources, and one fetch for each remote source."""

import asyncio
import base64
import hashlib
import io
import os
import socket
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from dgym.api import ArchiveSource, ConfigMapSource, GitSource, InlineFile, SourceSpec
from dgym.errors import SourceFailed
from dgym.workspace.sources import _archive as source_archive
from dgym.workspace.sources import _fetch as source_fetch
from dgym.workspace.sources import _git as source_git
from dgym.workspace.sources import _tree as source_tree
from dgym.workspace.sources import last_tag, pack_source


def listing(packed: Path) -> dict[str, object]:
    """Members of a tar by name: files as (content, executable bit), links as ``"-> target"``, directories as None."""
    found: dict[str, object] = {}
    with tarfile.open(packed, "r:", errors="surrogateescape") as tar:
        for member in tar:
            if member.isfile():
                found[member.name] = (tar.extractfile(member).read(), bool(member.mode & 0o100))
            else:
                found[member.name] = f"-> {member.linkname}" if member.issym() else None
    return found


@pytest.fixture
def pack(tmp_path):
    async def run(**source: object) -> dict[str, object]:
        return listing(await pack_source(SourceSpec(**source), base=tmp_path, cache=tmp_path / "cache"))

    return run


@pytest.fixture
def archive(web):
    """A function that publishes bytes and returns a source with their URL and digest."""

    def publish(data: bytes, name: str = "archive") -> ArchiveSource:
        (web.root / name).write_bytes(data)
        return ArchiveSource(url=f"{web.url}/{name}", sha256=hashlib.sha256(data).hexdigest())

    return publish


def tar_of(*members: tuple[str, bytes, str, str], mode: str = "w:gz") -> bytes:
    """A tar with members (name, type, target, content)."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode) as tar:
        for name, kind, target, content in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.size, member.mode = kind, target, len(content), 0o755
            tar.addfile(member, io.BytesIO(content.encode()))
    return stream.getvalue()


FILE, DIRECTORY, SYMLINK, HARDLINK = tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE


async def test_files_of_a_manifest(pack):
    files = (
        InlineFile(path="src/main.py", content="print('é')\n"),
        InlineFile(path="./data.bin", content_base64=base64.b64encode(b"\0\xff").decode(), mode=0o755),
        InlineFile(path="empty", content=""),
    )
    assert await pack(files=files) == {
        "src/main.py": ("print('é')\n".encode(), False),
        "data.bin": (b"\0\xff", True),
        "empty": (b"", False),
    }


async def test_no_source_is_an_empty_tar(tmp_path):
    assert listing(await pack_source(None, base=tmp_path, cache=tmp_path / "cache")) == {}


@pytest.mark.parametrize("path", ["../up", "a/../../up", "/etc/passwd"])
async def test_files_stay_inside(pack, path):
    with pytest.raises(SourceFailed, match="outside the repository"):
        await pack(files=(InlineFile(path=path, content=""),))


@pytest.mark.parametrize("paths", [("a", "a"), ("a", "./a"), ("a", "a/b"), ("a/b", "a")])
async def test_files_do_not_clash(pack, paths):
    with pytest.raises(SourceFailed, match=r"twice|not a directory"):
        await pack(files=tuple(InlineFile(path=path, content="") for path in paths))


async def test_bad_base64_names_the_file(pack):
    with pytest.raises(SourceFailed, match=r"logo\.png"):
        await pack(files=(InlineFile(path="logo.png", content_base64="A"),))


async def test_a_config_map_is_refused_in_a_local_run(pack):
    with pytest.raises(SourceFailed, match="'code' exists in a cluster only"):
        await pack(config_map_ref=ConfigMapSource(name="code"))


async def test_local_directory(pack, tmp_path):
    root = tmp_path / "repo"
    (root / "pkg/__pycache__").mkdir(parents=True)
    (root / "pkg/__pycache__/x.cpython-311.pyc").write_bytes(b"stale")
    (root / "pkg/old.pyc").write_bytes(b"stale")
    (root / "pkg/x.py").write_text("x = 1\n")
    (root / "pkg/link.py").symlink_to("x.py")
    (root / "run.sh").write_text("true\n")
    (root / "run.sh").chmod(0o700)
    (root / ".git").mkdir()
    (root / ".git/config").write_text("[core]\n")
    (root / "empty").mkdir()
    os.mkfifo(root / "fifo")
    (root / ".venv/bin").mkdir(parents=True)
    (root / ".venv/pyvenv.cfg").write_text("home = /usr/bin\n")
    (root / ".venv/bin/python").symlink_to("/usr/bin/python3")
    (root / "results/local").mkdir(parents=True)
    (root / "results/.dgym-results").touch()
    (root / os.fsdecode(b"\xff\xfe")).write_text("")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(root / "socket"))
        found = await pack(local_path="repo")
    assert found == {
        "pkg": None,
        "pkg/x.py": (b"x = 1\n", False),
        "pkg/link.py": "-> x.py",
        "run.sh": (b"true\n", True),
        "empty": None,
        os.fsdecode(b"\xff\xfe"): (b"", False),
    }


async def test_packing_is_reproducible(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.py").write_text("a\n")
    os.utime(tmp_path / "one/a.py", (1, 1))
    packed = [
        await pack_source(SourceSpec(local_path=name), base=tmp_path, cache=tmp_path / "cache")
        for name in ("one", "two")
    ]
    assert packed[0] == packed[1]
    assert [entry.name for entry in (tmp_path / "cache/local").iterdir()] == [packed[0].name]


async def test_unused_local_tars_are_forgotten(tmp_path):
    async def packed(content: str) -> Path:
        files = (InlineFile(path="a", content=content),)
        return await pack_source(SourceSpec(files=files), base=tmp_path, cache=tmp_path / "cache")

    old, recent = await packed("old"), await packed("recent")
    os.utime(old, (1, 1))
    await packed("new")
    assert not old.exists()
    assert recent.exists()


@pytest.mark.parametrize("target", ["../outside", "/etc/passwd", "sub/../../outside", "hop/../../.."])
async def test_links_stay_inside(pack, tmp_path, target):
    root = tmp_path / "repo"
    (root / "sub/deep").mkdir(parents=True)
    (root / "hop").symlink_to("sub/deep")
    (root / "link").symlink_to(target)
    with pytest.raises(SourceFailed, match="link link leads outside the repository"):
        await pack(local_path="repo")


async def test_a_missing_directory_and_a_file_are_named(pack, tmp_path):
    with pytest.raises(SourceFailed, match="nowhere does not exist"):
        await pack(local_path="nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(SourceFailed, match="file is a file"):
        await pack(local_path="file")


@pytest.mark.attack("bombs")
async def test_size_and_number_of_files_are_limited(pack, monkeypatch):
    files = (InlineFile(path="a", content="12345"), InlineFile(path="b", content="67890"))
    monkeypatch.setattr(source_tree, "SIZE_LIMIT", 9)
    with pytest.raises(SourceFailed, match="more than 9 bytes"):
        await pack(files=files)
    monkeypatch.setattr(source_tree, "SIZE_LIMIT", 10)
    monkeypatch.setattr(source_tree, "ENTRY_LIMIT", 1)
    with pytest.raises(SourceFailed, match="more than 1 entries"):
        await pack(files=files)


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
async def test_tar_archives(pack, archive, mode):
    data = tar_of(
        ("repo-1.0", DIRECTORY, "", ""),
        ("repo-1.0/a.py", FILE, "", "first\n"),
        ("repo-1.0/hard.py", HARDLINK, "repo-1.0/a.py", ""),
        ("repo-1.0/soft.py", SYMLINK, "a.py", ""),
        ("repo-1.0/hard-soft.py", HARDLINK, "repo-1.0/soft.py", ""),
        ("repo-1.0/twice.py", HARDLINK, "./repo-1.0/hard.py", ""),
        ("repo-1.0/fifo", tarfile.FIFOTYPE, "", ""),
        ("repo-1.0/device", tarfile.CHRTYPE, "", ""),
        ("repo-1.0/.git/config", FILE, "", "x"),
        ("repo-1.0/b.py", FILE, "", "earlier\n"),
        ("repo-1.0/b.py", FILE, "", "later\n"),
        mode=mode,
    )
    assert await pack(archive=archive(data)) == {
        "a.py": (b"first\n", True),
        "hard.py": (b"first\n", True),
        "soft.py": "-> a.py",
        "hard-soft.py": "-> a.py",
        "twice.py": (b"first\n", True),
        "b.py": (b"later\n", True),
    }


async def test_the_top_directory_stays_where_the_archive_names_its_root(pack, archive):
    data = tar_of((".", DIRECTORY, "", ""), ("./calc", DIRECTORY, "", ""), ("./calc/a.py", FILE, "", "a"))
    assert list(await pack(archive=archive(data))) == ["calc", "calc/a.py"]
    data = tar_of(("a.py", FILE, "", "a"))
    assert list(await pack(archive=archive(data))) == ["a.py"]


async def test_zip_archives(pack, archive):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("repo/plain.txt", "plain\n")
        for name, mode, content in (("repo/run.sh", 0o100755, "true\n"), ("repo/link", 0o120777, "plain.txt")):
            member = zipfile.ZipInfo(name)
            member.external_attr, member.create_system = mode << 16, 3
            packed.writestr(member, content)
        packed.mkdir("repo/empty")
    assert await pack(archive=archive(stream.getvalue())) == {
        "plain.txt": (b"plain\n", False),
        "run.sh": (b"true\n", True),
        "link": "-> plain.txt",
        "empty": None,
    }


@pytest.mark.attack("bombs")
@pytest.mark.parametrize(
    "members",
    [
        [("../up", FILE, "", "x")],
        [("/etc/passwd", FILE, "", "x")],
        [("a", FILE, "", ""), ("link", SYMLINK, "/etc", "")],
        [("a", FILE, "", ""), ("link", SYMLINK, "..", "")],
        [("d", DIRECTORY, "", ""), ("link", SYMLINK, "d", ""), ("link/x", FILE, "", "x")],
        [("a", FILE, "", ""), ("hard", HARDLINK, "/etc/passwd", "")],
    ],
)
async def test_unsafe_archives_are_refused(pack, archive, members):
    with pytest.raises(SourceFailed, match=r"source\.archive"):
        await pack(archive=archive(tar_of(*members)))


@pytest.mark.parametrize(
    "data",
    [b"", b"no archive", b"PK\x03\x04 cut off", tar_of(("a", FILE, "", "x" * 9999))[:60]],
    ids=["empty", "text", "zip cut off", "tar cut off"],
)
async def test_damaged_archives_are_refused(pack, archive, data):
    with pytest.raises(SourceFailed, match="cannot be read"):
        await pack(archive=archive(data))


async def test_another_digest_is_refused(pack, archive):
    with pytest.raises(SourceFailed, match=f"SHA-256 is .*, not {'0' * 64}"):
        await pack(archive=ArchiveSource(url=archive(b"x").url, sha256="0" * 64))


async def test_an_archive_is_fetched_once(archive, web, tmp_path):
    source = SourceSpec(archive=archive(tar_of(("a.py", FILE, "", "a"))))
    cache = tmp_path / "cache"
    packed = await asyncio.gather(*(pack_source(source, base=tmp_path, cache=cache) for _ in range(5)))
    assert len({str(path) for path in packed}) == 1
    assert web.requests == ["/archive"]
    assert not [entry for entry in (cache / "remote").iterdir() if entry.suffix not in (".tar", ".lock")]


async def test_only_http_is_fetched(pack, web, tmp_path):
    (tmp_path / "secret").write_text("x")
    for url in (f"file://{tmp_path}/secret", "ftp://127.0.0.1/x", "data:,x"):
        with pytest.raises(SourceFailed, match="only http and https"):
            await pack(archive=ArchiveSource(url=url, sha256="0" * 64))
    (web.root / "location").write_text(f"file://{tmp_path}/secret")
    with pytest.raises(SourceFailed, match="is not allowed"):
        await pack(archive=ArchiveSource(url=f"{web.url}/elsewhere", sha256="0" * 64))


@pytest.mark.parametrize(
    "address", ["http://a..b/x", f"http://{'a' * 64}/x", "http://127.0.0.1:99999/x", "http://[::1/x"]
)
@pytest.mark.parametrize("hosts", ["", "*, 127.0.0.1"], ids=["laptop", "cluster"])
def test_an_invalid_address_is_a_failure_of_the_source(web, monkeypatch, tmp_path, hosts, address):
    monkeypatch.setattr(source_archive, "_PAUSE_SECONDS", 0.0)
    (web.root / "location").write_text(address)
    allowed = source_fetch.SourceHosts.parse(hosts) if hosts else source_fetch.ANY_HOST
    for url in (address, f"{web.url}/elsewhere"):
        source = ArchiveSource(url=url, sha256="0" * 64)
        with pytest.raises(SourceFailed, match=r"^source(\.archive: http://|: its URL is not valid)"):
            source_archive.download(source, tmp_path / "x", source_fetch.Cancellation(), allowed)


async def test_an_invalid_git_url_raises_source_failed(pack):
    with pytest.raises(SourceFailed, match="its URL is not valid"):
        await pack(git=GitSource(url="https://[::1/x.git", revision="main"))


async def test_redirects_are_followed(pack, archive, web):
    source = archive(tar_of(("a.py", FILE, "", "a")))
    (web.root / "location").write_text("/archive")
    assert list(await pack(archive=ArchiveSource(url=f"{web.url}/elsewhere", sha256=source.sha256))) == ["a.py"]


async def test_a_missing_archive_is_asked_for_once_and_credentials_are_not_shown(pack, web):
    url = web.url.replace("http://", "http://user:secret@") + "/nothing"
    with pytest.raises(SourceFailed, match="404") as failure:
        await pack(archive=ArchiveSource(url=url, sha256="0" * 64))
    assert "secret" not in str(failure.value)
    assert web.requests == ["/nothing"]
    assert web.credentials == ["Basic " + base64.b64encode(b"user:secret").decode()]


async def test_a_failing_server_is_asked_again(pack, web, monkeypatch):
    monkeypatch.setattr(source_archive, "_PAUSE_SECONDS", 0.0)
    with pytest.raises(SourceFailed, match="503"):
        await pack(archive=ArchiveSource(url=f"{web.url}/broken", sha256="0" * 64))
    assert web.requests == ["/broken"] * 3


@pytest.fixture
def repository(git, web):
    """A git repository that is served as plain files, with contents from an attacker or a careless author."""
    root = web.root / "repo"
    root.mkdir()
    git(root, "init", "-q", "-b", "main")
    (root / "a.py").write_bytes(b"old\r\n")
    (root / ".gitattributes").write_text("hidden.py export-ignore\n*.py filter=evil\n")
    (root / "hidden.py").write_text("needed\n")
    (root / "link").symlink_to("a.py")
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "one")
    git(root, "tag", "-a", "v1", "-m", "v1")
    (root / "a.py").write_bytes(b"new\r\n")
    git(root, "commit", "-q", "-a", "-m", "two")
    git(root, "update-server-info")
    return f"{web.url}/repo/.git"


async def test_git_revisions(pack, repository, git, web):
    commits = git(web.root / "repo", "rev-list", "main").stdout.decode().split()
    for revision, content in (
        ("main", b"new\r\n"),
        ("HEAD", b"new\r\n"),
        ("v1", b"old\r\n"),
        (commits[1], b"old\r\n"),
        (commits[1][:10], b"old\r\n"),
    ):
        found = await pack(git=GitSource(url=repository, revision=revision))
        assert found["a.py"] == (content, False)
        assert set(found) == {"a.py", "hidden.py", "link", ".gitattributes"}


async def test_a_commit_is_fetched_once(pack, repository, git, web):
    commit = git(web.root / "repo", "rev-parse", "main").stdout.decode().strip()
    await pack(git=GitSource(url=repository, revision=commit))
    web.requests.clear()
    await pack(git=GitSource(url=repository, revision=commit))
    assert web.requests == []
    await pack(git=GitSource(url=repository, revision="main"))
    assert not [path for path in web.requests if "/objects/" in path]


@pytest.fixture
def daemon(repository, git, web):
    """The address of a server with git's own protocol."""
    git(web.root / "repo", "config", "uploadpack.allowFilter", "true")
    git(web.root / "repo", "config", "uploadpack.allowAnySHA1InWant", "true")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    serve = [
        "git",
        "daemon",
        "--verbose",
        "--export-all",
        "--listen=127.0.0.1",
        f"--port={port}",
        f"--base-path={web.root}",
    ]
    with subprocess.Popen(serve, stderr=subprocess.PIPE) as process:
        process.stderr.readline()  # It writes a line when it listens.
        yield f"git://127.0.0.1:{port}/repo"
        process.terminate()


async def test_the_last_tag_of_a_revision_is_asked_for_once(daemon, git, web, tmp_path):
    (old, new) = reversed(git(web.root / "repo", "rev-list", "main").stdout.decode().split())
    for revision in (old, "main", new):
        source = GitSource(url=daemon, revision=revision)
        packed = await pack_source(SourceSpec(git=source), base=tmp_path, cache=tmp_path / "cache")
        assert await last_tag(source, packed, is_needed=lambda: True) == "v1"
    git(web.root / "repo", "tag", "v2", new)
    assert await last_tag(source, packed, is_needed=lambda: True) == "v1"


async def test_git_refuses(pack, repository, web, tmp_path):
    for url, revision, message in (
        (repository, "nowhere", "branch, tag or commit 'nowhere' does not exist"),
        (repository, "0" * 40, "does not exist|not our ref|failed"),
        (repository, "0" * 10, "does not exist"),
        (repository, "--upload-pack=touch", "is not a revision"),
        (f"{web.url}/none", "main", "does not answer"),
        (f"file://{web.root}/repo", "main", "only http"),
        ("ext::sh", "main", "only http"),
    ):
        with pytest.raises(SourceFailed, match=message):
            await pack(git=GitSource(url=url, revision=revision))


@pytest.mark.attack("bombs")
async def test_git_is_stopped_when_it_fills_the_disk(pack, tmp_path, monkeypatch):
    """Each file is below the limit, but the sum of all files is not."""
    program = tmp_path / "bin/git"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\ni=0\nwhile :; do i=$((i+1)); head -c 100000 /dev/zero >"$i"; sleep 0.01; done\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(source_git, "SCRATCH_LIMIT", 300_000)
    with pytest.raises(SourceFailed, match=r"takes \d{6,} bytes.*more than 300000"):
        await pack(git=GitSource(url="https://example.org/x", revision="main"))


async def test_giving_up_ends_the_fetch(tmp_path):
    """The server accepts and never answers. The cancellation returns immediately and git has ended."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        source = SourceSpec(git=GitSource(url=f"http://127.0.0.1:{server.getsockname()[1]}/x", revision="main"))
        task = asyncio.create_task(pack_source(source, base=tmp_path, cache=tmp_path / "cache"))
        connection, _ = await asyncio.to_thread(server.accept)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with connection:
            connection.settimeout(30)
            while await asyncio.to_thread(connection.recv, 4096):
                pass
