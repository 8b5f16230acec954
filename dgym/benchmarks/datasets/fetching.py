"""Where rows come from: a path, an address, an archive, a commit of a git repository."""

import asyncio
import hashlib
import lzma
import re
import tarfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

from dgym.api import GitSource, SourceSpec
from dgym.errors import ManifestError, SourceFailed
from dgym.sandbox.local import cache_directory
from dgym.workspace.sources import extract, pack_source, shown_url, unpack_archive

_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_CHUNK_BYTES = 1024 * 1024
_TIMEOUT_SECONDS = 60

Progress = Callable[[str], None]


def fetch(source: str, revision: str | None, scratch: Path, progress: Progress) -> Path:
    """The file or directory that ``source`` means; a git repository's files are put below ``scratch``.

    Raises:
        ManifestError: It cannot be fetched, or ``revision`` is no full commit id.
    """
    if revision is not None:
        return _checked_out(source, revision, scratch / "repository", progress)
    return _downloaded(source, progress) if "://" in source else Path(source)


def named(source: str, revision: str | None) -> str:
    """The source for people: without a password, and with its commit."""
    shown = shown_url(source) if "://" in source else source
    return shown if revision is None else f"{shown}@{revision}"


def unpacked(file: Path, scratch: Path) -> Path:
    """The directory with an archive's files, below ``scratch``; what is no archive stays as it is.

    Raises:
        ManifestError: The archive cannot be unpacked.
    """
    if not _is_archive(file):
        return file
    directory = scratch / "archive"
    directory.mkdir()
    try:
        unpack_archive(file, directory)
    except SourceFailed as error:
        raise ManifestError(str(error)) from None
    return directory


def _is_archive(file: Path) -> bool:
    try:
        return file.is_file() and (zipfile.is_zipfile(file) or tarfile.is_tarfile(file))
    except (EOFError, OSError, zlib.error, lzma.LZMAError):
        return True  # Compressed, and damaged: unpacking it tells where.


def _checked_out(url: str, revision: str, directory: Path, progress: Progress) -> Path:
    if _COMMIT.fullmatch(revision) is None:
        raise ManifestError(f"--revision {revision}: give a full commit id: what a name means may change")
    progress(f"commit {revision[:12]} of {shown_url(url)}")
    git = SourceSpec(git=GitSource(url=url, revision=revision))
    try:
        packed = asyncio.run(pack_source(git, base=Path.cwd(), cache=cache_directory() / "sources"))
        directory.mkdir()
        extract(packed, directory)
    except SourceFailed as error:
        raise ManifestError(str(error)) from None
    return directory


def _downloaded(url: str, progress: Progress) -> Path:
    """The file behind ``url``, in the cache; what an interrupted import left there is continued."""
    if not url.startswith(("https://", "http://")):
        raise ManifestError(f"{shown_url(url)}: only http and https addresses are fetched")
    target = cache_directory() / "downloads" / hashlib.sha256(url.encode()).hexdigest()
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_suffix(".part")
    start = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={start}-"} if start else {})  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:  # noqa: S310 - checked above
            resumed = answer.status == 206
            length = answer.headers.get("Content-Length")
            total = int(length) + (start if resumed else 0) if length else None
            with part.open("ab" if resumed else "wb") as file:
                while data := answer.read(_CHUNK_BYTES):
                    file.write(data)
                    progress(f"{file.tell() / 1e6:,.0f} MB of {total / 1e6:,.0f}" if total else f"{file.tell()} bytes")
    except urllib.error.HTTPError as error:
        if error.code != 416:
            raise ManifestError(f"{shown_url(url)}: the server answers {error.code} {error.reason}") from None
        total = start
    except OSError as error:
        raise ManifestError(f"{shown_url(url)}: {error}; the same command goes on where this one stopped") from None
    if total is not None and part.stat().st_size != total:
        raise ManifestError(
            f"{shown_url(url)}: ended after {part.stat().st_size} of {total} bytes; the same command goes on there"
        )
    return part.replace(target)
