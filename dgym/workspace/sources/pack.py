"""Where a repository comes from: every kind of source becomes one uncompressed tar in a cache directory.

Fetched sources are kept by namespace, address and content (an archive's digest, a commit), so that a thousand samples
of one task fetch it once; packing runs under a lock that other processes respect too. Local sources are named by their
content, packed anew by each process and whenever they have changed, and go when they have not been used for longer than
an episode can last.
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
from dgym.workspace.sources.archive import download, shown_url
from dgym.workspace.sources.fetch import ANY_HOST, Cancellation, SourceHosts
from dgym.workspace.sources.git import GitFetch
from dgym.workspace.sources.tree import SIZE_LIMIT, TreeWriter, file_digest, write_directory, write_files
from dgym.workspace.sources.unchanged import Fingerprint, PackedDirectories
from dgym.workspace.sources.unpack import unpack

_FORMAT = 2
"""Part of every key; raised when packing changes, so that older tars are not found."""

_KEPT_SECONDS = 8 * 86400
"""A day longer than the longest episode."""

_packed_directories = PackedDirectories()

_TAR_NAME = re.compile(r"[0-9a-f]{64}\.tar")


async def pack_source(
    source: SourceSpec | None, *, base: Path, cache: Path, hosts: SourceHosts = ANY_HOST, namespace: str = ""
) -> Path:
    """Give a tar of the repository, without ``.git``, bytecode and special files.

    Args:
        source: None or empty gives an empty tar: the image already holds the repository.
        base: the directory that ``localPath`` is relative to.
        cache: where tars are kept; made if missing. The file given stays valid for at least a week.
        hosts: where archives and git repositories may come from.
        namespace: of the Episode in a cluster; namespaces share no fetched tar, which one may have had a password for.

    Raises:
        SourceFailed: the repository cannot be obtained, or holds something that leads outside.
    """
    return await _in_thread(
        lambda cancellation: _pack(source or SourceSpec(), base, cache, hosts, namespace, cancellation)
    )


async def last_tag(source: GitSource, packed: Path, *, is_needed: Callable[[], bool]) -> str:
    """The name of the last tag before the revision of ``source``, "" if it is not known or not needed.

    Args:
        source: A repository that ``pack_source`` packed as the file ``packed``, beside which the name is kept.
        packed: That file.
        is_needed: Called once for each ``packed``.
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
    """Unpack a tar or zip archive on this machine into ``directory``, within the bounds of every source.

    Raises:
        SourceFailed: The archive is damaged or too large, or holds something that leads outside.
    """
    with tempfile.TemporaryDirectory() as scratch:
        packed = Path(scratch, "packed.tar")
        unpack(archive, packed, str(archive), Cancellation())
        extract(packed, directory)


def extract(packed: Path, directory: Path) -> None:
    """Write the files of a tar that ``pack_source`` gave into ``directory``.

    Raises:
        SourceFailed: This machine cannot hold one of its files.
    """
    # Nothing in a tar of ours leads outside; Debian's Python 3.11.2 knows no filters.
    options: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    try:
        with tarfile.open(packed, encoding="utf-8", errors="surrogateescape") as tar:
            tar.extractall(directory, **options)  # noqa: S202 - see above
    except (tarfile.TarError, OSError) as error:
        raise SourceFailed(f"source: the repository cannot be unpacked: {error}") from error


async def _in_thread(pack: Callable[[Cancellation], Path]) -> Path:
    """Run ``pack`` in a daemon thread; a cancelled caller cancels it and does not wait for it.

    Threads of asyncio's own would hold the program at its end until the last download has timed out.
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
    """The tar of something that never changes, made by ``make(scratch, packed)`` if it is not there yet."""
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
    """A temporary directory on the file system of its result, so that the result can be moved atomically."""
    with tempfile.TemporaryDirectory(prefix=".packing-", dir=directory, ignore_cleanup_errors=True) as name:
        yield Path(os.path.realpath(name))


_TIMEOUT_SECONDS = 1800.0
_AT_ONCE = 2
_KEPT_ENTRIES = 256
_TRIES = 3


class _Entry:
    """The state of one source: the lock of the task that packs it, and the path of its last tar."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.path: Path | None = None


class SourceCache:
    """A cache of tars in a directory of its own: files that an earlier process left half packed are removed.

    Args:
        directory: Where they are kept; made if missing.
        limit_bytes: What they may take together; those unused for longest go first, those in use never. Packing takes
            space of its own beside them.
        hosts: Where archives and git repositories may come from.
        timeout_seconds: For obtaining one.
    """

    def __init__(
        self, directory: Path, *, limit_bytes: int, hosts: SourceHosts, timeout_seconds: float = _TIMEOUT_SECONDS
    ) -> None:
        self._directory = directory
        self._limit_bytes = limit_bytes
        self._hosts = hosts
        self._timeout_seconds = timeout_seconds
        self._packing = asyncio.Semaphore(_AT_ONCE)
        self._entries: dict[bytes, _Entry] = {}
        self._used: Counter[Path] = Counter()
        self._guard = threading.Lock()
        for left in (*directory.glob(".packing-*"), *directory.glob("*/.packing-*")):
            shutil.rmtree(left, ignore_errors=True)

    @contextlib.asynccontextmanager
    async def packed(self, source: SourceSpec, namespace: str) -> AsyncIterator[Path]:
        """The tar of ``source`` for an Episode in ``namespace``, which is kept at least until the context ends.

        Raises:
            SourceFailed: It could not be obtained.
        """
        if source.local_path is not None:
            raise SourceFailed("source.localPath: a directory of one machine is for local runs")
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

    def _entry(self, source: SourceSpec, namespace: str) -> _Entry:
        """The entry of a source: concurrent requests of one namespace for the same source share one fetch."""
        if len(self._entries) > _KEPT_ENTRIES:
            self._entries = {key: entry for key, entry in self._entries.items() if entry.lock.locked()}
        return self._entries.setdefault(msgspec.json.encode((namespace, source)), _Entry())

    async def _pack(self, source: SourceSpec, namespace: str) -> Path:
        """The tar, counted as used."""
        try:
            async with asyncio.timeout(self._timeout_seconds):
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
            raise SourceFailed(f"source: it could not be obtained within {self._timeout_seconds:.0f} s") from None
        raise SourceFailed("source: the cache is too small for the sources in use at the same time")

    def _claim(self, path: Path) -> bool:
        """Keep a tar from being removed; False when it is gone already."""
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
