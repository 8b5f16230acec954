"""One request in flight: its body coming in, its answer going out, both with back-pressure.

Either direction may have at most ``WINDOW`` unconsumed chunks on the way; the receiver grants one more for each it has
consumed. A slow stream therefore holds up neither the connection nor its other requests, and nobody buffers it whole.
"""

import queue
import threading

from . import frames

WINDOW = 8
MAX_NAME = 64 * 1024


class Cancelled(Exception):
    """The client does not want the answer any more."""


class Invalid(Exception):
    """The client asked for something that makes no sense: a mistake in dgym, never the agent's."""


class Request(object):
    """What one operation sees of its client."""

    def __init__(self, connection, ident, op, args, payload, more):
        self.ident = ident
        self.op = op
        self.args = args
        self.cancelled = threading.Event()
        self._connection = connection
        self._first = payload
        self._chunks = queue.Queue() if more else None
        self._credit = threading.Semaphore(WINDOW)

    def body(self):
        """The chunks of the request's body in order; raises ``Cancelled``."""
        if self._first:
            yield self._first
        while self._chunks is not None:
            chunk, more = self._chunks.get()
            if self.cancelled.is_set():
                raise Cancelled
            if chunk:
                yield chunk
            if not more:
                return
            self._connection.send({"id": self.ident, "credit": 1})

    def names(self):
        """The body as names with a final NUL each, however they fall into chunks."""
        rest = b""
        for chunk in self.body():
            names = (rest + chunk).split(b"\0")
            rest = names.pop()
            if len(rest) > MAX_NAME:
                raise Invalid("a name of more than %d bytes" % MAX_NAME)
            for name in names:
                yield name.decode("utf-8")

    def feed(self, chunk, more):
        """Hand over the next chunk of the body (called by the thread that receives)."""
        if self._chunks is None or self._chunks.qsize() > WINDOW:
            raise frames.FrameError("a body chunk nobody asked for")
        self._chunks.put((chunk, more))

    def grant(self, count):
        """The client has consumed ``count`` chunks of the answer."""
        for _ in range(min(count, WINDOW)):
            self._credit.release()

    def cancel(self):
        """Give up: wake whoever waits for the client."""
        self.cancelled.set()
        self._credit.release()
        if self._chunks is not None:
            self._chunks.put((b"", False))

    def send_chunk(self, data):
        """Send part of the answer's payload; waits until the client has room; raises ``Cancelled``."""
        for start in range(0, len(data), frames.CHUNK):
            self._credit.acquire()
            if self.cancelled.is_set():
                raise Cancelled
            self._connection.send({"id": self.ident, "more": True}, data[start : start + frames.CHUNK])

    def answer(self, result, payload=b""):
        """Send the answer: in one frame when it is small, which most are."""
        header = {"id": self.ident, "result": result}
        encoded = frames.encode(result)
        if len(encoded) > frames.CHUNK:
            # Only results without payload grow with what they describe (a manifest, a listing, a debugger's answer).
            header["result"], header["encoded"], payload = None, True, encoded + bytes(payload)
        if len(payload) > frames.CHUNK:
            self.send_chunk(payload)
            payload = b""
        self._connection.send(header, payload)

    def fail(self, error):
        """Send an error: a dict with at least ``type`` and ``message``."""
        self._connection.send({"id": self.ident, "error": error})
