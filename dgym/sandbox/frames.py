"""The trusted side of the framed stream between dgym and a runner.

A frame is two lengths, a JSON header and a binary payload. The peer is not trusted: both lengths are bounded before
anything is read, and whatever is not a frame ends the connection. ``dgym/runner/connection.py`` is the other side.
"""

import asyncio
import struct
from typing import Any

import msgspec

PREFIX = struct.Struct("!II")
MAX_HEADER = 1024 * 1024
MAX_PAYLOAD = 256 * 1024
CHUNK = 64 * 1024


class FrameError(Exception):
    """What arrived is not a frame, or what should be sent does not fit into one."""


def encode(header: dict[str, Any], payload: bytes = b"") -> bytes:
    """One frame as bytes."""
    encoded = msgspec.json.encode(header)
    if len(encoded) > MAX_HEADER or len(payload) > MAX_PAYLOAD:
        raise FrameError(f"a frame of {len(encoded)} + {len(payload)} bytes is too large")
    return PREFIX.pack(len(encoded), len(payload)) + encoded + payload


async def read(reader: asyncio.StreamReader) -> tuple[dict[str, Any], bytes] | None:
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
    except (msgspec.DecodeError, RecursionError) as error:
        raise FrameError(f"a frame's header is not a JSON object: {error}") from None
