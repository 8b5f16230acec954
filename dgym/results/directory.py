"""Results in a directory, a laptop's own or one that agents share through a volume."""

import asyncio
import contextlib
import errno
import os
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import IO, TypeVar

from dgym.results.store import LISTED, Content, StoredItem, StoreUnavailable, checked_path
from dgym.workspace.sources import RESULTS_MARKER

T = TypeVar("T")

_CHUNK_BYTES = 256 * 1024
_THREADS = 16
_PROBE = ".dgym-probe"
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


class DirectoryStore:
    """Appends each step to the trajectory at once, and replaces other files by renaming.

    ``local``: the directory is on this machine's own disk, so that appending a line is worth no thread. A volume of the
    network may hang for long, and must hold up neither other episodes nor what else asyncio's threads do: it has
    threads of its own.
    """

    checkpoint_steps = 1

    def __init__(self, root: Path, *, local: bool = False) -> None:
        self._root = root
        self._local = local
        self._threads: ThreadPoolExecutor | None = None

    def new_attempt(self, path: str) -> int:
        """Make the directory of the next attempt of the episode at ``path``; no two processes get the same number."""
        episode = self._place(path)
        while True:
            episode.mkdir(parents=True, exist_ok=True)
            number = max((int(entry.name) for entry in episode.iterdir() if entry.name.isdecimal()), default=0) + 1
            try:
                (episode / str(number)).mkdir()
            except FileExistsError:
                continue
            # Keeps the results out of the sources of a repository that they lie in.
            (self._root / RESULTS_MARKER).touch()
            return number

    def uri(self, path: str) -> str:
        """A ``file:`` address."""
        return (self._root / path).resolve().as_uri()

    async def check(self) -> None:
        """Write a file and remove it."""
        await self._do(self._check)

    async def read(self, path: str) -> bytes | None:
        """The file; None where there is none."""
        return await self._do(lambda: self._read(path))

    async def open(self, path: str) -> Content | None:
        """The file in pieces; None where there is none."""
        file = await self._do(lambda: self._open(path))
        if file is None:
            return None
        size = os.fstat(file.fileno()).st_size
        return Content(size, self._chunks(file, size))

    async def write(self, path: str, data: bytes) -> None:
        """Replace the file by renaming."""
        await self._do(lambda: self._write(path, data))

    async def create(self, path: str, data: bytes) -> bool:
        """Give the file its name unless it is taken."""
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
        """Add to the file where it has just that size."""
        return await self._do(lambda: self._append(path, data, size))

    def append_at_once(self, path: str, data: bytes, *, size: int) -> bool:
        """Add to the file where the directory is this machine's own."""
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
        """``size`` bytes of the file: what is appended meanwhile is for the next reader."""
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
                # Some network file systems know no links; there the name is taken first and the content follows.
                return _create_plainly(place, data)
        return True

    @contextlib.contextmanager
    def _written(self, path: str, data: bytes) -> Iterator[Path]:
        """A temporary file with ``data``, safe on disk."""
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
