"""The messages between the debugger's host and the debugged program: frames on a descriptor, and their fields.

Code of the program can write to the channel, so the host validates every message.
"""

import json
import os
import struct

from ..descriptors import identity, move_high, write_all

FRAME_LIMIT = 64 * 1024 * 1024
HEADER = struct.Struct(">I")
_SOURCE_LINES = 100
_NUMBERS = 10000  # limits how many breakpoint numbers a program can make the host store


def encode(message):
    """Returns a frame: four bytes of length, then JSON. JSON is in ASCII, which preserves lone surrogates."""
    data = json.dumps(message).encode("ascii")
    return HEADER.pack(len(data)) + data


class Decoder(object):
    """Splits a stream of bytes into messages."""

    def __init__(self):
        self._buffer = bytearray()

    def feed(self, data):
        """Add bytes of the stream."""
        self._buffer += data

    def next(self):
        """Returns the next message, or None if it is not complete. Raises ValueError for an invalid frame."""
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
            raise ValueError("a frame that is not an object")
        return message


class Channel(object):
    """The program's end of the connection.

    Does nothing in forked children, and after the program has closed or replaced the descriptor.
    """

    def __init__(self, descriptor):
        self._descriptor = move_high(descriptor)
        self._identity = identity(self._descriptor)
        self._pid = os.getpid()
        self._decoder = Decoder()

    def usable(self):
        """Returns True if the descriptor is still the connection and this process opened it."""
        return os.getpid() == self._pid and identity(self._descriptor) == self._identity

    def send(self, message):
        """Send one frame. Returns False if the connection is lost."""
        if not self.usable():
            return False
        try:
            write_all(self._descriptor, encode(message))
        except OSError:
            return False
        return True

    def report_child(self, number):
        """Report from a forked child that it reached the breakpoint.

        The message is short enough for a single write, so that it does not mix with a message of the parent.
        """
        if identity(self._descriptor) == self._identity:
            try:
                write_all(self._descriptor, encode({"type": "child", "number": number}))
            except OSError:
                pass

    def receive(self):
        """Wait for the next message. Returns None if the connection has ended. Raises ValueError like ``Decoder``."""
        while True:
            message = self._decoder.next()
            if message is not None:
                return message
            try:
                data = os.read(self._descriptor, 65536) if self.usable() else b""
            except OSError:
                data = b""
            if not data:
                return None
            self._decoder.feed(data)


def checked(message):
    """Returns the known fields of a message with the expected types. Raises ValueError for a malformed message."""
    kind = message.get("type")
    if kind in ("quit", "restart"):
        return {"type": kind}
    if kind not in ("hello", "stop", "end", "child"):
        raise ValueError("an unknown message")
    try:
        if kind == "child":
            return {"type": kind, "number": int(message["number"]) % _NUMBERS}
        if kind == "hello":
            return _hello(message)
        return {
            "type": kind,
            "output": _text(message.get("output", "")),
            "cut": int(message.get("cut", 0)),
            "failed": message.get("failed") is True,
            "frame": _frame(message.get("frame")),
            "source": [_text(line) for line in message.get("source", [])[:_SOURCE_LINES]],
            "source_start": int(message.get("source_start", 0)),
            "breakpoints": [breakpoint_fields(entry) for entry in message.get("breakpoints", [])],
            "next_number": int(message.get("next_number", 1)),
            "files": [(_text(path), int(changed), int(size)) for path, changed, size in message.get("files", [])],
            "notices": [_text(notice) for notice in message.get("notices", [])],
            "lost": [_text(each) for each in message.get("lost", [])],
        }
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(str(error))


def _hello(message):
    """Returns the launch that a program of a shell command reports. Its paths are not changed by the host."""
    launch = {name: message.get(name) for name in ("kind", "target", "argv", "orig_argv")}
    words = launch["orig_argv"]
    if not (isinstance(words, list) and words and all(isinstance(word, str) for word in words)):
        raise ValueError("a program without a command line")
    notices = [_text(notice) for notice in message.get("notices", [])]
    return dict(launch, type="hello", is_pytest=bool(message.get("is_pytest")), notices=notices)


def _text(value):
    # File names and source may contain lone surrogates, which cannot be encoded in an answer of the runner.
    return value.encode("utf-8", "backslashreplace").decode("utf-8")


def _frame(value):
    if value is None:
        return None
    return {"file": _text(value["file"]), "line": int(value["line"]), "function": _text(value["function"])}


def breakpoint_fields(value):
    """Returns the fields of an entry of the table of breakpoints. Raises KeyError, TypeError, ValueError."""
    condition = value.get("condition")
    return {
        "number": int(value["number"]),
        "file": _text(value["file"]),
        "line": int(value["line"]),
        "condition": None if condition is None else _text(condition),
        "ignore_count": int(value.get("ignore_count") or 0),
        "hits": int(value.get("hits") or 0),
        "enabled": value.get("enabled") is not False,
        "temporary": bool(value.get("temporary")),
    }
