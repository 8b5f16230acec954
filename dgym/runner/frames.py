"""Frames on a byte stream: two lengths, a JSON header, a binary payload.

Both sides bound both lengths before they read on, so that a broken or hostile peer costs an error and not memory.
``dgym/sandbox/frames.py`` is the same format for the other side, which shares no code with this one on purpose.
"""

import json
import os
import struct
import threading

PREFIX = struct.Struct("!II")
MAX_HEADER = 1024 * 1024
MAX_PAYLOAD = 256 * 1024
CHUNK = 64 * 1024


def encode(value):
    """Compact JSON that every decoder takes: what is not text in UTF-8 (lone surrogates) becomes a question mark."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


class FrameError(Exception):
    """The peer does not speak the protocol; the connection cannot be used any more."""


class Connection(object):
    """One framed connection over file descriptors: one thread receives, any thread sends."""

    def __init__(self, read_fd, write_fd):
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._buffer = bytearray()
        self._sending = threading.Lock()
        self._silent = False

    def receive(self):
        """The next ``(header, payload)``; None when the peer has closed between two frames."""
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
        """Send one frame; blocks while the peer does not read."""
        encoded = encode(header)
        if len(encoded) > MAX_HEADER or len(payload) > MAX_PAYLOAD:
            raise FrameError("a frame of %d + %d bytes is too large" % (len(encoded), len(payload)))
        if self._silent:
            raise BrokenPipeError("the runner is ending")
        data = memoryview(b"".join((PREFIX.pack(len(encoded), len(payload)), encoded, payload)))
        with self._sending:
            while data:
                data = data[os.write(self._write_fd, data) :]

    def silence(self):
        """Send nothing from now on: what ends because we end must not look like an answer."""
        self._silent = True

    def _take(self, size, at_start=False):
        buffer = self._buffer
        while len(buffer) < size:
            piece = os.read(self._read_fd, 64 * 1024)
            if not piece:
                if at_start and not buffer:
                    return None
                raise FrameError("the connection ended within a frame")
            buffer += piece
        taken = bytes(buffer[:size])
        del buffer[:size]
        return taken
