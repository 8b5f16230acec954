"""Tests that no process and no file survives a sandbox, however it ends."""

import asyncio
import os
import subprocess
import sys
import tempfile
import textwrap
from contextlib import suppress

import pytest

from dgym.errors import SandboxLost
from dgym.sandbox import SandboxSpec
from dgym.sandbox.local import LocalProvider, _resources
from dgym.sandbox.local._resources import ControlGroup, remove_abandoned


async def test_daemons_that_ignore_signals_are_dead_when_stop_returns(sandbox, machine):
    for _ in range(3):
        await sandbox.run(machine.command())
    await machine.until(lambda: len(machine.marked()) == 3)
    await sandbox.stop()
    assert machine.marked() == []


async def test_a_running_command_ends_with_the_sandbox(sandbox, machine):
    running = asyncio.ensure_future(sandbox.run(machine.command("import time; time.sleep(1000)"), timeout_seconds=900))
    await machine.until(machine.marked)
    await sandbox.stop()
    assert machine.marked() == []
    # The runner may or may not report the exit status before it ends.
    with suppress(SandboxLost):
        assert (await running).exit_status != 0


async def test_the_directory_is_removed_regardless_of_its_modes(sandbox, kind):
    await sandbox.run("mkdir -p a/b && touch a/b/c && chmod 000 a/b a && ln -s /etc out && mkfifo pipe")
    directory = sandbox._prepared.directory.path
    assert directory.exists()
    await sandbox.stop()
    assert not directory.exists()


async def test_stop_may_be_called_again_and_at_once(sandbox):
    await asyncio.gather(sandbox.stop(), sandbox.stop())
    await sandbox.stop()


async def test_a_cancelled_stop_is_completed(sandbox, machine):
    await sandbox.run(machine.command())
    await machine.until(machine.marked)
    stopping = asyncio.ensure_future(sandbox.stop())
    await asyncio.sleep(0)
    stopping.cancel()
    await asyncio.gather(stopping, return_exceptions=True)
    await sandbox.stop()
    assert machine.marked() == []


async def test_calls_after_stop_raise_sandbox_lost(sandbox):
    await sandbox.stop()
    with pytest.raises(SandboxLost):
        await sandbox.run("true")


@pytest.mark.attack("killed-sandbox")
async def test_a_program_cannot_kill_the_runner_from_inside(open_sandbox, isolated):
    sandbox = await open_sandbox(isolated)
    await sandbox.run("kill -9 1; kill -9 -1", timeout_seconds=20)
    assert (await sandbox.run("echo alive")).text == "alive\n"


async def test_processes_of_a_killed_runner_are_removed(open_sandbox, machine):
    sandbox = await open_sandbox("none")
    await sandbox.run(machine.command())
    await machine.until(machine.marked)
    with pytest.raises(SandboxLost):
        await sandbox.run(["python", "-c", "import os, sys; os.kill(int(sys.argv[1]), 9)", str(sandbox.main_process)])
    await sandbox.stop()
    assert machine.marked() == []


async def test_all_processes_end_if_the_owner_is_killed(kind, machine, tmp_path, monkeypatch):
    owner = textwrap.dedent(
        """
        import asyncio, sys
        from dgym.sandbox import SandboxSpec
        from dgym.sandbox.local._provider import LocalProvider
        async def main():
            sandbox = await LocalProvider(SandboxSpec(python=sys.executable), kind=sys.argv[1]).sandbox()
            await sandbox.run(["python", "-c", sys.argv[2], sys.argv[3]])
            print("ready", flush=True)
            await sandbox.run(["python", "-c", "import time; time.sleep(1000)", sys.argv[3]], timeout_seconds=900)
        asyncio.run(main())
        """
    )
    # The mark must not be on the command line of the owner, because ``marked()`` would count the owner.
    prepared = f"import sys; sys.argv[1:] = {[kind, machine.daemon]!r} + [sys.stdin.readline().strip()]\n" + owner
    process = subprocess.Popen(
        [sys.executable, "-c", prepared],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        try:
            process.stdin.write(machine.mark.encode() + b"\n")
            process.stdin.flush()
            assert await asyncio.to_thread(process.stdout.readline) == b"ready\n"
            await machine.until(lambda: len(machine.marked()) == 2)
        finally:
            # The exit of the ``with`` block waits for the process.
            process.kill()
        await machine.until(lambda: not machine.marked())
    (left,) = tmp_path.iterdir()
    os.utime(left, (0, 0))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def removed() -> bool:
        remove_abandoned(ControlGroup.remove_named)
        return not list(tmp_path.iterdir())

    # The runner may still be ending. While it runs, ``remove_abandoned`` keeps its directory.
    await machine.until(removed)
    assert not any((parent / left.name).exists() for parent in _resources._parents())


async def test_a_failed_start_leaves_nothing_behind(kind, machine):
    provider = LocalProvider(
        SandboxSpec(python=sys.executable, activate=f"(exec -a {machine.mark} sleep 1000) & exit 7"), kind=kind
    )
    with pytest.raises(Exception, match="activate"):
        await provider.sandbox()
    assert machine.marked() == []


async def test_a_start_that_is_cancelled_leaves_nothing(kind, machine, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    begun, may_end, python = tmp_path / "begun", tmp_path / "may-end", tmp_path / "python"
    waiting = f"until [ -e {may_end} ]; do sleep 0.02; done"
    python.write_text(f'#!/bin/sh\n: > {begun}\n{waiting}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    opening = asyncio.ensure_future(LocalProvider(SandboxSpec(python=str(python)), kind=kind).sandbox())
    await machine.until(begun.exists)
    opening.cancel()
    with suppress(asyncio.CancelledError):
        await opening
    may_end.touch()
    # The thread that prepares the sandbox cannot be cancelled, so the test waits for its end.
    await asyncio.get_running_loop().shutdown_default_executor()
    assert {path.name for path in tmp_path.iterdir()} == {"begun", "may-end", "python"}
