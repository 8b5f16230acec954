"""Access to the sidecar: the connections that its port accepts, and the calls of three roles.

A program of the sandbox shares the pod's network. It could otherwise use up the sidecar's memory by thousands of
connections, and answer on the port of a sidecar that has ended by it. So connections come from other hosts alone, are
few, and have a first request in time; requests are signed, each is taken once, and assignments supersede each other.
The number of an assignment counts with the operator's proof alone: no agent or driver can take one that is higher.
"""

import asyncio
import heapq
import ipaddress
import logging
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import msgspec

from dgym.errors import DgymError
from dgym.wire.http import EPOCH_HEADER, IDEMPOTENCY_HEADER, PROXIED_AUTHORIZATION_HEADER, ErrorCode, Role
from dgym.wire.signing import WINDOW_SECONDS, SignedRequest, read_epoch, read_request

MAXIMUM_CONNECTIONS = 256
MAXIMUM_PER_PEER = 128
HEADER_LIMIT = 32 * 1024
"""Bytes before the end of a connection's first headers."""
HEADER_SECONDS = 10.0
_NONCES = 16_384
"""Remembered for each role."""

_log = logging.getLogger(__name__)


class CallError(DgymError):
    """A call is refused."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """The role of a caller, and the epoch of its assignment, if it has one."""

    role: Role
    epoch: int | None


class Access:
    """Checks every call before anything else is done with it."""

    def __init__(self, digests: Mapping[Role, str]) -> None:
        self._digests = dict(digests)
        self._nonces = {role: _Nonces() for role in Role}
        self._epoch = 0
        self._assigned: set[Role] = set()
        self._without_epoch = {Role.OPERATE}

    def identify(self, method: str, target: str, headers: Mapping[str, str]) -> SignedRequest:
        """The request, if it is signed with the key of a role and was not received before.

        Raises:
            CallError: unauthenticated.
        """
        signed = read_request(
            self._digests,
            headers.get(PROXIED_AUTHORIZATION_HEADER) or headers.get("Authorization", ""),
            method,
            target,
            epoch=headers.get(EPOCH_HEADER, ""),
            reset_key=headers.get(IDEMPOTENCY_HEADER, ""),
        )
        if signed is None:
            raise CallError(ErrorCode.UNAUTHENTICATED, "the request is not signed with a token of this attempt")
        now = time.time()
        if abs(signed.time - now) > WINDOW_SECONDS:
            message = f"the clocks differ by {signed.time - now:.0f} s, more than {WINDOW_SECONDS} s"
            raise CallError(ErrorCode.UNAUTHENTICATED, message)
        if not self._nonces[signed.role].add(signed.time, signed.nonce, now):
            raise CallError(ErrorCode.UNAUTHENTICATED, "the request was received before")
        return signed

    def authorize(self, role: Role, headers: Mapping[str, str], allowed: Sequence[Role]) -> Caller:
        """The caller, if the call is one of its role's.

        Raises:
            CallError: forbidden, superseded, or an invalid argument.
        """
        if role not in allowed:
            needed = " or ".join(allowed)
            raise CallError(ErrorCode.FORBIDDEN, f"this call needs the token of the role {needed}, not of {role}")
        if role in self._without_epoch or EPOCH_HEADER not in headers:
            caller = Caller(role=role, epoch=None)
        else:
            caller = Caller(role=role, epoch=self._read_epoch(role, headers[EPOCH_HEADER]))
        self.check_current(caller)
        if caller.epoch is not None:
            self._epoch = caller.epoch
            self._assigned.add(role)
        return caller

    def check_current(self, caller: Caller) -> None:
        """Refuse a caller whose assignment was given to another, also while its call ran.

        A caller without an assignment drives from outside; an assignment for the same role supersedes it.
        """
        superseded = caller.role in self._assigned if caller.epoch is None else caller.epoch < self._epoch
        if superseded:
            which = "no epoch" if caller.epoch is None else f"epoch {caller.epoch}"
            message = f"{which} is superseded by {self._epoch}: another has this episode"
            raise CallError(ErrorCode.SUPERSEDED, message)

    def _read_epoch(self, role: Role, text: str) -> int:
        try:
            epoch = read_epoch(self._digests[Role.OPERATE], role, text)
        except ValueError as error:
            raise CallError(ErrorCode.INVALID_ARGUMENT, f"{EPOCH_HEADER}: {error}") from None
        if epoch is None:
            message = f"{EPOCH_HEADER}: the operator has not given this epoch to the role {role}"
            raise CallError(ErrorCode.FORBIDDEN, message)
        return epoch

    def ignore_epochs(self, role: Role) -> None:
        """Read no epoch of this role any more: an external driver could supersede the agent that stores its steps."""
        self._without_epoch.add(role)

    def has_newer(self, epoch: int) -> bool:
        """Whether a later assignment than ``epoch`` has called."""
        return self._epoch > epoch


class _Nonces:
    """The requests of one role within the window; where there are too many, the oldest times are refused as a whole."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._oldest_first: list[tuple[int, str]] = []
        self._floor = 0

    def add(self, sent: int, nonce: str, now: float) -> bool:
        """Record a request; False: it was received before, or is too old to tell."""
        if sent < self._floor or nonce in self._known:
            return False
        self._known.add(nonce)
        heapq.heappush(self._oldest_first, (sent, nonce))
        while self._oldest_first and self._oldest_first[0][0] < now - WINDOW_SECONDS:
            self._forget()
        while len(self._known) > _NONCES:
            self._floor = max(self._floor, self._forget() + 1)
        return True

    def _forget(self) -> int:
        sent, nonce = heapq.heappop(self._oldest_first)
        self._known.discard(nonce)
        return sent


class Connections:
    """Counts a port's connections and hands those that are accepted to ``server``, once their first headers are whole.

    ``server`` may be replaced: another one serves the connections whose headers arrive from then on.
    """

    def __init__(self, server: Callable[[], asyncio.Protocol], *, allow_local: bool) -> None:
        self.server = server
        self.refused: Counter[str] = Counter()
        self._allow_local = allow_local
        self._open: Counter[str] = Counter()

    def __call__(self) -> asyncio.Protocol:
        """A protocol for one connection."""
        return _Connection(self)

    def handler(self) -> asyncio.Protocol:
        """The server's own protocol for a connection whose first headers have arrived."""
        return self.server()

    def problem(self, peer: str) -> str | None:
        """Why a connection from the address ``peer`` is refused, if it is."""
        if not self._allow_local and is_local(peer):
            return "it comes from the pod itself"
        if self._open.total() >= MAXIMUM_CONNECTIONS:
            return f"{MAXIMUM_CONNECTIONS} connections are open"
        if self._open[peer] >= MAXIMUM_PER_PEER:
            return f"{MAXIMUM_PER_PEER} connections of its address are open"
        return None

    def opened(self, peer: str) -> None:
        """Count a connection."""
        self._open[peer] += 1

    def closed(self, peer: str) -> None:
        """Count the end of a connection."""
        self._open[peer] -= 1
        if not self._open[peer]:
            del self._open[peer]

    def refuse(self, transport: asyncio.Transport, peer: str, problem: str) -> None:
        """Drop a connection without an answer; each problem is logged once."""
        self.refused[problem] += 1
        if self.refused[problem] == 1:
            _log.warning("a connection was refused: %s", problem, extra={"fields": {"peer": peer}})
        transport.abort()


class _Connection(asyncio.Protocol):
    """Holds a connection until its first headers are whole, and passes everything to the server from then on."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._peer: str | None = None
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None
        self._handler: asyncio.Protocol | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Refuse the connection, or wait for its headers."""
        self._transport = cast("asyncio.Transport", transport)
        name = transport.get_extra_info("peername")
        peer = str(name[0]) if name else ""
        if problem := self._connections.problem(peer):
            self._connections.refuse(self._transport, peer, problem)
            return
        self._peer = peer
        self._connections.opened(peer)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(HEADER_SECONDS, self._drop, "its headers took too long")

    def data_received(self, data: bytes) -> None:
        """Collect the headers, or pass on what follows them."""
        if self._handler is not None:
            self._handler.data_received(data)
            return
        if self._peer is None or self._transport is None:
            return
        self._received += data
        end = self._received.find(b"\r\n\r\n")
        if (end if end >= 0 else len(self._received)) > HEADER_LIMIT:
            self._drop("its headers are too long")
        elif end >= 0:
            self._stop_timer()
            self._handler = self._connections.handler()
            self._handler.connection_made(self._transport)
            received, self._received = bytes(self._received), bytearray()
            self._handler.data_received(received)

    def eof_received(self) -> bool | None:
        """Pass on that the peer sends nothing more."""
        return self._handler.eof_received() if self._handler is not None else None

    def pause_writing(self) -> None:
        """Pass on that the peer reads too slowly."""
        if self._handler is not None:
            self._handler.pause_writing()

    def resume_writing(self) -> None:
        """Pass on that the peer reads again."""
        if self._handler is not None:
            self._handler.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._stop_timer()
        if self._peer is not None:
            self._connections.closed(self._peer)
            self._peer = None
        if self._handler is not None:
            self._handler.connection_lost(exc)

    def _drop(self, problem: str) -> None:
        if self._transport is not None:
            self._received.clear()
            self._connections.refuse(self._transport, self._peer or "", problem)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def is_local(address: str) -> bool:
    """Whether ``address`` is one of this network namespace: a socket can be bound to it."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return True
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    host = mapped or parsed
    if host.is_loopback or host.is_unspecified:
        return True
    family = socket.AF_INET if isinstance(host, ipaddress.IPv4Address) else socket.AF_INET6
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((str(host), 0))
        except OSError:
            return False
    return True
