"""Tests of the runner's connection: transports, hostile peers and memory."""

import asyncio
import contextlib
import json
import os
import shutil
import socket
import stat
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from dgym.errors import InfrastructureError, SandboxLost
from dgym.sandbox import RunnerClient, SandboxSpec, _channel

RESIDENT_BOUND_KIB = 16 * 1024


def frame(header: dict, payload: bytes = b"") -> bytes:
    return _channel.encode_frame(header, payload)


@pytest.mark.parametrize(
    "hostile",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        struct.pack("!II", 2**31, 0),
        struct.pack("!II", 2, 2**31) + b"{}",
        struct.pack("!II", 4, 0) + b"nope",
        struct.pack("!II", 2, 0) + b"[]",
        struct.pack("!II", 60_000, 0) + b"[" * 60_000,
        frame({"op": "stat"}),
        frame({"id": "x", "op": "stat"}),
        frame({"id": 1, "op": "credit", "count": "x"}),
        b"".join(frame({"id": number, "op": "run", "more": True}) for number in range(200)),
        frame({"id": 1, "op": "write", "args": {"path": "x", "mode": None}, "more": True})
        + frame({"id": 1, "op": "body", "more": True}, b"x") * 200,
    ],
    ids=range(11),
)
async def test_invalid_frames_end_the_runner_or_return_an_error(run_plain, interpreter, hostile):
    process, ours = run_plain(interpreter)
    with contextlib.suppress(OSError):
        ours.sendall(hostile)
        ours.shutdown(socket.SHUT_WR)
    assert await asyncio.to_thread(process.wait, 90) in (0, 70)


async def test_mistakes_of_the_client_are_answered_and_break_nothing(run_plain, interpreter):
    process, ours = run_plain(interpreter)
    reader, writer = await asyncio.open_connection(sock=ours)
    for number, (op, arguments) in enumerate([("stat", {"paths": []}), ("nonsense", {}), ("__init__", {}), (None, [])]):
        writer.write(frame({"id": number, "op": op, "args": arguments}))
        header, _ = await _channel.read_frame(reader)
        assert (header["id"], header["error"]["type"]) == (number, "invalid")
    client = RunnerClient(reader, writer)
    await client.close()
    assert await asyncio.to_thread(process.wait, 90) == 0


async def test_configure_happens_once(runner, tmp_path):
    with pytest.raises(InfrastructureError, match="configured already"):
        await runner.client.configure(SandboxSpec(workspace=str(tmp_path)))


HOSTILE_ANSWERS = {
    "a wrong shape": frame({"id": 1, "result": {"unexpected": True}}),
    "no result": frame({"id": 1}),
    "an error that is none": frame({"id": 1, "error": "text"}),
    "more than asked for": b"".join(frame({"id": 1, "more": True}, b"x" * 60_000) for _ in range(40)),
    "a length out of bounds": struct.pack("!II", 2**31, 2**31),
    "not JSON": struct.pack("!II", 3, 0) + b"abc",
    "the end": b"",
    "half a frame": frame({"id": 1, "result": {}})[:9],
    "deep nesting": struct.pack("!II", 100_006, 0) + b'{"id":' + b"[" * 100_000,
    "not UTF-8": struct.pack("!II", 24, 0) + b'{"id": 1, "result": "\xff"}',
    "not UTF-8, encoded": frame({"id": 1, "result": None, "encoded": True}, b'{"cwd": "\xff"}'),
    "deep nesting, encoded": frame({"id": 1, "result": None, "encoded": True}, b"[" * 100_000),
    "JSON that is none, encoded": frame({"id": 1, "result": None, "encoded": True}, b"{"),
}


@pytest.mark.attack("stalled-runner")
@pytest.mark.parametrize("answer", HOSTILE_ANSWERS.values(), ids=HOSTILE_ANSWERS.keys())
async def test_a_hostile_runner_loses_the_sandbox_and_nothing_else(answer):
    ours, theirs = socket.socketpair()
    client = RunnerClient(*await asyncio.open_connection(sock=ours))
    reader, writer = await asyncio.open_connection(sock=theirs)

    async def misbehave() -> None:
        await _channel.read_frame(reader)
        writer.write(answer)
        writer.write_eof()

    server = asyncio.create_task(misbehave())
    with pytest.raises(SandboxLost):
        await client.run("true")
    await server
    with pytest.raises(SandboxLost):
        await client.run("true", timeout_seconds=0.1)
    await client.close()
    writer.close()


@pytest.mark.parametrize("number", [2**70, -1, 0])
async def test_a_number_of_no_error_is_a_fault_of_the_runner(number):
    with pytest.raises(InfrastructureError, match="the runner failed"):
        _channel.raise_for_error({"error": {"type": "os", "errno": number}})


async def test_a_manifest_that_is_not_utf_8_is_refused():
    with pytest.raises(SandboxLost, match="manifest cannot be decoded"):
        await manifest_of(b'["\xff", {"type": "file"}]\n')


@pytest.mark.parametrize("name", ["../evil", "/etc/passwd", "a//b", ".", "a/./b", ""])
async def test_a_manifest_that_names_other_places_is_refused(name):
    with pytest.raises(SandboxLost, match="names"):
        await manifest_of(json.dumps([name, {"type": "file"}]).encode() + b"\n")


async def manifest_of(answer):
    """Return the manifest that the client decodes from these bytes."""
    ours, theirs = socket.socketpair()
    client = RunnerClient(*await asyncio.open_connection(sock=ours))
    reader, writer = await asyncio.open_connection(sock=theirs)
    pending = asyncio.create_task(client.manifest())
    await _channel.read_frame(reader)
    writer.write(frame({"id": 1, "result": {}}, answer))
    try:
        return await pending
    finally:
        await client.close()
        writer.close()


@pytest.mark.attack("stalled-runner")
async def test_a_manifest_without_end_is_refused():
    ours, theirs = socket.socketpair()
    client = RunnerClient(*await asyncio.open_connection(sock=ours))
    reader, writer = await asyncio.open_connection(sock=theirs)
    line = json.dumps(["x" * 32_000, {"type": "file"}]).encode() + b"\n"

    async def repeat() -> None:
        while (received := await _channel.read_frame(reader)) is not None and received[0].get("op") != "cancel":
            writer.write(frame({"id": 1, "more": True}, line))
            await writer.drain()

    server = asyncio.create_task(repeat())
    async with asyncio.timeout(60):
        with pytest.raises(SandboxLost, match="larger than"):
            await client.manifest()
        await server
    await client.close()
    writer.close()


async def test_a_lost_connection_raises_in_every_pending_call(runner):
    calls = [asyncio.create_task(runner.client.run("sleep 600", timeout_seconds=600)) for _ in range(10)]
    await runner.client.stat(["."])
    runner.process.kill()
    for call in calls:
        with pytest.raises(SandboxLost):
            await call
    assert runner.client.lost


async def test_the_runner_stays_small(start_runner, interpreter):
    runner = await start_runner(interpreter)
    client = runner.client
    for _ in range(10):
        await client.run(["true"])
        await client.shell("true")
        await client.write_file("file", b"x" * 200_000)
        await client.read_file("file")
        await client.manifest()
    await client.run("head -c 3000000 /dev/zero")
    await client.run("sleep 600", timeout_seconds=0.1)
    await asyncio.gather(*(client.run("sleep 0.05") for _ in range(16)))
    assert runner.resident_kib() <= RESIDENT_BOUND_KIB


async def test_the_protocol_works_over_standard_streams_without_stray_output(interpreter, helpers, tmp_path):
    process = await asyncio.create_subprocess_exec(
        *("env", "-i", interpreter, "-I", "-S", "-B", helpers.compiled_main(interpreter), "--stdio"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    client = RunnerClient(process.stdout, process.stdin)
    await client.configure(SandboxSpec(workspace=str(tmp_path)))
    assert (await client.run("echo hi; cat")).text == "hi\n"
    assert (await client.run("echo stray >/proc/$PPID/fd/1; echo hi")).text == "hi\n"
    await client.close()
    assert await asyncio.wait_for(process.wait(), 90) == 0


async def test_a_unix_socket_is_open_to_the_group_and_gone_once_taken(interpreter, helpers, tmp_path):
    path = tmp_path / "runner.sock"
    process = subprocess.Popen(
        ["env", "-i", interpreter, "-I", "-S", "-B", helpers.compiled_main(interpreter), "--socket", str(path)],
        start_new_session=True,
    )
    await helpers.eventually(path.exists)
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    client = RunnerClient(*await asyncio.open_unix_connection(str(path)))
    await client.configure(SandboxSpec(workspace=str(tmp_path / "workspace")))
    assert (await client.run("echo hi")).text == "hi\n"
    assert not path.exists()
    await client.close()
    assert await asyncio.to_thread(process.wait, 90) == 0


async def test_a_runner_without_a_client_ends_at_sigterm(interpreter, helpers, tmp_path):
    path = tmp_path / "runner.sock"
    process = subprocess.Popen(
        [interpreter, "-I", "-S", "-B", helpers.compiled_main(interpreter), "--socket", str(path)]
    )
    await helpers.eventually(path.exists)
    process.terminate()
    assert await asyncio.to_thread(process.wait, 90) == 0


def own_pid_namespace(*command: str) -> list[str]:
    return ["bwrap", "--unshare-pid", "--as-pid-1", "--dev-bind", "/", "/", "--proc", "/proc", *command]


def namespaces_work() -> bool:
    if shutil.which("bwrap") is None:
        return False
    return subprocess.run(own_pid_namespace("true"), capture_output=True, check=False).returncode == 0


async def test_as_process_1_the_runner_reaps_orphans_and_handles_sigterm(interpreter, helpers, tmp_path):
    if not namespaces_work():
        pytest.skip("no bubblewrap that can make a PID namespace")
    ours, theirs = socket.socketpair()
    with contextlib.closing(theirs):
        number = str(theirs.fileno())
        process = subprocess.Popen(
            own_pid_namespace(interpreter, "-I", "-S", "-B", helpers.compiled_main(interpreter), "--fd", number),
            pass_fds=[theirs.fileno()],
        )
    client = RunnerClient(*await asyncio.open_connection(sock=ours))
    info = await client.configure(SandboxSpec(workspace=str(tmp_path)))
    assert info.pid == 1
    await client.run("for n in 1 2 3; do (setsid sleep 0.01 &); done")
    await client.run("kill -9 1; setsid bash -c 'touch on; exec sleep 600' & until [ -e on ]; do sleep 0.01; done")
    await helpers.until(client.processes, lambda found: len(found) == 1)
    states = await client.run("cat /proc/[0-9]*/stat | awk '$3 == \"Z\"'")
    assert states.text == ""
    inside = [int(child) for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    os.kill(inside[0], 15)
    assert await asyncio.to_thread(process.wait, 90) == 0
    with pytest.raises(SandboxLost):
        await client.stat(["."])
    await client.close()


def test_wrong_usage_is_explained(interpreter, helpers):
    answer = subprocess.run(
        [interpreter, helpers.compiled_main(interpreter), "--port", "1"], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 2
    assert "--socket PATH" in answer.stderr


def test_the_check_of_the_runners_files_passes():
    script = Path(__file__).resolve().parents[3] / "hack" / "check_runner.py"
    answer = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr
