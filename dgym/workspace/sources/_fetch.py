"""The hosts from which sources may be fetched, and the cancellation of a fetch.

An entry is a host, a host with a port, ``*.example.com`` for every host below a domain, or ``*`` for all hosts. A host
that an entry names may have any address. A host that only a pattern matches must have a public address, because
otherwise a manifest could reach services inside the cluster.
"""

import ipaddress
import re
import socket
import threading
from collections.abc import Iterable
from typing import Self
from urllib.parse import SplitResult, urlsplit

from dgym.errors import ManifestError, SourceFailed

_PORTS = {"http": 80, "https": 443, "ssh": 22, "git": 9418}
_ENTRY = re.compile(r"(?P<host>\*|(?:\*\.)?[A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{1,5}))?")


class SourceHosts:
    """The allowed hosts.

    ``entries`` None allows every host, also with a private address. This is for fetches on the user's own machine.
    """

    def __init__(self, entries: Iterable[str] | None = None) -> None:
        self._entries = None if entries is None else [_parse(entry) for entry in entries]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a comma-separated list. An empty list allows no hosts."""
        return cls(entry.strip() for entry in text.split(",") if entry.strip())

    @property
    def unbounded(self) -> bool:
        """Whether all hosts are allowed without a check."""
        return self._entries is None

    def check(self, url: str, where: str) -> bool:
        """Return whether the host may have a private address.

        Raises:
            SourceFailed: The host is not allowed. The message begins with ``where``.
        """
        if self._entries is None:
            return True
        host, port = _address(urlsplit(url), where)
        allowed = [entry for entry, listed in self._entries if listed in (None, port) and _covers(entry, host)]
        if not allowed:
            raise SourceFailed(
                f"{where}: sources may not come from {host}:{port}; an administrator of the cluster can allow the host"
                " (agents.sourceHosts)"
            )
        return any("*" not in entry for entry in allowed)

    def resolve(self, url: str, where: str) -> str | None:
        """Return a checked address of the host, or None if the host may have any address.

        The caller must connect to the returned address: a second lookup could return a different, private address.

        Raises:
            SourceFailed: The host is not allowed, cannot be resolved, or has a private address and no entry names it.
        """
        if self.check(url, where):
            return None
        host, port = _address(urlsplit(url), where)
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise SourceFailed(f"{where}: {host}: {error.strerror or error}") from None
        except UnicodeError as error:
            raise SourceFailed(f"{where}: {host} is not the name of a host: {error}") from None
        addresses = [str(entry[4][0]) for entry in found]
        for address in addresses:
            check_public(address, f"{where}: {host}")
        return addresses[0]


ANY_HOST = SourceHosts()
"""Allows every host. For fetches on the user's own machine."""


_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_IPV4_AT_THE_END = tuple(map(ipaddress.IPv6Network, ("::ffff:0:0/96", "::/96", "64:ff9b::/96", "::ffff:0:0:0/96")))
_LOCAL_NAT64 = ipaddress.IPv6Network("64:ff9b:1::/48")


def check_public(address: str, where: str) -> None:
    """Check that ``address`` is on the public internet.

    Raises:
        SourceFailed: The address is private, belongs to this machine, or is otherwise special.
    """
    parsed = ipaddress.ip_address(address.partition("%")[0])
    if not all(map(_is_public, _unwrapped(parsed))):
        raise SourceFailed(f"{where} has the private address {address}; a host like that must be allowed by its name")


def _unwrapped(address: _Address) -> list[_Address]:
    """The address, or the IPv4 addresses that it contains for tunnels and gateways.

    Sources: RFC 4291 (mapped, compatible), 6052 (NAT64), 2765 (translated), 3056 (6to4) and 4380 (Teredo).
    """
    if isinstance(address, ipaddress.IPv4Address):
        return [address]
    last = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    if any(address in network for network in _IPV4_AT_THE_END):
        return [last]
    if address.sixtofour is not None:
        return [address.sixtofour]
    return [address, *(address.teredo or ())]


def _is_public(address: _Address) -> bool:
    if isinstance(address, ipaddress.IPv6Address) and (address.is_site_local or address in _LOCAL_NAT64):
        return False
    return address.is_global and not address.is_multicast


def _parse(entry: str) -> tuple[str, int | None]:
    match = _ENTRY.fullmatch(entry)
    if match is None:
        raise ManifestError(f"{entry!r} is not a host; write HOST, HOST:PORT, *.DOMAIN or *")
    port = match["port"]
    return match["host"].strip("[]").lower().rstrip("."), None if port is None else int(port)


def _covers(entry: str, host: str) -> bool:
    return entry in ("*", host) or (entry.startswith("*.") and host.endswith(entry[1:]))


def _address(parts: SplitResult, where: str) -> tuple[str, int]:
    try:
        host, port = (parts.hostname or "").rstrip("."), parts.port or _PORTS.get(parts.scheme, 0)
    except ValueError:
        host, port = "", 0
    if not host or not port:
        raise SourceFailed(f"{where}: the address does not name a host")
    return host, port


class Cancellation:
    """Cancels a fetch that runs in a thread. The thread calls :meth:`check` between its steps."""

    def __init__(self) -> None:
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        """Make the next call of ``check`` raise ``SourceFailed``."""
        self._cancelled.set()

    def check(self) -> None:
        """Raise ``SourceFailed`` if the fetch has been cancelled."""
        if self._cancelled.is_set():
            raise SourceFailed("fetching was cancelled")

    def pause(self, seconds: float) -> None:
        """Sleep for ``seconds``. A cancellation ends the sleep and raises ``SourceFailed``."""
        self._cancelled.wait(seconds)
        self.check()
