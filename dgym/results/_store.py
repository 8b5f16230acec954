"""Results stores: files by path. The interface, and the store in a directory, on a laptop or on a volume of agent pods.

Paths are ``<namespace>/<episode>/<uid or digest>/<attempt>/<file>``, relative to the root of the store.
"""

import asyncio
import contextlib
import errno
import os
import re
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import IO, Protocol, TypeVar

import msgspec

from dgym.errors import DgymError, ManifestError
from dgym.workspace.sources import RESULTS_MARKER

TRAJECTORY, PATCH, RESULT, LOG = "trajectory.jsonl", "patch.diff", "result.json", "episode.log"
FILES = (TRAJECTORY, PATCH, RESULT, LOG)
IN_FLIGHT = "step-in-flight.json"
"""The step that was sent and has no observation yet. Only an agent pod that resumes the episode reads it."""

LISTED = 10_000
"""Default maximum number of files of one listing."""

_SEGMENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,252}")


class StoreUnavailable(DgymError):
    """The results store cannot be reached or refuses the call. A retry may succeed."""


class StoredItem(msgspec.Struct, frozen=True):
    """A stored file: path relative to the root, size in bytes, and change time in seconds since the epoch."""

    path: str
    size: int
    changed: float = 0.0


class Content(msgspec.Struct, frozen=True):
    """The size of a file, and its bytes in chunks."""

    size: int
    chunks: AsyncIterator[bytes]


class ResultsStore(Protocol):
    """Files by path. Every call raises ``StoreUnavailable`` if the store fails."""

    @property
    def checkpoint_steps(self) -> int:
        """The number of new steps after which a trajectory is written."""
        ...

    def uri(self, path: str) -> str:
        """The URI of ``path`` for people and other programs."""
        ...

    async def check(self) -> None:
        """Raise ``StoreUnavailable`` unless the store can be used."""
        ...

    async def read(self, path: str) -> bytes | None:
        """The file, or None if it does not exist."""
        ...

    async def open(self, path: str) -> Content | None:
        """The file in chunks, or None if it does not exist."""
        ...

    async def write(self, path: str, data: bytes) -> None:
        """Write the file atomically."""
        ...

    async def create(self, path: str, data: bytes) -> bool:
        """Write the file atomically if it does not exist. Returns False if it exists."""
        ...

    async def replace(
        self, path: str, data: bytes, *, version: str | None, keep: Callable[[bytes], bool]
    ) -> str | None:
        """Replace the file by ``data`` and return its new version.

        Args:
            path: The path of the file.
            data: The new content.
            version: The version that this writer wrote last, None if it has not written the file.
            keep: Called with the present content if another writer has changed the file. If it returns True, the file
                is not replaced, and None is returned.
        """
        ...

    async def append(self, path: str, data: bytes, *, size: int) -> bool:
        """Append to a file of exactly ``size`` bytes. With size 0 the file may be missing.

        Returns False if this is not possible. Then the caller must replace the file.
        """
        ...

    def append_at_once(self, path: str, data: bytes, *, size: int) -> bool:
        """Append synchronously, like ``append``. Returns False if the store is not on a local disk.

        Raises:
            OSError: The file cannot be written, or another process has changed it.
        """
        ...

    async def files(self, prefix: str, *, most: int = LISTED) -> list[StoredItem]:
        """At most ``most`` files below the directory ``prefix``, sorted by path. "" is the root of the store."""
        ...


def attempt_path(namespace: str, episode: str, uid: str, attempt: int) -> str:
    """The path of the files of an attempt.

    Raises:
        ManifestError: A part cannot be a name in a store.
    """
    return checked_path("/".join((namespace, episode, uid, str(attempt))))


def checked_path(path: str) -> str:
    """Return ``path`` if it stays below the root of the store.

    Raises:
        ManifestError: A segment could lead elsewhere.
    """
    for segment in path.split("/"):
        if not _SEGMENT.fullmatch(segment):
            raise ManifestError(f"{segment!r} cannot be part of a path in the results store")
    return path


T = TypeVar("T")

_CHUNK_BYTES = 256 * 1024
_THREADS = 16
_PROBE = ".dgym-probe"
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


class DirectoryStore:
    """A :class:`~dgym.results._store.ResultsStore` in a directory.

    Steps are appended to the trajectory immediately. Other files are replaced atomically by renaming. All asynchronous
    calls run in threads of the store: a network volume may block for a long time, and in asyncio's default threads it
    would then block other work too.

    Args:
        root: The directory.
        local: True if the directory is on a local disk, so that lines are appended without a thread.
    """

    checkpoint_steps = 1

    def __init__(self, root: Path, *, local: bool = False) -> None:
        self._root = root
        self._local = local
        self._threads: ThreadPoolExecutor | None = None

    def new_attempt(self, path: str) -> int:
        """Create the directory of the next attempt at the episode at ``path`` and return the number of the attempt.

        Concurrent processes get different numbers.
        """
        episode = self._place(path)
        while True:
            episode.mkdir(parents=True, exist_ok=True)
            number = max((int(entry.name) for entry in episode.iterdir() if entry.name.isdecimal()), default=0) + 1
            try:
                (episode / str(number)).mkdir()
            except FileExistsError:
                continue
            # If the results are inside a repository, the marker excludes them from its source.
            (self._root / RESULTS_MARKER).touch()
            return number

    def uri(self, path: str) -> str:
        """A ``file:`` URI."""
        return (self._root / path).resolve().as_uri()

    async def check(self) -> None:
        """Write a file and remove it."""
        await self._do(self._check)

    async def read(self, path: str) -> bytes | None:
        """The file, or None if it does not exist."""
        return await self._do(lambda: self._read(path))

    async def open(self, path: str) -> Content | None:
        """The file in chunks, or None if it does not exist."""
        file = await self._do(lambda: self._open(path))
        if file is None:
            return None
        size = os.fstat(file.fileno()).st_size
        return Content(size, self._chunks(file, size))

    async def write(self, path: str, data: bytes) -> None:
        """Replace the file by renaming."""
        await self._do(lambda: self._write(path, data))

    async def create(self, path: str, data: bytes) -> bool:
        """Link a temporary file to ``path``, which fails if the path exists."""
        return await self._do(lambda: self._create(path, data))

    async def replace(
        self,
        path: str,
        data: bytes,
        *,
        version: str | None,  # noqa: ARG002 - files have no versions
        keep: Callable[[bytes], bool],
    ) -> str | None:
        """Replace the file by renaming, unless ``keep`` returns True for its bytes."""
        return await self._do(lambda: self._replace(path, data, keep))

    async def append(self, path: str, data: bytes, *, size: int) -> bool:
        """Append to the file if it has exactly ``size`` bytes."""
        return await self._do(lambda: self._append(path, data, size))

    def append_at_once(self, path: str, data: bytes, *, size: int) -> bool:
        """Append to the file if the directory is on a local disk."""
        if not self._local:
            return False
        if not self._append(path, data, size):
            raise FileExistsError(f"{self._place(path)}: another process has written this trajectory")
        return True

    async def files(self, prefix: str, *, most: int = LISTED) -> list[StoredItem]:
        """The files below ``prefix``."""
        return await self._do(lambda: sorted(self._walk(prefix), key=lambda item: item.path)[:most])

    async def _do(self, work: Callable[[], T]) -> T:
        try:
            return await self._in_thread(work)
        except OSError as error:
            raise StoreUnavailable(f"the results directory {self._root}: {error}") from error

    async def _in_thread(self, work: Callable[[], T]) -> T:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="dgym-results")
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def _chunks(self, file: IO[bytes], size: int) -> AsyncIterator[bytes]:
        """The first ``size`` bytes of the file. Bytes that are appended in the meantime are not included."""
        try:
            while size > 0 and (chunk := await self._in_thread(partial(file.read, min(_CHUNK_BYTES, size)))):
                size -= len(chunk)
                yield chunk
        finally:
            file.close()

    def _place(self, path: str) -> Path:
        return self._root / checked_path(path)

    def _check(self) -> None:
        self._root.mkdir(parents=True, exist_ok=True)
        probe = self._root / f"{_PROBE}-{secrets.token_hex(4)}"
        probe.write_bytes(b"")
        probe.unlink()

    def _open(self, path: str) -> IO[bytes] | None:
        try:
            return os.fdopen(os.open(self._place(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb")
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None

    def _read(self, path: str) -> bytes | None:
        file = self._open(path)
        if file is None:
            return None
        with file:
            return file.read()

    def _write(self, path: str, data: bytes) -> None:
        with self._written(path, data) as temporary:
            temporary.replace(self._place(path))

    def _replace(self, path: str, data: bytes, keep: Callable[[bytes], bool]) -> str | None:
        present = self._read(path)
        if present is not None and keep(present):
            return None
        self._write(path, data)
        return ""

    def _create(self, path: str, data: bytes) -> bool:
        place = self._place(path)
        with self._written(path, data) as temporary:
            try:
                place.hardlink_to(temporary)
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                # Some network file systems do not support hard links. There the file is created before its content
                # is written.
                return _create_plainly(place, data)
        return True

    @contextlib.contextmanager
    def _written(self, path: str, data: bytes) -> Iterator[Path]:
        """A temporary file with ``data``, synced to disk and removed at the end of the context."""
        place = self._place(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        temporary = place.with_name(f".{place.name}.{secrets.token_hex(8)}")
        try:
            with temporary.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            yield temporary
        finally:
            temporary.unlink(missing_ok=True)

    def _append(self, path: str, data: bytes, size: int) -> bool:
        place = self._place(path)
        flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        if size == 0:
            place.parent.mkdir(parents=True, exist_ok=True)
            flags |= os.O_CREAT
        try:
            descriptor = os.open(place, flags, 0o644)
        except FileNotFoundError:
            return False
        try:
            if os.fstat(descriptor).st_size != size:
                return False
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        finally:
            os.close(descriptor)
        return True

    def _walk(self, prefix: str) -> Iterator[StoredItem]:
        top = self._place(prefix) if prefix else self._root
        for directory, below, names in os.walk(top):
            below[:] = [name for name in below if not name.startswith(".")]
            for name in names:
                file = Path(directory, name)
                with contextlib.suppress(FileNotFoundError):
                    if not name.startswith(".") and not file.is_symlink():
                        found = file.stat()
                        path = file.relative_to(self._root).as_posix()
                        yield StoredItem(path, found.st_size, found.st_mtime)


def _create_plainly(place: Path, data: bytes) -> bool:
    try:
        with place.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        return False
    return True
