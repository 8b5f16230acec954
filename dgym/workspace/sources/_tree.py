"""Write a repository as an uncompressed tar. The same files give the same bytes, and no entry leads outside.

The tar keeps the metadata that git keeps: names, contents, the executable bit and links. For every kind of source,
``.git`` and bytecode are left out: they are not source, and could falsify a run.
"""

import hashlib
import io
import os
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Literal, Self

from dgym.api import InlineFile
from dgym.errors import SourceFailed
from dgym.workspace._paths import PATH_LIMIT, ancestors, resolve_link

SIZE_LIMIT: Final = 2 * 1024**3
"""Maximum number of bytes of one workspace."""

ENTRY_LIMIT: Final = 500_000
"""Maximum number of files and directories of one workspace."""

HEADERS_LIMIT: Final = 1024**3
"""Maximum number of bytes of a tar in addition to the file contents.

Headers and padding of ``ENTRY_LIMIT`` entries take half of it. The rest is for long names.
"""

NAME_LIMIT: Final = 255
"""Maximum number of bytes of one part of a path (``NAME_MAX`` of Linux)."""

_MTIME: Final = 1_000_000_000
"""The modification time of all entries, so that packing is reproducible. Zip archives require a year after 1980."""

_LEFT_OUT: Final = frozenset({".git", "__pycache__"})
_BYTECODE: Final = (".pyc", ".pyo")


def left_out(path: str) -> bool:
    """Whether a path is left out of every repository: version control and bytecode."""
    return any(part in _LEFT_OUT or part.endswith(_BYTECODE) for part in path.split("/"))


def entry_path(name: str, source: str) -> str:
    """Normalise ``name`` of an archive or manifest. Returns "." for the root.

    Raises:
        SourceFailed: The path leads outside the repository, or is too long.
    """
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise SourceFailed(f"{source}: {name!r} leads outside the repository")
    if len(os.fsencode(name)) > PATH_LIMIT or any(len(os.fsencode(part)) > NAME_LIMIT for part in parts):
        raise SourceFailed(f"{source}: {name[:80]!r}… is longer than the name of a file can be")
    return "/".join(parts) or "."


class TreeWriter:
    """Writes entries to a tar at ``path``. Links and conflicting paths are checked at the end of the context.

    Every method raises ``SourceFailed`` if a path occurs twice or a limit is exceeded.
    """

    def __init__(self, path: Path, source: str) -> None:
        self._path = path
        self.source = source
        self._kinds: dict[str, Literal["file", "directory", "link"]] = {}
        self._links: dict[str, str] = {}
        self._size = 0

    def __enter__(self) -> Self:
        # The GNU format stores names as raw bytes, which Python can read with every locale.
        self._tar = tarfile.open(self._path, "w", format=tarfile.GNU_FORMAT, encoding="utf-8", errors="surrogateescape")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tar.close()
        if kind is None:
            self._check()

    def directory(self, path: str) -> None:
        """Add a directory. Parent directories of entries need not be added."""
        if path == "." or left_out(path) or self._kinds.get(path) == "directory":
            return
        entry = self._entry(path, "directory", 0)
        entry.type, entry.mode = tarfile.DIRTYPE, 0o755
        self._add(entry)

    def file(self, path: str, stream: IO[bytes], size: int, *, executable: bool = False) -> None:
        """Add a file of exactly ``size`` bytes."""
        if left_out(path):
            return
        entry = self._entry(path, "file", size)
        entry.mode = 0o755 if executable else 0o644
        self._add(entry, stream)

    def data(self, path: str, data: bytes, *, executable: bool = False) -> None:
        """Add a file from memory."""
        self.file(path, io.BytesIO(data), len(data), executable=executable)

    def link(self, path: str, target: str) -> None:
        """Add a symbolic link."""
        if left_out(path):
            return
        entry = self._entry(path, "link", 0)
        entry.type, entry.mode, entry.linkname = tarfile.SYMTYPE, 0o777, target
        self._links[path] = target
        self._add(entry)

    def _add(self, entry: tarfile.TarInfo, stream: IO[bytes] | None = None) -> None:
        self._tar.addfile(entry, stream)
        forget_members(self._tar)

    def _entry(self, path: str, kind: Literal["file", "directory", "link"], size: int) -> tarfile.TarInfo:
        if path == "." or path in self._kinds:
            raise SourceFailed(f"{self.source}: {path!r} occurs twice")
        self._kinds[path] = kind
        self._size += size
        if self._size > SIZE_LIMIT:
            raise SourceFailed(f"{self.source}: the repository contains more than {SIZE_LIMIT} bytes")
        if self._tar.offset > SIZE_LIMIT + HEADERS_LIMIT:
            raise SourceFailed(
                f"{self.source}: its names and contents take more than {SIZE_LIMIT + HEADERS_LIMIT} bytes"
            )
        if len(self._kinds) > ENTRY_LIMIT:
            raise SourceFailed(f"{self.source}: the repository contains more than {ENTRY_LIMIT} entries")
        entry = tarfile.TarInfo(path)
        entry.size, entry.mtime = size, _MTIME
        return entry

    def _check(self) -> None:
        for path in self._kinds:
            for above in ancestors(path):
                if self._kinds.get(above, "directory") != "directory":
                    raise SourceFailed(f"{self.source}: {path!r} lies below {above!r}, which is not a directory")
        for path, target in self._links.items():
            if resolve_link(path, target, self._links) is None:
                raise SourceFailed(f"{self.source}: the symbolic link {path} leads outside the repository ({target})")


def forget_members(tar: tarfile.TarFile) -> None:
    """Drop the members that ``tarfile`` caches, because they take most of the memory for a large archive."""
    vars(tar)["members"].clear()


def file_digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


_VIRTUAL_ENVIRONMENT = "pyvenv.cfg"
"""A directory with this file is a virtual environment. Its links lead to interpreters of this machine."""

RESULTS_MARKER = ".dgym-results"
"""A directory with this file contains results of earlier runs. It is left out of a repository."""


def write_files(files: tuple[InlineFile, ...], tree: TreeWriter) -> None:
    """Write the files of a manifest."""
    for file in files:
        path = entry_path(file.path, "source.files")
        try:
            data = file.data()
        except ValueError as error:
            raise SourceFailed(f"source.files: {file.path}: contentBase64 is not base64: {error}") from None
        tree.data(path, data, executable=bool(file.mode & stat.S_IXUSR))


def write_directory(root: Path, tree: TreeWriter) -> None:
    """Write a directory without following links.

    Raises:
        SourceFailed: The directory does not exist or cannot be read.
    """
    if not root.is_dir():
        found = "is a file" if root.exists() else "does not exist"
        raise SourceFailed(f"{tree.source} {found}; give the directory of the repository")
    try:
        for path, entry in walk_repository(root):
            _write_entry(path, entry, tree)
    except OSError as error:
        raise SourceFailed(f"{tree.source}: {error}") from error


def walk_repository(root: Path) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """All paths of a repository that are packed, in order, without following links.

    ``.git``, bytecode, virtual environments and results of earlier runs are left out.
    """
    yield from _walk(root, "")


def _walk(directory: Path, prefix: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    with os.scandir(directory) as scan:
        entries = sorted(scan, key=lambda entry: entry.name)
    for entry in entries:
        is_directory = entry.is_dir(follow_symlinks=False)
        if left_out(entry.name) or (is_directory and _is_foreign(Path(entry.path))):
            continue
        yield prefix + entry.name, entry
        if is_directory:
            yield from _walk(Path(entry.path), f"{prefix}{entry.name}/")


def _is_foreign(directory: Path) -> bool:
    return any((directory / name).exists() for name in (_VIRTUAL_ENVIRONMENT, RESULTS_MARKER))


def _write_entry(path: str, entry: os.DirEntry[str], tree: TreeWriter) -> None:
    if entry.is_symlink():
        tree.link(path, os.readlink(entry.path))  # noqa: PTH115 - the exact bytes; Path would normalise them
    elif entry.is_dir(follow_symlinks=False):
        tree.directory(path)
    elif entry.is_file(follow_symlinks=False):
        with os.fdopen(os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as stream:
            status = os.fstat(stream.fileno())
            tree.file(path, stream, status.st_size, executable=bool(status.st_mode & stat.S_IXUSR))
