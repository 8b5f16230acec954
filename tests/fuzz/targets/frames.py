"""Target for frames of a runner, which untrusted code may control, and for the runner's own reader.

For any bytes, a call returns an answer of its type or raises an error that callers expect.
"""

import asyncio
import os
import socket
import struct
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
from hypothesis import strategies as st

from dgym.errors import InfrastructureError, SetupFailed
from dgym.runner.connection import Connection
from dgym.runner.connection import FrameError as RunnersFrameError
from dgym.sandbox import DebugRequest, SandboxSpec
from dgym.sandbox._client import RunnerClient
from tests.fuzz.engine import Target
from tests.fuzz.mutation import json_values, mutated

_SECONDS = 5.0
_EXPECTED = (OSError, SetupFailed, InfrastructureError)
_RUN = {"exit_status": 0, "ended_by": "exit", "output_bytes": 2, "truncated_bytes": 0, "duration_seconds": 0.1}
_STAT = {"path": "a", "type": "file", "size": 1, "mode": 420, "mtime_ns": 1, "real_path": "/w/a", "target": ""}
_POINT = {"number": 1, "file": "a.py", "line": 2, "ignore_count": 0, "hits": 0, "enabled": True, "temporary": False}
_DEBUG = {
    "state": "stopped",
    "output": "x",
    "program_output": "",
    "frame": {"file": "a", "line": 1, "function": "f"},
    "source": ["a"],
    "source_start": 1,
    "breakpoints": [_POINT],
    "notices": ["n"],
}
_RUNNER = {"pid": 2, "workspace": "/w", "scratch": "/s"}
_ERRORS = [
    {"type": "os", "errno": 2, "message": "", "path": "a"},
    {"type": "tree", "message": "m"},
    {"type": "setup", "message": "m"},
    {"type": "invalid", "message": "m"},
]
_MANIFEST = (
    b'["a.py", {"type": "file", "mode": 420, "size": 3, "sha256": "ab"}]\n["b", {"type": "symlink"}]\n["c", null]\n'
)

_RESULTS: list[Any] = [_RUN, [_STAT], _DEBUG, _RUNNER, [1, 2], 3, {"sha256": "", "paths": 1}, None]
_OPERATIONS: dict[str, Callable[[RunnerClient], Coroutine[Any, Any, Any]]] = {
    "configure": lambda client: client.configure(SandboxSpec()),
    "run": lambda client: client.run("true", report=True),
    "shell": lambda client: client.shell("true"),
    "stat": lambda client: client.stat(["a"]),
    "list": lambda client: client.list_directory(),
    "read": lambda client: client.read_file("a", limit=1024),
    "write": lambda client: client.write_file("a", b"x" * 200_000),
    "remove": lambda client: client.remove(["a"]),
    "manifest": lambda client: client.manifest(limit=1000),
    "changed": lambda client: client.changed(),
    "digest": lambda client: client.digest(),
    "debug": lambda client: client.debug(DebugRequest(command="n", entrypoint="python a.py")),
    "processes": lambda client: client.processes(),
    "end": lambda client: client.end_processes(),
    "pack": lambda client: _collect(client),
}


async def _collect(client: RunnerClient) -> int:
    size = 0
    async for chunk in client.get_archive(["a"]):
        size += len(chunk)
        if size > 1024**2:
            break
    return size


def frame(header: object, payload: bytes = b"") -> bytes:
    encoded = header if isinstance(header, bytes) else msgspec.json.encode(header)
    return struct.pack("!II", len(encoded), len(payload)) + encoded + payload


def _with(examples: list[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """One of the examples with another value for one of its keys."""

    def change(example: dict[str, Any], place: int, value: object) -> dict[str, Any]:
        return {**example, sorted(example)[place % len(example)]: value}

    return st.builds(change, st.sampled_from(examples), st.integers(0, 15), json_values())


_IDENTITIES = st.just(1) | st.integers(0, 3) | json_values()
_CONTENTS = (
    st.sampled_from([{"result": result} for result in _RESULTS])
    | _with([result for result in _RESULTS if isinstance(result, dict)]).map(lambda result: {"result": result})
    | _with(_ERRORS).map(lambda error: {"error": error})
    | st.builds(
        lambda name, value: {name: value},
        st.sampled_from(("result", "error", "more", "credit", "begun", "encoded", "other")),
        st.just(True) | json_values(),
    )
)


_PAYLOADS = st.sampled_from(
    [b"", b"ok", _MANIFEST, _MANIFEST[:-1], b"x" * 70_000, *(msgspec.json.encode(each) for each in _RESULTS)]
)
_VALID = [
    frame({"id": 1, "begun": True}) + frame({"id": 1, "result": _RUN}, b"ok"),
    frame({"id": 1, "more": True}, _MANIFEST) + frame({"id": 1, "result": None}),
    frame({"id": 1, "encoded": True, "result": None}, msgspec.json.encode([_STAT])),
    frame({"id": 1, "error": _ERRORS[0]}),
    frame({"id": 1, "credit": 1}) + frame({"id": 1, "result": _DEBUG}),
]


def _encoded(identity: object, content: dict[str, Any], payload: bytes) -> bytes:
    try:
        return frame({"id": identity, **content}, payload)
    except (msgspec.MsgspecError, OverflowError, UnicodeEncodeError):
        return frame(b'{"id": 1, "result": ' + b"9" * 400 + b"}")


_FRAMES = st.builds(_encoded, _IDENTITIES, _CONTENTS, _PAYLOADS | mutated([_MANIFEST]))
_STREAMS = st.lists(_FRAMES, min_size=1, max_size=5).map(b"".join) | mutated(_VALID)
_INPUTS = st.tuples(st.sampled_from(sorted(_OPERATIONS)), _STREAMS)


def check(value: tuple[str, bytes]) -> None:
    """Answer a call with the bytes and close the connection. Then read the bytes with the runner's own reader."""
    operation, stream = value
    asyncio.run(_answered(_OPERATIONS[operation], stream))
    _read_by_runner(stream)


async def _answered(operation: Callable[[RunnerClient], Coroutine[Any, Any, Any]], stream: bytes) -> None:
    escaped: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: escaped.append(context))
    ours, theirs = socket.socketpair()
    client = RunnerClient(*await asyncio.open_connection(sock=ours))
    _, runner = await asyncio.open_connection(sock=theirs)
    call = asyncio.ensure_future(operation(client))
    await asyncio.sleep(0)
    runner.write(stream)
    try:
        async with asyncio.timeout(_SECONDS):
            runner.write_eof()
            await call
    except TimeoutError:
        raise AssertionError("the call does not end although the runner has hung up") from None
    except _EXPECTED:
        pass
    finally:
        runner.close()
        await client.close()
    assert not escaped, escaped


def _read_by_runner(stream: bytes) -> None:
    reading, writing = os.pipe()
    try:
        # The bytes must fit into the pipe's buffer, because no other thread reads.
        os.write(writing, stream[:60_000])
        os.close(writing)
        connection = Connection(reading, -1)
        while connection.receive() is not None:
            pass
    except RunnersFrameError:
        pass
    finally:
        os.close(reading)


TARGET = Target("frames", _INPUTS, check)
