"""Concurrent calls over one framed connection to an untrusted runner.

Each call has a number. Payloads are sent in chunks. At most ``WINDOW`` chunks are unconsumed in each direction, so that
a slow stream does not block other calls. The connection is closed if the runner sends more than it was granted or more
than was requested.

A frame consists of two lengths, a JSON header and a binary payload. Both lengths are checked before the rest is read.
Bytes that are not a frame end the connection. ``dgym/runner/connection.py`` implements the other end.
"""

import asyncio
import contextlib
import errno
import os
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from typing import Any, TypeVar

import msgspec

from dgym.decoding import DECODE_ERRORS
from dgym.errors import InfrastructureError, RunnerFailed, SandboxLost, SetupFailed

T = TypeVar("T")

WINDOW = 8
MAX_CONCURRENT = 32
PREFIX = struct.Struct("!II")
MAX_HEADER = 1024 * 1024
MAX_PAYLOAD = 256 * 1024
CHUNK = 64 * 1024
_MOST_ERRORS = 4096
"""Larger than all values of ``errno`` on Linux (MAX_ERRNO is 4095)."""


class PendingCall:
    """One call in flight: the received part of its answer, and the credit to send more of its body."""

    def __init__(self, number: int, limit: int | None) -> None:
        self.number = number
        self.done: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self.credit = asyncio.Semaphore(WINDOW)
        self.collected = bytearray()
        # With a limit the answer is collected; without a limit it is streamed through the queue.
        self.limit = limit
        self.stream: asyncio.Queue[bytes | None] = asyncio.Queue()

    def receive(self, payload: bytes) -> bool:
        """Add a chunk of the answer.

        Returns:
            True if the chunk is consumed immediately, so that the runner can be granted another.

        Raises:
            FrameError: The runner sent more than it was granted or than was requested.
        """
        if self.limit is None:
            if self.stream.qsize() > WINDOW:
                raise FrameError("the runner sent more than it was granted")
            self.stream.put_nowait(payload)
            return False
        if len(self.collected) + len(payload) > self.limit:
            raise FrameError("the runner sent more than was requested")
        self.collected += payload
        return True

    def finish(self, outcome: dict[str, Any] | Exception) -> None:
        """End the call with the final header or with an error."""
        if not self.done.done():
            if isinstance(outcome, Exception):
                self.done.set_exception(outcome)
                # Mark the exception as retrieved. Otherwise asyncio would log the exception of a cancelled call.
                self.done.exception()
            else:
                self.done.set_result(outcome)
        self.stream.put_nowait(None)
        self.credit.release()


class Channel:
    """The connection. After it is lost, all pending and later calls raise ``SandboxLost``."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._calls: dict[int, PendingCall] = {}
        self._last = 0
        self._lost: str | None = None
        self.acknowledged = 0
        """Number of received frames that acknowledge a call or belong to its answer."""
        self._slots = asyncio.Semaphore(MAX_CONCURRENT)
        self._receiver = asyncio.get_running_loop().create_task(self._receive())

    @property
    def lost(self) -> bool:
        """Whether the connection is gone."""
        return self._lost is not None

    async def call(
        self,
        op: str,
        arguments: dict[str, Any],
        *,
        body: AsyncIterator[bytes] | bytes = b"",
        limit: int,
        deadline: float,
    ) -> tuple[Any, bytes]:
        """Make a call and wait for its whole answer.

        Args:
            op: Name of the operation.
            arguments: Arguments of the operation.
            body: Payload of the request.
            limit: Maximum number of bytes of the answer's payload.
            deadline: Seconds for the whole call.

        Returns:
            The result and the payload of the answer.

        Raises:
            SandboxLost: The connection is lost, or the deadline has passed, which also closes the connection.
            OSError: The operation failed in the sandbox, or the request does not fit into a frame.
            InfrastructureError: The runner refused the request or failed; see ``raise_for_error``.
        """
        async with self._slots, self._open(op, limit) as call:
            try:
                async with asyncio.timeout(deadline):
                    await self._send_request(call, op, arguments, body)
                    final = await call.done
            except TimeoutError:
                self._lose(f"the runner did not answer {op!r} within {deadline:.0f} s")
                raise SandboxLost(self._lost) from None
        return self._result(final, call)

    async def stream(
        self, op: str, arguments: dict[str, Any], *, body: bytes = b"", idle: float
    ) -> AsyncGenerator[bytes, None]:
        """Make a call and yield the chunks of its payload as they arrive. Raises the same exceptions as ``call``.

        ``idle`` is the timeout in seconds for sending the request, and for each chunk of the answer.
        """
        async with self._slots, self._open(op, None) as call:
            await self._within(idle, op, self._send_request(call, op, arguments, body))
            while True:
                chunk = await self._within(idle, op, call.stream.get())
                if chunk is None:
                    break
                yield chunk
                self._send({"id": call.number, "op": "credit", "count": 1})
            raise_for_error(await call.done)

    async def _within(self, seconds: float, op: str, work: Awaitable[T]) -> T:
        try:
            return await asyncio.wait_for(work, seconds)
        except TimeoutError:
            self._lose(f"the runner did not answer {op!r} within {seconds:.0f} s")
            raise SandboxLost(self._lost) from None

    async def close(self, *, request_exit: bool = True) -> None:
        """Close the connection. With ``request_exit``, send the runner the request to exit first."""
        if request_exit and self._lost is None:
            with contextlib.suppress(OSError, RuntimeError):
                self._writer.write(encode_frame({"op": "exit"}))
                await asyncio.wait_for(self._writer.drain(), 1)
        self._lose("the sandbox was closed")
        await asyncio.wait({self._receiver})
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    @contextlib.asynccontextmanager
    async def _open(self, op: str, limit: int | None) -> AsyncIterator[PendingCall]:
        if self._lost is not None:
            raise SandboxLost(self._lost)
        self._last += 1
        call = self._calls[self._last] = PendingCall(self._last, limit)
        try:
            yield call
        finally:
            if self._calls.pop(call.number, None) is not None and self._lost is None and op != "exit":
                self._send({"id": call.number, "op": "cancel"})

    async def _send_request(
        self, call: PendingCall, op: str, arguments: dict[str, Any], body: AsyncIterator[bytes] | bytes
    ) -> None:
        header = {"id": call.number, "op": op, "args": arguments}
        if isinstance(body, bytes) and len(body) <= CHUNK:
            await self._send_and_drain(header, body)
            return
        await self._send_and_drain({**header, "more": True})
        async for chunk in _chunks(body):
            await call.credit.acquire()
            if call.done.done():
                return
            await self._send_and_drain({"id": call.number, "op": "body", "more": True}, chunk)
        await self._send_and_drain({"id": call.number, "op": "body", "more": False})

    def _send(self, header: dict[str, Any]) -> None:
        if self._lost is None:
            self._writer.write(encode_frame(header))

    async def _send_and_drain(self, header: dict[str, Any], payload: bytes = b"") -> None:
        try:
            frame = encode_frame(header, payload)
        except FrameError as error:
            raise OSError(errno.E2BIG, f"the request does not fit into a frame: {error}") from None
        except UnicodeEncodeError as error:
            raise OSError(errno.EILSEQ, f"the request is not text: {error}") from None
        if self._lost is not None:
            raise SandboxLost(self._lost)
        try:
            self._writer.write(frame)
            await self._writer.drain()
        except OSError as error:
            self._lose(f"the connection to the sandbox failed: {error}")
            raise SandboxLost(self._lost) from None

    async def _receive(self) -> None:
        why = "the sandbox's runner is gone"
        try:
            while (frame := await read_frame(self._reader)) is not None:
                self._take(*frame)
        except (FrameError, OSError, ValueError, TypeError) as error:
            why = f"the connection to the sandbox failed: {error}"
        finally:
            self._lose(why)

    def _take(self, header: dict[str, Any], payload: bytes) -> None:
        number = header.get("id")
        call = self._calls.get(number) if isinstance(number, int) else None
        if call is None:
            return  # the call was cancelled meanwhile
        self.acknowledged += 1
        if "begun" in header:
            return
        if "credit" in header:
            call.credit.release()
        elif header.get("more"):
            if call.receive(payload):
                self._send({"id": call.number, "op": "credit", "count": 1})
        else:
            if payload:
                call.receive(payload)
            del self._calls[call.number]
            call.finish(header)

    def _lose(self, why: str) -> None:
        if self._lost is not None:
            return
        self._lost = why
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.finish(SandboxLost(why))
        self._receiver.cancel()
        with contextlib.suppress(RuntimeError):  # the event loop may be closing
            self._writer.close()

    @staticmethod
    def _result(final: dict[str, Any], call: PendingCall) -> tuple[Any, bytes]:
        raise_for_error(final)
        payload = bytes(call.collected)
        if final.get("encoded"):
            try:
                return msgspec.json.decode(payload), b""
            except DECODE_ERRORS as error:
                raise SandboxLost(f"the runner's answer is not JSON: {error}") from None
        return final.get("result"), payload


async def _chunks(body: AsyncIterator[bytes] | bytes) -> AsyncIterator[bytes]:
    if isinstance(body, bytes):
        for start in range(0, len(body), CHUNK):
            yield body[start : start + CHUNK]
        return
    async for piece in body:
        for start in range(0, len(piece), CHUNK):
            yield bytes(piece[start : start + CHUNK])


def raise_for_error(final: dict[str, Any]) -> None:
    """Raise the error in the final header of an answer, if it has one.

    Raises:
        OSError: An operation on files failed in the sandbox.
        SetupFailed: The setup of the sandbox failed.
        InfrastructureError: The runner refused the request as invalid.
        RunnerFailed: The runner has an internal error.
        SandboxLost: The error itself is malformed.
    """
    error = final.get("error")
    if error is None:
        return
    if not isinstance(error, dict):
        raise SandboxLost("the runner's error is malformed")
    kind, message = error.get("type"), str(error.get("message", ""))
    number = error.get("errno")
    if kind == "os" and isinstance(number, int) and 0 < number < _MOST_ERRORS:
        raise OSError(number, message or os.strerror(number), str(error.get("path", "")))
    if kind == "tree":
        raise OSError(errno.EIO, message)
    if kind == "setup":
        raise SetupFailed(message)
    if kind == "invalid":
        raise InfrastructureError(f"the runner refused the request: {message}")
    raise RunnerFailed(f"the runner failed: {message}")


class FrameError(Exception):
    """Received bytes are not a frame, or data to be sent does not fit into a frame."""


def encode_frame(header: dict[str, Any], payload: bytes = b"") -> bytes:
    """Encode one frame.

    Raises:
        FrameError: The header or the payload is too large.
    """
    encoded = msgspec.json.encode(header)
    if len(encoded) > MAX_HEADER or len(payload) > MAX_PAYLOAD:
        raise FrameError(f"a frame of {len(encoded)} + {len(payload)} bytes is too large")
    return PREFIX.pack(len(encoded), len(payload)) + encoded + payload


async def read_frame(reader: asyncio.StreamReader) -> tuple[dict[str, Any], bytes] | None:
    """Read the next frame.

    Returns:
        The header and the payload; None if the peer closed the connection between two frames.

    Raises:
        FrameError: The bytes are not a frame, or the connection ended within a frame.
    """
    try:
        prefix = await reader.readexactly(PREFIX.size)
    except asyncio.IncompleteReadError as error:
        if not error.partial:
            return None
        raise FrameError("the connection ended within a frame") from None
    header_size, payload_size = PREFIX.unpack(prefix)
    if header_size > MAX_HEADER or payload_size > MAX_PAYLOAD:
        raise FrameError(f"a frame of {header_size} + {payload_size} bytes is too large")
    try:
        encoded = await reader.readexactly(header_size)
        payload = await reader.readexactly(payload_size) if payload_size else b""
        return msgspec.json.decode(encoded, type=dict[str, Any]), payload
    except asyncio.IncompleteReadError:
        raise FrameError("the connection ended within a frame") from None
    except DECODE_ERRORS as error:
        raise FrameError(f"a frame's header is not a JSON object: {error}") from None
