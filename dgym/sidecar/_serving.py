"""Serves one attempt of an episode until it is released, and writes its termination message.

The message has the outcome of the attempt, or its state when the sidecar was killed.

Programs in the sandbox share the pod's network, and could exhaust the sidecar's memory with thousands of connections.
Therefore only connections from other hosts are accepted, their number is limited, and their first headers must arrive
within a timeout.
"""

import asyncio
import ipaddress
import logging
import os
import signal
import socket
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, cast

import msgspec
from aiohttp import web

from dgym.errors import InfrastructureError, SandboxLost, SandboxStartFailed
from dgym.logs import JsonFormatter, episode_fields, log_to_stderr
from dgym.sidecar._api import Api, Binding
from dgym.sidecar._attempt import Attempt
from dgym.sidecar._preparation import Runners
from dgym.sidecar.settings import PooledSettings, ProcessSettings, Settings
from dgym.wire import AttemptOutcome, EndReason
from dgym.wire.outcome import TerminationMessage, encode_termination

MAXIMUM_CONNECTIONS = 256
MAXIMUM_PER_PEER = 128
HEADER_LIMIT = 32 * 1024
"""Maximum number of bytes of the first headers of a connection."""
HEADER_SECONDS = 10.0
_log = logging.getLogger("dgym.sidecar")
_GRACE_SECONDS = 1.0
_IDLE_SECONDS = 75.0


class Connections:
    """Protocol factory that counts the connections of a port, and passes accepted ones to ``server``.

    A connection is passed when its first headers are complete. ``server`` can be replaced; it then serves connections
    whose headers arrive later.
    """

    def __init__(self, server: Callable[[], asyncio.Protocol], *, allow_local: bool) -> None:
        self.server = server
        self.refused: Counter[str] = Counter()
        self._allow_local = allow_local
        self._open: Counter[str] = Counter()

    def __call__(self) -> asyncio.Protocol:
        """Create the protocol of one connection."""
        return _Connection(self)

    def handler(self) -> asyncio.Protocol:
        """Create the server's protocol for a connection whose first headers have arrived."""
        return self.server()

    def problem(self, peer: str) -> str | None:
        """Return why a connection from the address ``peer`` is refused; None if it is accepted."""
        if not self._allow_local and is_local(peer):
            return "it comes from the pod itself"
        if self._open.total() >= MAXIMUM_CONNECTIONS:
            return f"{MAXIMUM_CONNECTIONS} connections are open"
        if self._open[peer] >= MAXIMUM_PER_PEER:
            return f"{MAXIMUM_PER_PEER} connections of its address are open"
        return None

    def opened(self, peer: str) -> None:
        """Count a new connection."""
        self._open[peer] += 1

    def closed(self, peer: str) -> None:
        """Count the end of a connection."""
        self._open[peer] -= 1
        if not self._open[peer]:
            del self._open[peer]

    def refuse(self, transport: asyncio.Transport, peer: str, problem: str) -> None:
        """Abort a connection without an answer. Each problem is logged once."""
        self.refused[problem] += 1
        if self.refused[problem] == 1:
            _log.warning("a connection was refused: %s", problem, extra={"fields": {"peer": peer}})
        transport.abort()


class _Connection(asyncio.Protocol):
    """Buffers the data of a connection until its first headers are complete, then passes all data to the server."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._peer: str | None = None
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None
        self._handler: asyncio.Protocol | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Abort the connection, or start the timeout of its headers."""
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
        """Buffer the headers, or pass later data to the server."""
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
        """Pass the event to the server."""
        return self._handler.eof_received() if self._handler is not None else None

    def pause_writing(self) -> None:
        """Pass the event to the server."""
        if self._handler is not None:
            self._handler.pause_writing()

    def resume_writing(self) -> None:
        """Pass the event to the server."""
        if self._handler is not None:
            self._handler.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Count the end of the connection, and pass the event to the server."""
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
    """Return whether ``address`` belongs to this network namespace, by binding a socket to it."""
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


class Port:
    """Listens from the first application until it is closed, also while the application is replaced.

    Therefore other programs of the pod cannot listen on the port in between. A connection belongs to the application
    that is served when its first headers are complete.
    """

    def __init__(self, settings: ProcessSettings) -> None:
        self._settings = settings
        self._runners: list[web.AppRunner] = []
        self._connections: Connections | None = None
        self._server: asyncio.Server | None = None

    async def serve(self, application: web.Application) -> None:
        """Serve ``application`` instead of the previous one. The first call starts to listen."""
        runner = web.AppRunner(
            application,
            access_log=None,
            handle_signals=False,
            keepalive_timeout=_IDLE_SECONDS,
            shutdown_timeout=_GRACE_SECONDS,
        )
        self._runners.append(runner)
        await runner.setup()
        assert runner.server is not None
        if self._connections is not None:
            self._connections.server = runner.server
            return
        self._connections = Connections(runner.server, allow_local=self._settings.allow_local_connections)
        await self._listen(self._connections)

    async def _listen(self, connections: Connections) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(connections, self._settings.host, self._settings.port)
        # With port 0 the system chooses a free port, so its number is logged.
        addresses = [list(each.getsockname()[:2]) for each in self._server.sockets]
        _log.info("listening", extra={"fields": {"addresses": addresses}})

    def stop_listening(self) -> None:
        """Stop accepting connections. Open connections are still served. Idempotent."""
        if self._server is None or self._connections is None:
            return
        self._server.close()
        self._server = None
        _log.info("refused connections", extra={"fields": {"refused": self._connections.refused}})

    async def close(self) -> None:
        """Close all connections. Requests in flight have one second to be answered."""
        self.stop_listening()
        for runner in self._runners:
            await runner.cleanup()


T = TypeVar("T")
_MARKER = "begun"
_THREADS = 2


async def serve(settings: Settings | PooledSettings) -> None:
    """Serve until the attempt is released or a signal is received. A pooled sidecar first waits to be bound."""
    # Few threads, because each may allocate a memory arena, and they only read and write files.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_THREADS))
    _log_as(settings)
    sidecar = _Sidecar(settings)
    try:
        if isinstance(settings, PooledSettings):
            await sidecar.serve_pooled(settings)
        else:
            await sidecar.serve_attempt(settings)
    finally:
        await sidecar.close()


class _Sidecar:
    """The port and the connections to the runners, which remain when a sidecar of a sandbox pool is bound."""

    def __init__(self, settings: ProcessSettings) -> None:
        self._over = None if _is_first(settings) else "the sidecar was restarted and has lost this attempt"
        self._stop = _signals()
        self._runners = Runners(settings.sandbox_socket, settings.verifier_socket)
        self._connecting = asyncio.create_task(self._runners.connect()) if self._over is None else None
        self._port = Port(settings)

    async def serve_pooled(self, settings: PooledSettings) -> None:
        """Wait for the binding, then serve the attempt on the same port."""
        binding = Binding(settings, over=self._over)
        await self._port.serve(binding.application(lambda: self._over or self._runners.missing))
        bound = await self._unless_stopped(binding.settings())
        if bound is None:
            _log.info("ended, and was never bound")
            return
        _log_as(bound)
        _log.info("bound")
        await self.serve_attempt(bound, binding)

    async def serve_attempt(self, settings: Settings, binding: Binding | None = None) -> None:
        """Serve the attempt until it is released or a signal is received."""
        attempt = Attempt(settings, self._runners, over=self._over, record=TerminationLog(settings).record)
        api = Api(attempt, binding.handler if binding is not None else None)
        try:
            await self._port.serve(api.application())
            if binding is not None:
                binding.confirm()
            await self._unless_stopped(attempt.released.wait())
            if self._stop.is_set():
                attempt.request_shutdown()
        finally:
            self._port.stop_listening()
            # Requests in flight fail when the session is closed; their clients repeat them at another sidecar.
            await attempt.close()
            _log.info("ended", extra={"fields": {"released": attempt.released.is_set()}})

    async def close(self) -> None:
        """Close the port and the connections to the runners."""
        self._port.stop_listening()
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        await self._runners.close()
        await self._port.close()

    async def _unless_stopped(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Return the result of ``work``; None if a signal is received first."""
        working, stopping = asyncio.create_task(work), asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
            return working.result() if working.done() else None
        finally:
            for task in (working, stopping):
                task.cancel()
            await asyncio.gather(working, stopping, return_exceptions=True)


def _log_as(settings: Settings | PooledSettings) -> None:
    """Configure the log, with the fields of the episode if it is known."""
    about = episode_fields(settings.episode, attempt=settings.attempt) if isinstance(settings, Settings) else {}
    log_to_stderr(JsonFormatter(lambda: about), settings.log_level)


def _is_first(settings: ProcessSettings) -> bool:
    """Return whether this is the first sidecar process of the attempt. The attempt of an earlier process is lost."""
    settings.directory.mkdir(parents=True, exist_ok=True)
    try:
        os.close(os.open(settings.directory / _MARKER, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        return False
    return True


def _signals() -> asyncio.Event:
    # As PID 1, Python ignores these signals unless they have handlers.
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


class TerminationLog:
    """Writes the file that the kubelet reads."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._written = b""
        self._failure = ""

    def record(self, attempt: Attempt) -> None:
        """Write the message of the attempt, if it has changed."""
        message = final_message(self._settings, attempt)
        data = encode_termination(message) if message is not None else b""
        if data in (b"", self._written.rstrip(b" ")):
            return
        # The file is not truncated first, so that a process killed during the write leaves the old or the new message.
        data = data.ljust(len(self._written))
        try:
            _overwrite(self._settings.termination_log, data)
        except OSError as error:
            if str(error) != self._failure:
                _log.error("the termination message could not be written: %s", error)
            self._failure = str(error)
        else:
            self._written, self._failure = data, ""


def final_message(settings: Settings, attempt: Attempt) -> TerminationMessage | None:
    """Return the termination message; None before the attempt is prepared.

    A lost sandbox is not an outcome, because another pod resumes the episode.
    """
    session, release, evidence = attempt.session, attempt.released_with, attempt.evidence
    if session is None and release is None and attempt.result is None:
        return None
    outcome = _outcome(attempt)
    if outcome is not None and release is not None:
        outcome = msgspec.structs.replace(outcome, result_uri=release.result_uri)
    return TerminationMessage(
        episode_uid=settings.episode_uid,
        attempt=settings.attempt,
        outcome=outcome,
        price=session.usage.price if session is not None else None,
        **msgspec.structs.asdict(evidence),
    )


def _outcome(attempt: Attempt) -> AttemptOutcome | None:
    failure, release, session = attempt.failure, attempt.released_with, attempt.session
    if attempt.result is not None:
        return AttemptOutcome.of(attempt.result)
    if failure is not None and not isinstance(failure, SandboxLost | SandboxStartFailed):
        reason = failure.reason if isinstance(failure, InfrastructureError) else EndReason.INTERNAL_ERROR
        outcome = AttemptOutcome(resolved=False, reason=EndReason(reason), message=str(failure))
    elif release is not None and release.reason is not None:
        outcome = AttemptOutcome(resolved=False, reason=release.reason, message=release.message)
    else:
        return None
    if session is None:
        return outcome
    usage = msgspec.structs.asdict(session.usage)
    return msgspec.structs.replace(outcome, steps=session.steps, rewrites=session.rewrites, **usage)


def _overwrite(path: os.PathLike[str], data: bytes) -> None:
    """Overwrite the file in place. It cannot be replaced by renaming, because it is a mount of the kubelet."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, data)
    finally:
        os.close(descriptor)
