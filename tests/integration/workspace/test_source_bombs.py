"""Tests of small archives and repositories that expand to gigabytes: they are refused, and memory use stays low."""

import asyncio
import gzip
import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
import zipfile

import pytest

from dgym.errors import SourceFailed
from dgym.workspace.sources import _tree as source_tree
from dgym.workspace.sources import _unpack as source_unpack
from dgym.workspace.sources import unpack_archive

pytestmark = [pytest.mark.attack("bombs"), pytest.mark.thorough]

MIB = 1024**2

PACK = """
import asyncio, pathlib, resource, sys
import msgspec
from dgym.api import SourceSpec
from dgym.errors import SourceFailed
from dgym.workspace.sources import pack_source

source = msgspec.json.decode(sys.argv[1], type=SourceSpec)
directory = pathlib.Path(sys.argv[2])
problem = ""
try:
    asyncio.run(pack_source(source, base=directory, cache=directory))
except SourceFailed as failure:
    problem = str(failure)
own = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
sys.stdout.buffer.write(msgspec.json.encode([problem, own * 1024, children * 1024]))
"""


@pytest.fixture
def pack(tmp_path):
    """Pack a source in a separate process. Return the failure, the peak memory of this process and of its largest
    child."""

    async def run(**source: object) -> tuple[str, int, int]:
        command = [sys.executable, "-c", PACK, json.dumps(source), str(tmp_path / "cache")]
        done = await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True, timeout=90)
        return tuple(json.loads(done.stdout))

    return run


def long_comment(mib: int = 100) -> bytes:
    """A tar whose first member has a pax header of 100 MiB. Its compressed size is 104 KiB."""
    rest = len(" comment=\n") + mib * MIB
    size = rest + len(str(rest + 9))
    header = tarfile.TarInfo("././@PaxHeader")
    header.type, header.size = tarfile.XHDTYPE, size
    stream = io.BytesIO()
    with gzip.GzipFile(fileobj=stream, mode="wb") as packed:
        packed.write(header.tobuf(tarfile.USTAR_FORMAT) + f"{size} comment=".encode())
        for _ in range(mib):
            packed.write(b"a" * MIB)
        packed.write(b"\n" + bytes(-size % 512) + tarfile.TarInfo("a.py").tobuf() + bytes(1024))
    return stream.getvalue()


def large_member() -> bytes:
    """A tar with the beginning of a file of one terabyte."""
    member = tarfile.TarInfo("a.py")
    member.size = 1024**4
    return gzip.compress(member.tobuf(tarfile.GNU_FORMAT) + bytes(MIB))


def many_names(count: int = 600_000) -> bytes:
    """A zip whose directory lists the same empty file ``count`` times."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as packed:
        packed.writestr("a.py", "")
    member, entry, end = re.split(b"(?=PK\x01\x02|PK\x05\x06)", stream.getvalue())
    directory = entry * count
    return member + directory + end[:12] + len(directory).to_bytes(4, "little") + end[16:]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (long_comment, "more than 384 MiB of memory"),
        (large_member, "or 2147483648 bytes"),
        (many_names, "more than 500000 members"),
    ],
)
async def test_archives_that_take_much_memory_are_refused(pack, web, make, message):
    data = make()
    (web.root / "archive").write_bytes(data)
    source = {"url": f"{web.url}/archive", "sha256": hashlib.sha256(data).hexdigest()}
    problem, own, children = await pack(archive=source)
    assert re.search(rf"source\.archive.*{message}", problem)
    assert own < 64 * MIB
    assert children < source_unpack.MEMORY_BYTES


async def test_a_repository_of_ten_billion_files_is_refused(pack, web, git):
    """A tree with ten directories at each of ten levels needs only a few git objects."""
    root = web.root / "repo"
    root.mkdir()
    git(root, "init", "-q", "-b", "main")
    (root / "a.py").write_text("x\n")
    git(root, "add", "-A")
    tree = git(root, "write-tree").stdout.decode().strip()
    for _ in range(10):
        listing = "".join(f"040000 tree {tree}\t{number}\n" for number in range(10))
        tree = subprocess.run(
            ["git", "mktree"], cwd=root, input=listing, text=True, capture_output=True, check=True
        ).stdout.strip()
    commit = git(root, "commit-tree", "-m", "bomb", tree).stdout.decode().strip()
    git(root, "update-ref", "refs/heads/main", commit)
    git(root, "update-server-info")
    problem, own, children = await pack(git={"url": f"{web.url}/repo/.git", "revision": "main"})
    assert re.search(r"source\.git.*ls-tree: git printed more than 33554432 bytes", problem)
    assert own < 64 * MIB
    assert children < 512 * MIB


def tar_of(*names: str) -> bytes:
    """A tar of empty files."""
    return b"".join(tarfile.TarInfo(name).tobuf(tarfile.GNU_FORMAT) for name in names) + bytes(1024)


def test_members_of_one_name_count_too(tmp_path, monkeypatch):
    monkeypatch.setattr(source_unpack, "ENTRY_LIMIT", 9)
    (tmp_path / "archive").write_bytes(tar_of(*["a.py"] * 10))
    with (
        pytest.raises(SourceFailed, match="more than 9 members"),
        source_tree.TreeWriter(tmp_path / "packed.tar", "source.archive") as tree,
    ):
        source_unpack.repack(tmp_path / "archive", tree, "source.archive")


def test_names_count_towards_the_size_of_a_tar(tmp_path, monkeypatch):
    monkeypatch.setattr(source_tree, "SIZE_LIMIT", 1000)
    monkeypatch.setattr(source_tree, "HEADERS_LIMIT", 20_000)
    names = [f"{'d/' * 2000}{number}" for number in range(10)]
    (tmp_path / "archive").write_bytes(tar_of(*names))
    with (
        pytest.raises(SourceFailed, match="names"),
        source_tree.TreeWriter(tmp_path / "packed.tar", "source.archive") as tree,
    ):
        source_unpack.repack(tmp_path / "archive", tree, "source.archive")


@pytest.mark.parametrize("name", ["x" * 256, "ä" * 128, "/".join(["d"] * 2049)])
def test_names_that_no_file_can_have_are_refused(name, tmp_path):
    archive = tmp_path / "names.zip"
    with zipfile.ZipFile(archive, "w") as out:
        out.writestr("a", "")
        out.writestr(name, "")
    with pytest.raises(SourceFailed, match="longer than the name of a file can be"):
        unpack_archive(archive, tmp_path / "directory")


def test_a_link_that_leads_through_itself_is_refused(tmp_path):
    archive = tmp_path / "links.tar"
    with tarfile.open(archive, "w") as out:
        link = tarfile.TarInfo("a")
        link.type, link.linkname = tarfile.SYMTYPE, "a/../.."
        out.addfile(link)
    with pytest.raises(SourceFailed, match="leads outside the repository"):
        unpack_archive(archive, tmp_path / "directory")
