"""What the debugger's host and the debugged program have in common: frames on a descriptor, and bounded output."""

import json
import struct

FDS_VARIABLE = "DGYM_DEBUG_FDS"
FRAME_LIMIT = 64 * 1024 * 1024
HEADER = struct.Struct(">I")


def encode(message):
    """One frame: four bytes of length, then JSON (ASCII, so that lone surrogates survive)."""
    data = json.dumps(message).encode("ascii")
    return HEADER.pack(len(data)) + data


class Decoder(object):
    """Cuts a stream of bytes into messages."""

    def __init__(self):
        self._buffer = bytearray()

    def feed(self, data):
        """Add what was read."""
        self._buffer += data

    def next(self):
        """The next complete message, or None; ValueError when the stream is not ours."""
        if len(self._buffer) < HEADER.size:
            return None
        (length,) = HEADER.unpack_from(self._buffer)
        if length > FRAME_LIMIT:
            raise ValueError("a frame of %d bytes" % length)
        end = HEADER.size + length
        if len(self._buffer) < end:
            return None
        data = bytes(self._buffer[HEADER.size : end])
        del self._buffer[:end]
        message = json.loads(data.decode("utf-8"))
        if not isinstance(message, dict):
            raise ValueError("a frame that is no object")
        return message


class HeadTail(object):
    """Keeps the beginning and the end of an output of any length."""

    def __init__(self, limit):
        self._half = max(limit // 2, 1)
        self._head = bytearray()
        self._tail = bytearray()
        self._total = 0

    def add(self, data):
        """Append bytes; what is in the middle of too much is forgotten."""
        self._total += len(data)
        room = self._half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data[-self._half :]
        if len(self._tail) > 2 * self._half:
            del self._tail[: -self._half]

    def text(self):
        """``(text, bytes cut)``; the cut is marked in the text."""
        tail = self._tail[-self._half :]
        cut = self._total - len(self._head) - len(tail)
        if not cut:
            return (self._head + tail).decode("utf-8", "replace"), 0
        head = self._head.decode("utf-8", "replace")
        return "%s\n[... %d bytes left out ...]\n%s" % (head, cut, tail.decode("utf-8", "replace")), cut
