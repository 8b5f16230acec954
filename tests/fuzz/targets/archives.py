"""Target for untrusted archives, unpacked as a source and in the sandbox: no path leads outside, sizes are limited."""

import contextlib
import gzip
import io
import os
import resource
import stat
import tarfile
import tempfile
import warnings
import zipfile
from pathlib import Path
from typing import NamedTuple

from hypothesis import strategies as st

from dgym.errors import SourceFailed
from dgym.runner import tree_worker
from dgym.workspace.sources._pack import extract
from dgym.workspace.sources._tree import TreeWriter
from dgym.workspace.sources._unpack import repack
from tests.fuzz.engine import Target
from tests.fuzz.mutation import changed

_FILE_BYTES = 32 * 1024**2
"""Limit of a file's size. The runner's own limit is two gigabytes."""
_NAMES = (
    "a",
    "a/b",
    "d/",
    "../x",
    "/etc/x",
    "a/../b",
    ".git/config",
    "x" * 300,
    "ä",
    "l",
    "l/x",
    ".",
    "",
    "a\\b",
    "b:c",
)
_TARGETS = ("a", "..", "../..", "/etc/passwd", "l", "a/../..", "", ".")
_TYPES = (
    tarfile.REGTYPE,
    tarfile.DIRTYPE,
    tarfile.SYMTYPE,
    tarfile.LNKTYPE,
    tarfile.FIFOTYPE,
    tarfile.CHRTYPE,
    b"S",
    b"L",
)
_PIECES = (
    b"ustar  \x00",
    b"ustar\x0000",
    b"17 path=../../x\n",
    b"GNU.sparse.size=9999999999\n",
    b"PK\x01\x02",
    b"PK\x05\x06",
)


_HEADERS = (
    {},
    {},
    {"path": "../x"},
    {"size": "9" * 30},
    {"comment": "x"},
    {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"},
)
_FORMS = (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT)
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA)
_KINDS = (stat.S_IFREG, stat.S_IFLNK, stat.S_IFDIR, stat.S_IFIFO, 0)


class Member(NamedTuple):
    """A member of a tar or zip archive. Each format uses some of the fields."""

    name: str
    type: bytes
    kind: int
    target: str
    mode: int
    data: bytes
    headers: dict[str, str]


_MEMBERS = st.lists(
    st.builds(
        Member,
        st.sampled_from(_NAMES),
        st.sampled_from(_TYPES),
        st.sampled_from(_KINDS),
        st.sampled_from(_TARGETS),
        st.sampled_from((0, 0o644, 0o755, 0o4777)),
        st.binary(max_size=600),
        st.sampled_from(_HEADERS),
    ),
    max_size=5,
)


def _tar(members: list[Member], form: int, compressed: bool) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form, errors="surrogateescape") as tar:
        for each in members:
            member = tarfile.TarInfo(each.name)
            member.type, member.linkname, member.mode = each.type, each.target, each.mode
            member.size = len(each.data) if member.isreg() else 0
            member.pax_headers = each.headers
            with contextlib.suppress(ValueError):
                tar.addfile(member, io.BytesIO(each.data))
    return gzip.compress(out.getvalue()) if compressed else out.getvalue()


def _zip(members: list[Member], method: int) -> bytes:
    out = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(out, "w", method) as archive:
        warnings.simplefilter("ignore")  # duplicate names
        for each in members:
            member = zipfile.ZipInfo(each.name or "n")
            member.external_attr = (each.kind | each.mode) << 16
            archive.writestr(member, each.target.encode() if each.kind == stat.S_IFLNK else each.data)
    return out.getvalue()


_ARCHIVES = st.builds(_tar, _MEMBERS, st.sampled_from(_FORMS), st.booleans()) | st.builds(
    _zip, _MEMBERS, st.sampled_from(_METHODS)
)
_INPUTS = _ARCHIVES | st.builds(lambda data, seed: changed(data, seed, _PIECES), _ARCHIVES, st.integers(0, 2**64 - 1))


def check(archive: bytes) -> None:
    """Repack and extract the archive as a source, then unpack it as the sandbox's runner does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE_BYTES, hard))
    try:
        with tempfile.TemporaryDirectory(prefix="dgym-fuzz-") as name:
            _as_source(archive, Path(os.path.realpath(name)))
            _in_sandbox(archive, Path(os.path.realpath(name)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def _as_source(archive: bytes, scratch: Path) -> None:
    given, packed, target = scratch / "given", scratch / "packed.tar", scratch / "outer" / "target"
    given.write_bytes(archive)
    target.mkdir(parents=True)
    try:
        with TreeWriter(packed, "fuzz") as tree:
            repack(given, tree, "fuzz")
        extract(packed, target)
    except SourceFailed:
        pass
    _nothing_outside(target)


def _in_sandbox(archive: bytes, scratch: Path) -> None:
    target = scratch / "sandbox" / "target"
    target.mkdir(parents=True)
    with contextlib.suppress(tree_worker.Unsafe, OSError):
        tree_worker.unpack(str(target), io.BytesIO(archive))
    _nothing_outside(target)


def _nothing_outside(target: Path) -> None:
    beside = list(target.parent.iterdir())
    assert beside == [target], beside
    for directory, directories, files in os.walk(target):
        for name in (*directories, *files):
            path = Path(directory, name)
            mode = path.lstat().st_mode
            assert stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode), path
            assert not mode & (stat.S_ISUID | stat.S_ISGID) or stat.S_ISLNK(mode), path
            if stat.S_ISLNK(mode):
                assert Path(os.path.realpath(path)).is_relative_to(target), (path, path.readlink())


TARGET = Target("archives", _INPUTS, check)
