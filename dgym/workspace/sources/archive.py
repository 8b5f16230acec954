"""Repositories in tar and zip archives somewhere on the network."""

import base64
import contextlib
import functools
import http.client
import lzma
import stat
import tarfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple
from urllib.parse import unquote, urlsplit, urlunsplit

from dgym.api import ArchiveSource
from dgym.errors import SourceFailed
from dgym.workspace.sources.fetch import ANY_HOST, Cancellation, SourceHosts, check_public
from dgym.workspace.sources.tree import SIZE_LIMIT, TreeWriter, entry_path, file_digest

_STALL_SECONDS = 30
_TRIES = 3
_PAUSE_SECONDS = 1.0
_CHUNK = 1024 * 1024
_DAMAGED = (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, ValueError)


def shown_url(url: str) -> str:
    """The address without user name and password, for messages and logs."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def download(archive: ArchiveSource, target: Path, cancellation: Cancellation, hosts: SourceHosts = ANY_HOST) -> None:
    """Fetch the archive from one of ``hosts`` into ``target`` and prove its digest."""
    where = f"source.archive: {shown_url(archive.url)}"
    if urlsplit(archive.url).scheme not in ("http", "https"):
        raise SourceFailed(f"{where}: only http and https addresses are fetched")
    for left in range(_TRIES - 1, -1, -1):
        try:
            _fetch(archive.url, target, cancellation, hosts, where)
            break
        except urllib.error.HTTPError as error:
            error.close()
            if not left or error.code < 500:
                raise SourceFailed(f"{where}: {error}") from None
        except (OSError, HTTPException) as error:
            if not left:
                raise SourceFailed(f"{where}: {error}") from None
        cancellation.pause(_PAUSE_SECONDS)
    digest = file_digest(target)
    if digest != archive.sha256:
        raise SourceFailed(f"{where}: its SHA-256 is {digest}, not {archive.sha256}")


def _opener(hosts: SourceHosts, where: str) -> urllib.request.OpenerDirector:
    """Handlers for http alone: a server cannot redirect to this machine's files, nor to hosts that are not allowed."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.UnknownHandler(),
        *((urllib.request.HTTPHandler(), urllib.request.HTTPSHandler()) if hosts.unbounded else guarded(hosts, where)),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPRedirectHandler(),
        urllib.request.HTTPErrorProcessor(),
    ):
        opener.add_handler(handler)
    return opener


def _fetch(url: str, target: Path, cancellation: Cancellation, hosts: SourceHosts, where: str) -> None:
    size = 0
    request = _request(url)
    with (
        contextlib.closing(_opener(hosts, where).open(request, timeout=_STALL_SECONDS)) as response,
        target.open("wb") as file,
    ):
        while chunk := response.read(_CHUNK):
            cancellation.check()
            size += len(chunk)
            if size > SIZE_LIMIT:
                raise SourceFailed(f"{where}: it is larger than {SIZE_LIMIT} bytes")
            file.write(chunk)
        expected = response.headers.get("Content-Length")
        if expected is not None and int(expected) != size:
            raise OSError(f"the connection ended after {size} of {expected} bytes")


def _request(url: str) -> urllib.request.Request:
    """A user name and password in the address become a header, which redirections do not carry elsewhere."""
    parts = urlsplit(url)
    request = urllib.request.Request(shown_url(url), headers={"User-Agent": "dgym", "Accept-Encoding": "identity"})  # noqa: S310
    if parts.username is not None:
        credentials = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
        request.add_unredirected_header("Authorization", "Basic " + base64.b64encode(credentials).decode())
    return request


class Entry(NamedTuple):
    """One member of an archive. ``open`` gives the content and its size."""

    name: str
    kind: Literal["file", "directory", "link", "other"]
    executable: bool
    target: str
    open: Callable[[], tuple[IO[bytes], int]]


def repack(archive: Path, tree: TreeWriter, source: str, cancellation: Cancellation) -> None:
    """Write the members of a tar or zip into ``tree``.

    An archive that holds nothing but one directory, as code hosts make them, is unpacked without that directory,
    unless it names its root ("./") and so says where the repository begins.
    """
    try:
        with _entries(archive) as entries:
            _write(entries, tree, source, cancellation)
    except SourceFailed:
        raise
    except (*_DAMAGED, KeyError, RuntimeError) as error:
        raise SourceFailed(f"{source}: the archive cannot be read: {error}") from error


@contextlib.contextmanager
def _entries(archive: Path) -> Iterator[list[Entry]]:
    with archive.open("rb") as stream:
        magic = stream.read(4)
    if magic.startswith(b"PK"):
        with zipfile.ZipFile(archive) as opened:
            yield [_zip_entry(opened, member) for member in opened.infolist()]
    else:
        with tarfile.open(archive, "r:*", encoding="utf-8", errors="surrogateescape") as tar:
            yield [_tar_entry(tar, member) for member in tar.getmembers()]


def _tar_entry(tar: tarfile.TarFile, member: tarfile.TarInfo) -> Entry:
    def open_it() -> tuple[IO[bytes], int]:
        stream = tar.extractfile(member)
        assert stream is not None
        # A hard link has no size of its own.
        size = stream.seek(0, 2)
        stream.seek(0)
        return stream, size

    kind: Literal["file", "directory", "link", "other"] = "other"
    if member.isreg() or member.islnk():
        kind = "file"
    elif member.isdir():
        kind = "directory"
    elif member.issym():
        kind = "link"
    return Entry(member.name, kind, bool(member.mode & stat.S_IXUSR), member.linkname, open_it)


def _zip_entry(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Entry:
    mode = member.external_attr >> 16

    def open_it() -> tuple[IO[bytes], int]:
        return archive.open(member), member.file_size

    if member.is_dir():
        return Entry(member.filename, "directory", False, "", open_it)
    if stat.S_ISLNK(mode):
        if member.file_size > 4096:
            raise ValueError(f"the target of the link {member.filename} is too long")
        return Entry(member.filename, "link", False, archive.read(member).decode("utf-8", "surrogateescape"), open_it)
    special = stat.S_IFMT(mode) not in (0, stat.S_IFREG)
    return Entry(member.filename, "other" if special else "file", bool(mode & stat.S_IXUSR), "", open_it)


def _write(entries: list[Entry], tree: TreeWriter, source: str, cancellation: Cancellation) -> None:
    paths = [entry_path(entry.name, source) for entry in entries]
    top = _single_directory(paths, entries)
    # A later member of the same name replaces an earlier one.
    last = {path: index for index, path in enumerate(paths)}
    for index, (path, entry) in enumerate(zip(paths, entries, strict=True)):
        cancellation.check()
        if last[path] != index or path in (".", top):
            continue
        inner = path.removeprefix(f"{top}/") if top else path
        if entry.kind == "directory":
            tree.directory(inner)
        elif entry.kind == "link":
            tree.link(inner, entry.target)
        elif entry.kind == "file":
            stream, size = entry.open()
            with stream:
                tree.file(inner, stream, size, executable=entry.executable)


def _single_directory(paths: list[str], entries: list[Entry]) -> str:
    tops = {path.partition("/")[0] for path in paths}
    if len(tops) != 1 or "." in tops:
        return ""
    (top,) = tops
    is_directory = all(entry.kind == "directory" for path, entry in zip(paths, entries, strict=True) if path == top)
    return top if is_directory else ""


class _Checked(http.client.HTTPConnection):
    """A connection that refuses private addresses unless they are allowed."""

    def __init__(self, *arguments: Any, may_be_private: bool, where: str, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._may_be_private = may_be_private
        self._where = where

    def connect(self) -> None:
        super().connect()
        if not self._may_be_private:
            check_public(self.sock.getpeername()[0], f"{self._where}: {self.host}")


class _CheckedTls(_Checked, http.client.HTTPSConnection):
    """The same with TLS."""


class _Guard:
    def __init__(self, hosts: SourceHosts, where: str) -> None:
        self._hosts = hosts
        self._where = where

    def about(self, request: urllib.request.Request) -> dict[str, Any]:
        """Arguments of the connection for ``request``; a proxy's own address may be private."""
        allowed = self._hosts.check(request.full_url, self._where)
        proxied = request.has_proxy() or getattr(request, "_tunnel_host", None) is not None
        return {"may_be_private": allowed or proxied, "where": self._where}


class _GuardedHttp(urllib.request.HTTPHandler):
    def __init__(self, guard: _Guard) -> None:
        super().__init__()
        self._guard = guard

    def http_open(self, request: urllib.request.Request) -> Any:
        return self.do_open(functools.partial(_Checked, **self._guard.about(request)), request)


class _GuardedHttps(urllib.request.HTTPSHandler):
    def __init__(self, guard: _Guard) -> None:
        super().__init__()
        self._guard = guard

    def https_open(self, request: urllib.request.Request) -> Any:
        return self.do_open(functools.partial(_CheckedTls, **self._guard.about(request)), request)


def guarded(hosts: SourceHosts, where: str) -> tuple[urllib.request.BaseHandler, ...]:
    """Handlers for http and https that refuse other hosts with ``SourceFailed``; ``where`` begins the message."""
    guard = _Guard(hosts, where)
    return _GuardedHttp(guard), _GuardedHttps(guard)
