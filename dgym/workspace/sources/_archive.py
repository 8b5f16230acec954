"""Download archives from allowed hosts. Only downloads import this module: sidecars start without ``ssl``."""

import base64
import contextlib
import functools
import http.client
import urllib.error
import urllib.request
from http.client import HTTPException, InvalidURL
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from dgym.api import ArchiveSource
from dgym.errors import SourceFailed
from dgym.workspace.sources._fetch import ANY_HOST, Cancellation, SourceHosts, check_public
from dgym.workspace.sources._tree import SIZE_LIMIT, file_digest

_STALL_SECONDS = 30
_TRIES = 3
_PAUSE_SECONDS = 1.0
_CHUNK = 1024 * 1024


def shown_url(url: str) -> str:
    """The URL without user name and password, for messages and logs.

    Raises:
        SourceFailed: The text is not a URL.
    """
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise SourceFailed(f"source: its URL is not valid: {error}") from None
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def download(archive: ArchiveSource, target: Path, cancellation: Cancellation, hosts: SourceHosts = ANY_HOST) -> None:
    """Download the archive from one of ``hosts`` to ``target`` and check its digest.

    Raises:
        SourceFailed: The host is not allowed, the download failed, or the digest differs.
    """
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
        except (ValueError, InvalidURL) as error:
            raise SourceFailed(f"{where}: the URL, or the URL of a redirect, is not valid: {error}") from None
        except (OSError, HTTPException) as error:
            if not left:
                raise SourceFailed(f"{where}: {error}") from None
        cancellation.pause(_PAUSE_SECONDS)
    digest = file_digest(target)
    if digest != archive.sha256:
        raise SourceFailed(f"{where}: its SHA-256 is {digest}, not {archive.sha256}")


def _opener(hosts: SourceHosts, where: str) -> urllib.request.OpenerDirector:
    """An opener for http and https only. A server cannot redirect to local files or to hosts that are not allowed."""
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
    """Send user name and password of the URL as a header that is not sent to the target of a redirect."""
    parts = urlsplit(url)
    request = urllib.request.Request(shown_url(url), headers={"User-Agent": "dgym", "Accept-Encoding": "identity"})  # noqa: S310
    if parts.username is not None:
        credentials = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
        request.add_unredirected_header("Authorization", "Basic " + base64.b64encode(credentials).decode())
    return request


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
    """A ``_Checked`` connection with TLS."""


class _Guard:
    def __init__(self, hosts: SourceHosts, where: str) -> None:
        self._hosts = hosts
        self._where = where

    def about(self, request: urllib.request.Request) -> dict[str, Any]:
        """Arguments of the connection for ``request``. The address of a proxy may be private."""
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
    """Handlers for http and https that refuse other hosts with ``SourceFailed``. The message begins with ``where``."""
    guard = _Guard(hosts, where)
    return _GuardedHttp(guard), _GuardedHttps(guard)
