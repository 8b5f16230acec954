"""Concurrent calls over one framed connection to an untrusted runner.

Each call has a number. Payloads travel in chunks, at most ``WINDOW`` of them unconsumed in either direction, so that
one slow stream blocks no other call; a runner that exceeds its credit or the size requested is disconnected.

A frame is two lengths, a JSON header and a binary payload. Both lengths are bounded before anything is read, and
bytes that are no frame end the connection. ``dgym/runner/connection.py`` is the other side.
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
"""Above every number of an error on Linux."""


class Call:
    """One call in flight: the part of its answer received so far, and the credit to send more of its body."""

    def __init__(self, number: int, limit: int | None) -> None:
        self.number = number
        self.done: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self.credit = asyncio.Semaphore(WINDOW)
        self.collected = bytearray()
        # A limit means that the answer is collected; without one it is streamed through the queue.
        self.limit = limit
        self.stream: asyncio.Queue[bytes | None] = asyncio.Queue()

    def receive(self, payload: bytes) -> bool:
        """Receive a chunk; True when it is consumed at once."""
        if self.limit is None:
            if self.stream.qsize() > WINDOW:
                raise FrameError("the runner sent more than it was granted")
            self.stream.put_nowait(payload)
            return False
        if len(self.collected) + len(payload) > self.limit:
            raise FrameError("the runner sent more than it was asked for")
        self.collected += payload
        return True

    def finish(self, outcome: dict[str, Any] | Exception) -> None:
        """End the call with the final header or with an error."""
        if not self.done.done():
            if isinstance(outcome, Exception):
                self.done.set_exception(outcome)
                # Retrieved here, or asyncio would log it where a cancelled call never does.
                self.done.exception()
            else:
                self.done.set_result(outcome)
        self.stream.put_nowait(None)
        self.credit.release()


class Channel:
    """The connection. Once it is lost every pending and later call raises ``SandboxLost``."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._calls: dict[int, Call] = {}
        self._last = 0
        self._lost: str | None = None
        self.acknowledged = 0
        """Frames that have acknowledged a call, or answered it."""
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
        """Make a call and wait for its whole answer: the result and its payload (at most ``limit`` bytes)."""
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
        """Make a call whose payload is consumed as it arrives.

        ``idle`` bounds the sending of the request and the wait for each chunk of the answer.
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

    async def close(self, *, tell: bool = True) -> None:
        """End the connection; with ``tell`` the runner is asked to exit first."""
        if tell and self._lost is None:
            with contextlib.suppress(OSError, RuntimeError):
                self._writer.write(encode_frame({"op": "exit"}))
                await asyncio.wait_for(self._writer.drain(), 1)
        self._lose("the sandbox was closed")
        await asyncio.wait({self._receiver})
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    @contextlib.asynccontextmanager
    async def _open(self, op: str, limit: int | None) -> AsyncIterator[Call]:
        if self._lost is not None:
            raise SandboxLost(self._lost)
        self._last += 1
        call = self._calls[self._last] = Call(self._last, limit)
        try:
            yield call
        finally:
            if self._calls.pop(call.number, None) is not None and self._lost is None and op != "exit":
                self._send({"id": call.number, "op": "cancel"})

    async def _send_request(
        self, call: Call, op: str, arguments: dict[str, Any], body: AsyncIterator[bytes] | bytes
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

    def _send(self, header: dict[str, Any], payload: bytes = b"") -> None:
        if self._lost is None:
            self._writer.write(encode_frame(header, payload))

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
    def _result(final: dict[str, Any], call: Call) -> tuple[Any, bytes]:
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
    """Raise what the runner reported, as the exception the protocol promises."""
    error = final.get("error")
    if error is None:
        return
    if not isinstance(error, dict):
        raise SandboxLost("the runner's error is not one")
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
    """What arrived is not a frame, or what should be sent does not fit into one."""


def encode_frame(header: dict[str, Any], payload: bytes = b"") -> bytes:
    """One frame as bytes."""
    encoded = msgspec.json.encode(header)
    if len(encoded) > MAX_HEADER or len(payload) > MAX_PAYLOAD:
        raise FrameError(f"a frame of {len(encoded)} + {len(payload)} bytes is too large")
    return PREFIX.pack(len(encoded), len(payload)) + encoded + payload


async def read_frame(reader: asyncio.StreamReader) -> tuple[dict[str, Any], bytes] | None:
    """The next frame, or None when the peer closed between two frames."""
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
