"""Convert a tar or zip archive to the tar of a repository.

An archive of some kilobytes can need gigabytes of memory, so a process with limits reads it
(``python -m dgym.workspace.sources._unpack``). It reads the archive twice, member by member: first the names and then
the contents.
"""

import contextlib
import lzma
import posixpath
import stat
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import IO, Final, Literal, NamedTuple

from dgym.errors import SourceFailed
from dgym.workspace.sources._bounded_program import run_bounded
from dgym.workspace.sources._fetch import Cancellation
from dgym.workspace.sources._tree import ENTRY_LIMIT, SIZE_LIMIT, TreeWriter, entry_path, forget_members

MEMORY_BYTES: Final = 384 * 1024**2
"""Maximum address space of the process that unpacks an archive."""

_MESSAGE_CHARACTERS = 2000
_LINK_BYTES = 4096
_DAMAGED = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError),
    *(EOFError, OSError, ValueError, KeyError, RuntimeError),
)

Kind = Literal["file", "directory", "link", "other"]


class ArchiveMember(NamedTuple):
    """One member of an archive.

    ``target`` is the target of a symbolic link, or of a hard link. The kind of a hard link is "file". ``open`` returns
    the content of a file, and must be called before the next member is read.
    """

    name: str
    kind: Kind
    size: int
    executable: bool
    target: str
    open: Callable[[], IO[bytes]]


def unpack(archive: Path, packed: Path, source: str, cancellation: Cancellation) -> None:
    """Write the members of ``archive`` to the tar ``packed``, in a process with limits.

    Raises:
        SourceFailed: The archive is damaged or too large, or a path in it leads outside. The message begins with
            ``source``.
    """
    answer = run_bounded(
        [sys.executable, "-I", "-m", __name__, str(archive), str(packed), source],
        directory=packed.parent,
        environment={"LC_ALL": "C.UTF-8"},
        memory_bytes=MEMORY_BYTES,
        cancellation=cancellation,
        where=source,
    )
    if answer.status:
        raise SourceFailed(
            answer.output or f"{source}: unpacking it failed: {answer.error_output[-_MESSAGE_CHARACTERS:]}"
        )


def repack(archive: Path, tree: TreeWriter, source: str) -> None:
    """Write the members of a tar or zip archive to ``tree``.

    If the archive contains only one directory, like archives of code hosts, this directory becomes the root of the
    repository. Exception: an archive with a member for its own root ("./") is unpacked unchanged.

    Raises:
        SourceFailed: The archive is damaged or too large, or a path in it leads outside.
    """
    try:
        names = _Names(source)
        with _entries(archive, frozenset()) as entries:
            for entry in entries:
                names.add(entry)
        with _entries(archive, names.linked) as entries:
            _write(entries, names, tree)
    except MemoryError:
        limit = MEMORY_BYTES // 1024**2
        raise SourceFailed(f"{source}: unpacking the archive takes more than {limit} MiB of memory") from None
    except _DAMAGED as error:
        raise SourceFailed(f"{source}: the archive cannot be read: {error}") from error


class _Names:
    """The paths of an archive: the last member for each path, the common directory, and the targets of hard links."""

    def __init__(self, source: str) -> None:
        self.linked: set[str] = set()
        self._source = source
        self._last: dict[str, int] = {}
        self._count = 0
        self._size = 0
        self._tops: set[str] = set()
        self._top_is_directory = True

    def add(self, entry: ArchiveMember) -> None:
        """Add the next member."""
        path = self.path(entry)
        self._last[path] = self._count
        self._count += 1
        self._size += entry.size
        if self._count > ENTRY_LIMIT or self._size > SIZE_LIMIT:
            raise SourceFailed(
                f"{self._source}: the archive contains more than {ENTRY_LIMIT} members or {SIZE_LIMIT} bytes"
            )
        top, _, below = path.partition("/")
        if len(self._tops) < 2:
            self._tops.add(top)
        self._top_is_directory &= bool(below) or entry.kind == "directory"
        if entry.kind == "file" and entry.target:
            self.linked.add(posixpath.normpath(entry.target))

    def path(self, entry: ArchiveMember) -> str:
        """The normalised path of a member."""
        return entry_path(entry.name, self._source)

    def is_last(self, path: str, index: int) -> bool:
        """Whether the member at ``index`` is the last member with this path. A later member would replace it."""
        return self._last[path] == index

    def single_directory(self) -> str:
        """The only top-level directory, or "" if the archive has other top-level members."""
        (top, *others) = self._tops or {""}
        return top if not others and top != "." and self._top_is_directory else ""


def _write(entries: Iterator[ArchiveMember], names: _Names, tree: TreeWriter) -> None:
    top = names.single_directory()
    for index, entry in enumerate(entries):
        path = names.path(entry)
        if not names.is_last(path, index) or path in (".", top):
            continue
        inner = path.removeprefix(f"{top}/") if top else path
        if entry.kind == "directory":
            tree.directory(inner)
        elif entry.kind == "link":
            tree.link(inner, entry.target)
        elif entry.kind == "file":
            with entry.open() as stream:
                tree.file(inner, stream, entry.size, executable=entry.executable)


@contextlib.contextmanager
def _entries(archive: Path, linked: Collection[str]) -> Iterator[Iterator[ArchiveMember]]:
    """The members of the archive. Hard links have the content of their targets if the targets are in ``linked``."""
    with archive.open("rb") as stream:
        magic = stream.read(4)
    if magic.startswith(b"PK"):
        with zipfile.ZipFile(archive) as opened:
            yield (_zip_entry(opened, member) for member in opened.infolist())
    else:
        with tarfile.open(archive, "r:*", encoding="utf-8", errors="surrogateescape") as tar:
            yield _tar_entries(tar, linked)


def _tar_entries(tar: tarfile.TarFile, linked: Collection[str]) -> Iterator[ArchiveMember]:
    targets: dict[str, tarfile.TarInfo] = {}
    while (member := tar.next()) is not None:
        forget_members(tar)
        content = targets.get(posixpath.normpath(member.linkname)) if member.islnk() else member
        name = posixpath.normpath(member.name)
        if content is not None and name in linked:
            targets[name] = content
        yield _tar_entry(tar, member, content)


def _tar_entry(tar: tarfile.TarFile, member: tarfile.TarInfo, content: tarfile.TarInfo | None) -> ArchiveMember:
    def open_content() -> IO[bytes]:
        stream = tar.extractfile(content) if content is not None else None
        if stream is None:
            raise ValueError(f"the hard link {member.name} leads to {member.linkname}, which is not an earlier file")
        return stream

    found = content or member
    kind: Kind = "other"
    if found.isreg() or found.islnk():
        kind = "file"
    elif found.isdir():
        kind = "directory"
    elif found.issym():
        kind = "link"
    return ArchiveMember(member.name, kind, found.size, bool(member.mode & stat.S_IXUSR), found.linkname, open_content)


def _zip_entry(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> ArchiveMember:
    mode = member.external_attr >> 16
    kind: Kind = "file"
    target = ""
    if member.is_dir():
        kind = "directory"
    elif stat.S_ISLNK(mode):
        if member.file_size > _LINK_BYTES:
            raise ValueError(f"the target of the link {member.filename} is too long")
        kind, target = "link", archive.read(member).decode("utf-8", "surrogateescape")
    elif stat.S_IFMT(mode) not in (0, stat.S_IFREG):
        kind = "other"
    size = member.file_size if kind == "file" else 0
    return ArchiveMember(member.filename, kind, size, bool(mode & stat.S_IXUSR), target, lambda: archive.open(member))


def _main(archive: str, packed: str, source: str) -> int:
    try:
        with TreeWriter(Path(packed), source) as tree:
            repack(Path(archive), tree, source)
    except SourceFailed as failure:
        sys.stdout.buffer.write(str(failure)[:_MESSAGE_CHARACTERS].encode("utf-8", "replace"))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
