"""HTTP that reaches the allowed hosts alone, redirections included.

The address is checked on the connection itself: a name that is resolved twice may mean two things.
"""

import functools
import http.client
import urllib.request
from typing import Any

from dgym.workspace.source_hosts import SourceHosts, check_public


class _Checked(http.client.HTTPConnection):
    """Sends nothing to a private address unless it may."""

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
        """What the connection of ``request`` must know. Behind a proxy it is the proxy's, which has its own rules."""
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
