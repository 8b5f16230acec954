"""Pack every kind of source as an uncompressed tar in a cache directory.

The cache key of a fetched source is its namespace, URL and content (digest of the archive, or commit), so a thousand
samples of a task fetch it once. A file lock keeps other processes from packing the same source at the same time. Local
sources are named by their digest. Each process packs them again, and also after each change. The tar of a local source
is removed if it has not been used for longer than an episode can last.
"""

import asyncio
import contextlib
import hashlib
import os
import re
import shutil
import tarfile
import tempfile
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec

from dgym.api import GitSource, SourceSpec
from dgym.errors import SourceFailed
from dgym.locks import try_acquire
from dgym.workspace.sources._archive import download, shown_url
from dgym.workspace.sources._fetch import ANY_HOST, Cancellation, SourceHosts
from dgym.workspace.sources._git import GitFetch
from dgym.workspace.sources._tree import (
    SIZE_LIMIT,
    TreeWriter,
    file_digest,
    walk_repository,
    write_directory,
    write_files,
)
from dgym.workspace.sources._unpack import unpack

_FORMAT = 2
"""Part of every cache key. Increase it when packing changes, so that older tars are not used."""

_KEPT_SECONDS = 8 * 86400
"""One day longer than the longest episode."""

_TAR_NAME = re.compile(r"[0-9a-f]{64}\.tar")
_SETTLED_NS = 2 * 10**9
"""The coarsest resolution of file system timestamps."""
_MOST = 64
"""Maximum number of directories in ``PackedDirectories``."""


async def pack_source(
    source: SourceSpec | None, *, base: Path, cache: Path, hosts: SourceHosts = ANY_HOST, namespace: str = ""
) -> Path:
    """Return the path of a tar of the repository, without ``.git``, bytecode and special files.

    Args:
        source: The source. None or an empty source gives an empty tar: the image already contains the repository.
        base: The directory that ``localPath`` is relative to.
        cache: The directory for tars. Created if it does not exist. The returned file is kept for at least a week.
        hosts: Hosts from which archives and git repositories may be fetched.
        namespace: Namespace of the Episode in a cluster. Namespaces do not share fetched tars, because one of them may
            have needed a password for the fetch.

    Raises:
        SourceFailed: The repository cannot be obtained, or a path in it leads outside.
    """
    return await _in_thread(
        lambda cancellation: _pack(source or SourceSpec(), base, cache, hosts, namespace, cancellation)
    )


async def last_tag(source: GitSource, packed: Path, *, is_needed: Callable[[], bool]) -> str:
    """The name of the last tag before the revision of ``source``, or "" if it is unknown or not needed.

    Args:
        source: A git source that ``pack_source`` has packed.
        packed: The tar that ``pack_source`` returned. The name is cached next to it.
        is_needed: Whether the name is needed. Called once for each ``packed``.
    """
    kept = packed.with_suffix(".tag")

    def find(cancellation: Cancellation) -> Path:
        with _lock(kept.with_suffix(".lock"), cancellation):
            if not kept.exists():
                with _scratch(kept.parent) as scratch:
                    tag = ""
                    with contextlib.suppress(SourceFailed):
                        tag = GitFetch(source, scratch, cancellation).last_tag() if is_needed() else ""
                    cancellation.check()
                    (scratch / "tag").write_text(tag)
                    (scratch / "tag").replace(kept)
        return kept

    return (await _in_thread(find)).read_text()


def unpack_archive(archive: Path, directory: Path) -> None:
    """Unpack a local tar or zip archive into ``directory``, with the limits of other sources.

    Raises:
        SourceFailed: The archive is damaged or too large, or a path in it leads outside.
    """
    with tempfile.TemporaryDirectory() as scratch:
        packed = Path(scratch, "packed.tar")
        unpack(archive, packed, str(archive), Cancellation())
        extract(packed, directory)


def extract(packed: Path, directory: Path) -> None:
    """Extract a tar that ``pack_source`` returned into ``directory``.

    Raises:
        SourceFailed: A file cannot be written on this machine.
    """
    # Python 3.11.2 of Debian does not support filters. They are not needed, because TreeWriter refuses paths that lead
    # outside.
    options: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    try:
        with tarfile.open(packed, encoding="utf-8", errors="surrogateescape") as tar:
            tar.extractall(directory, **options)  # noqa: S202 - see above
    except (tarfile.TarError, OSError) as error:
        raise SourceFailed(f"source: the repository cannot be unpacked: {error}") from error


async def _in_thread(pack: Callable[[Cancellation], Path]) -> Path:
    """Run ``pack`` in a daemon thread. A cancelled caller cancels ``pack`` and does not wait for it.

    ``asyncio.to_thread`` is not used, because its threads would keep the program alive until a download times out.
    """
    future: Future[Path] = Future()
    cancellation = Cancellation()

    def run() -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(pack(cancellation))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="dgym-source", daemon=True).start()
    try:
        return await asyncio.wrap_future(future)
    finally:
        cancellation.cancel()


def _pack(
    source: SourceSpec, base: Path, cache: Path, hosts: SourceHosts, namespace: str, cancellation: Cancellation
) -> Path:
    if source.config_map_ref is not None:
        raise SourceFailed(
            f"source.configMapRef: the ConfigMap {source.config_map_ref.name!r} exists in a cluster only; a local run "
            "needs files, git, archive or localPath"
        )
    try:
        cache.mkdir(parents=True, exist_ok=True)
        if source.archive is not None:
            return _pack_archive(source, cache, hosts, namespace, cancellation)
        if source.git is not None:
            return _pack_git(source, cache, hosts, namespace, cancellation)
        if source.local_path is not None:
            return _pack_directory(base / Path(source.local_path).expanduser(), cache)
        return _pack_local(lambda tree: write_files(source.files, tree), "source.files", cache)
    except OSError as error:
        raise SourceFailed(f"source: {error}") from error


def _pack_directory(root: Path, cache: Path) -> Path:
    before = Fingerprint.take(root)
    known = _packed_directories.find(root, cache, before)
    if known is not None:
        return known
    packed = _pack_local(lambda tree: write_directory(root, tree), f"source.localPath: {root}", cache)
    _packed_directories.remember(root, cache, before, packed)
    return packed


def _pack_local(write: Callable[[TreeWriter], None], source: str, cache: Path) -> Path:
    directory = cache / "local"
    directory.mkdir(exist_ok=True)
    _forget_unused(directory)
    with _scratch(directory) as scratch:
        packed = scratch / "packed.tar"
        with TreeWriter(packed, source) as tree:
            write(tree)
        return packed.replace(directory / f"{file_digest(packed)}.tar")


def _forget_unused(directory: Path) -> None:
    oldest = time.time() - _KEPT_SECONDS
    for file in directory.iterdir():
        with contextlib.suppress(FileNotFoundError):
            if _TAR_NAME.fullmatch(file.name) and file.stat().st_mtime < oldest:
                file.unlink()


def _pack_archive(
    source: SourceSpec, cache: Path, hosts: SourceHosts, namespace: str, cancellation: Cancellation
) -> Path:
    assert source.archive is not None
    archive = source.archive
    name = f"source.archive: {shown_url(archive.url)}"

    def make(scratch: Path, packed: Path) -> None:
        fetched = scratch / "fetched"
        download(archive, fetched, cancellation, hosts)
        unpack(fetched, packed, name, cancellation)

    hosts.check(archive.url, name)
    return _cached(cache, ("archive", namespace, archive.url, archive.sha256), make, cancellation)


def _pack_git(source: SourceSpec, cache: Path, hosts: SourceHosts, namespace: str, cancellation: Cancellation) -> Path:
    assert source.git is not None
    git = source.git
    with _scratch(cache) as scratch:
        commit = GitFetch(git, scratch, cancellation, hosts).resolve()

    def make(scratch: Path, packed: Path) -> None:
        tree_directory = scratch / "tree"
        tree_directory.mkdir()
        GitFetch(git, tree_directory, cancellation, hosts).checkout(commit)
        with TreeWriter(packed, f"source.git: {shown_url(git.url)}") as tree:
            write_directory(tree_directory, tree)

    return _cached(cache, ("git", namespace, git.url, commit or git.revision), make, cancellation)


def _cached(
    cache: Path, identity: tuple[str, ...], make: Callable[[Path, Path], None], cancellation: Cancellation
) -> Path:
    """The tar of an immutable source, created by ``make(scratch, packed)`` if it does not exist yet."""
    directory = cache / "remote"
    directory.mkdir(exist_ok=True)
    key = hashlib.sha256(msgspec.json.encode((_FORMAT, *identity))).hexdigest()
    kept = directory / f"{key}.tar"
    with _lock(directory / f"{key}.lock", cancellation):
        if not kept.exists():
            with _scratch(directory) as scratch:
                packed = scratch / "packed.tar"
                make(scratch, packed)
                packed.replace(kept)
    return kept


@contextlib.contextmanager
def _lock(path: Path, cancellation: Cancellation) -> Iterator[None]:
    while (lock := try_acquire(path)) is None:
        cancellation.pause(0.05)
    try:
        yield
    finally:
        os.close(lock)


@contextlib.contextmanager
def _scratch(directory: Path) -> Iterator[Path]:
    """A temporary directory on the file system of ``directory``, so that the result can be moved atomically."""
    with tempfile.TemporaryDirectory(prefix=".packing-", dir=directory, ignore_cleanup_errors=True) as name:
        yield Path(os.path.realpath(name))


_TIMEOUT_SECONDS = 1800.0
_AT_ONCE = 2
_KEPT_ENTRIES = 256
_TRIES = 3


class _CacheEntry:
    """The state of one source: the lock that a packing task holds, and the path of the last tar."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.path: Path | None = None


class SourceCache:
    """A cache of tars. Incomplete files of an earlier process are removed at the start.

    Args:
        directory: The directory of the cache, which nothing else uses. Created if it does not exist.
        limit_bytes: Maximum size of all tars. The least recently used tars are removed first. A tar in use is kept.
            Packing needs additional space.
        hosts: Hosts from which archives and git repositories may be fetched.
    """

    def __init__(self, directory: Path, *, limit_bytes: int, hosts: SourceHosts) -> None:
        self._directory = directory
        self._limit_bytes = limit_bytes
        self._hosts = hosts
        self._packing = asyncio.Semaphore(_AT_ONCE)
        self._entries: dict[bytes, _CacheEntry] = {}
        self._used: Counter[Path] = Counter()
        self._guard = threading.Lock()
        for left in (*directory.glob(".packing-*"), *directory.glob("*/.packing-*")):
            shutil.rmtree(left, ignore_errors=True)

    @contextlib.asynccontextmanager
    async def packed(self, source: SourceSpec, namespace: str) -> AsyncIterator[Path]:
        """The tar of ``source`` for an Episode in ``namespace``. It is kept at least until the context ends.

        Raises:
            SourceFailed: The source could not be obtained.
        """
        if source.local_path is not None:
            raise SourceFailed("source.localPath: a directory of a user's machine can only be used in local runs")
        entry = self._entry(source, namespace)
        async with entry.lock, self._packing:
            if entry.path is None or not entry.path.exists():
                await asyncio.to_thread(self._shrink, self._limit_bytes - min(SIZE_LIMIT, self._limit_bytes // 2))
            path = entry.path = await self._pack(source, namespace)
        try:
            await asyncio.to_thread(self._shrink, self._limit_bytes)
            yield path
        finally:
            with self._guard:
                self._used[path] -= 1
                self._used += Counter()

    def _entry(self, source: SourceSpec, namespace: str) -> _CacheEntry:
        """The entry of a source. Concurrent requests of a namespace for the same source share one fetch."""
        if len(self._entries) > _KEPT_ENTRIES:
            self._entries = {key: entry for key, entry in self._entries.items() if entry.lock.locked()}
        return self._entries.setdefault(msgspec.json.encode((namespace, source)), _CacheEntry())

    async def _pack(self, source: SourceSpec, namespace: str) -> Path:
        """Pack ``source`` and mark its tar as used."""
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                for _ in range(_TRIES):
                    path = await pack_source(
                        source,
                        base=self._directory,
                        cache=self._directory,
                        hosts=self._hosts,
                        namespace=namespace,
                    )
                    if self._claim(path):
                        return path
        except TimeoutError:
            raise SourceFailed(
                f"source: the repository could not be obtained within {_TIMEOUT_SECONDS:.0f} s"
            ) from None
        raise SourceFailed("source: the cache is too small for the sources in use at the same time")

    def _claim(self, path: Path) -> bool:
        """Mark a tar as used, so that it is not removed. Returns False if it has already been removed."""
        with self._guard:
            try:
                os.utime(path)
            except FileNotFoundError:
                return False
            self._used[path] += 1
            return True

    def _shrink(self, limit: int) -> None:
        kept = sorted(self._tars(), key=lambda item: item[1].st_mtime)
        total = sum(status.st_size for _, status in kept)
        for path, status in kept:
            if total <= limit:
                return
            with self._guard:
                if not self._used[path]:
                    path.unlink(missing_ok=True)
                    total -= status.st_size

    def _tars(self) -> Iterator[tuple[Path, os.stat_result]]:
        for path in self._directory.glob("*/*.tar"):
            with contextlib.suppress(FileNotFoundError):
                yield path, path.stat()


class Fingerprint(msgspec.Struct, frozen=True, kw_only=True):
    """A digest of the metadata of a directory.

    A directory is unchanged while every packed path has the same type, mode, inode, size and times. The change time
    (``st_ctime``) is included because programs cannot set it back.

    Attributes:
        sha256: The digest.
        settled: True if an equal later fingerprint implies equal contents. False if a file changed so recently that it
            could change again within the resolution of its timestamp.
    """

    sha256: str
    settled: bool

    @classmethod
    def take(cls, root: Path) -> "Fingerprint":
        """The fingerprint of ``root``. Not settled if the directory has no files or cannot be read."""
        now, newest, state = time.time_ns(), 0, hashlib.sha256()
        try:
            for path, entry in walk_repository(root):
                status = entry.stat(follow_symlinks=False)
                state.update(os.fsencode(path) + b"\0" + str(status.st_mode).encode())
                # Times of directories are ignored: they change with bytecode, which is not packed.
                if not entry.is_dir(follow_symlinks=False):
                    newest = max(newest, status.st_ctime_ns)
                    times = (status.st_mtime_ns, status.st_ctime_ns)
                    state.update(repr((status.st_dev, status.st_ino, status.st_size, *times)).encode())
                state.update(b"\0\0")
        except OSError:
            return cls(sha256="", settled=False)
        return cls(sha256=state.hexdigest(), settled=0 < newest < now - _SETTLED_NS)


class PackedDirectories:
    """The tars of packed directories, by directory and cache, so that a later reset does not read unchanged files.

    If there are too many, the oldest entry is removed.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[Path, Path], tuple[Fingerprint, Path]] = {}

    def remember(self, root: Path, cache: Path, before: Fingerprint, packed: Path) -> None:
        """Store the tar of ``root``. ``before`` is the fingerprint from before packing."""
        if not before.settled:
            return
        while len(self._kept) >= _MOST:
            self._kept.pop(next(iter(self._kept), (root, cache)), None)
        self._kept[root, cache] = (before, packed)

    def find(self, root: Path, cache: Path, now: Fingerprint) -> Path | None:
        """The tar of ``root``, or None if the directory has changed or the tar is missing or damaged.

        The digest of the tar is checked, because a program that runs without isolation can write to the cache, and the
        score depends on the contents of the tar.
        """
        before, packed = self._kept.get((root, cache), (None, None))
        if packed is None or not now.settled or before != now:
            return None
        try:
            os.utime(packed)  # keeps the tar for another week
            return packed if file_digest(packed) == packed.stem else None
        except FileNotFoundError:
            return None


_packed_directories = PackedDirectories()
