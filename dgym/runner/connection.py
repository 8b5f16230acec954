"""The runner's connection: frames on a byte stream, and the requests in flight.

A frame consists of two lengths, a JSON header and a binary payload. Each side checks both lengths before it reads
further, so that a broken or hostile peer causes an error and cannot exhaust memory. The trusted side, in
``dgym/sandbox``, deliberately shares no code with this module.

The body of a request and its answer may each have at most ``WINDOW`` unconsumed chunks in flight. The receiver grants
one more chunk for each chunk that it has consumed. A slow stream therefore does not block the other requests of the
connection, and is never buffered as a whole.
"""

import json
import os
import queue
import select
import struct
import threading

from .descriptors import write_all

PREFIX = struct.Struct("!II")
MAX_HEADER = 1024 * 1024
MAX_PAYLOAD = 256 * 1024
CHUNK = 64 * 1024
WINDOW = 8
MAX_NAME = 64 * 1024


def encode(value):
    """Returns compact JSON in UTF-8. Lone surrogates, which UTF-8 cannot encode, become question marks."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


def readiness(*descriptors):
    """Returns an object whose ``poll`` waits until one of the descriptors is readable."""
    ready = select.poll()
    for descriptor in descriptors:
        ready.register(descriptor, select.POLLIN)
    return ready


class FrameError(Exception):
    """The peer violated the protocol. The connection cannot be used any more."""


class Connection(object):
    """A framed connection over file descriptors. Only one thread may receive; any thread may send.

    ``wake`` is a descriptor that becomes readable when a signal arrives. The signal may arrive in another thread, or
    just before this thread reads. Its handler would then run only after the next frame.
    """

    def __init__(self, read_fd, write_fd, wake=None):
        self._read_fd = read_fd
        self._ready = None if wake is None else readiness(read_fd, wake)
        self._write_fd = write_fd
        self._buffer = bytearray()
        self._sending = threading.Lock()
        self._silent = False

    def receive(self):
        """Returns the next ``(header, payload)``, or None if the peer closed the connection between two frames.

        Raises ``FrameError``.
        """
        prefix = self._take(PREFIX.size, at_start=True)
        if prefix is None:
            return None
        header_size, payload_size = PREFIX.unpack(prefix)
        if header_size > MAX_HEADER or payload_size > MAX_PAYLOAD:
            raise FrameError("a frame of %d + %d bytes is too large" % (header_size, payload_size))
        try:
            header = json.loads(self._take(header_size).decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise FrameError("a frame's header is not JSON: %s" % error)
        if not isinstance(header, dict):
            raise FrameError("a frame's header is not an object")
        return header, self._take(payload_size)

    def send(self, header, payload=b""):
        """Send one frame; blocks while the peer does not read. Raises ``FrameError``, ``BrokenPipeError``."""
        encoded = encode(header)
        if len(encoded) > MAX_HEADER or len(payload) > MAX_PAYLOAD:
            raise FrameError("a frame of %d + %d bytes is too large" % (len(encoded), len(payload)))
        if self._silent:
            raise BrokenPipeError("the runner is ending")
        data = b"".join((PREFIX.pack(len(encoded), len(payload)), encoded, payload))
        with self._sending:
            write_all(self._write_fd, data)

    def silence(self):
        """Refuse to send from now on. Otherwise the client would get an answer for a command killed at shutdown."""
        self._silent = True

    def _take(self, size, at_start=False):
        buffer = self._buffer
        while len(buffer) < size:
            if self._ready is not None:
                try:
                    self._ready.poll()
                except OSError:
                    # A program has lowered RLIMIT_NOFILE of the runner, which poll() refuses. The read waits too, but a
                    # signal that arrives in another thread is then handled only after the next frame.
                    pass
            piece = os.read(self._read_fd, 64 * 1024)
            if not piece:
                if at_start and not buffer:
                    return None
                raise FrameError("the connection ended within a frame")
            buffer += piece
        taken = bytes(buffer[:size])
        del buffer[:size]
        return taken


class RequestError(Exception):
    """A request failed. ``kind`` is the type of the error in the protocol."""

    kind = "invalid"


class Invalid(RequestError):
    """The request is malformed. This is a defect of dgym; the agent cannot cause it."""


class Cancelled(RequestError):
    """The client has cancelled the request."""

    kind = "cancelled"


class Request(object):
    """A request in flight. Its body and its answer are streams with back-pressure."""

    def __init__(self, connection, ident, op, args, payload, more):
        self.ident = ident
        self.op = op
        self.args = args
        self.cancelled = threading.Event()
        self._connection = connection
        self._first = payload
        self._chunks = queue.Queue() if more else None
        self._credit = threading.Semaphore(WINDOW)

    def acknowledge(self):
        """Report that the operation begins. If this frame is missing, the request has not started."""
        self._connection.send({"id": self.ident, "begun": True})

    def body(self):
        """Yields the chunks of the request's body in order; raises ``Cancelled``."""
        if self._first:
            yield self._first
        while self._chunks is not None:
            chunk, more = self._chunks.get()
            if self.cancelled.is_set():
                raise Cancelled("cancelled")
            if chunk:
                yield chunk
            if not more:
                return
            self._connection.send({"id": self.ident, "credit": 1})

    def names(self):
        """Yields the names in the body. Each name ends with a NUL and may span several chunks. Raises ``Invalid``."""
        rest = b""
        for chunk in self.body():
            names = (rest + chunk).split(b"\0")
            rest = names.pop()
            if len(rest) > MAX_NAME:
                raise Invalid("a name of more than %d bytes" % MAX_NAME)
            for name in names:
                yield name.decode("utf-8")

    def feed(self, chunk, more):
        """Add the next chunk of the body. Called by the thread that receives."""
        if self._chunks is None or self._chunks.qsize() > WINDOW:
            raise FrameError("a body chunk beyond the credit")
        self._chunks.put((chunk, more))

    def grant(self, count):
        """Allow ``count`` more chunks of the answer, which the client reported as consumed."""
        for _ in range(min(count, WINDOW)):
            self._credit.release()

    def cancel(self):
        """Cancel the request, and wake its operation if it waits for the client."""
        self.cancelled.set()
        self._credit.release()
        if self._chunks is not None:
            self._chunks.put((b"", False))

    def send_chunk(self, data):
        """Send part of the answer's payload. Blocks until the client grants credit; raises ``Cancelled``."""
        for start in range(0, len(data), CHUNK):
            self._credit.acquire()
            if self.cancelled.is_set():
                raise Cancelled("cancelled")
            self._connection.send({"id": self.ident, "more": True}, data[start : start + CHUNK])

    def answer(self, result, payload=b""):
        """Send the answer, in one frame if it is small."""
        header = {"id": self.ident, "result": result}
        encoded = encode(result)
        if len(encoded) > CHUNK:
            # Only results without a payload can become this large: a manifest, a listing, an answer of the debugger.
            header["result"], header["encoded"], payload = None, True, encoded + bytes(payload)
        if len(payload) > CHUNK:
            self.send_chunk(payload)
            payload = b""
        self._connection.send(header, payload)

    def fail(self, error):
        """Send an error: a dict with at least ``type`` and ``message``."""
        self._connection.send({"id": self.ident, "error": error})
