"""Tests of the end of containers: ``stop()``, death of the owner, and removal of abandoned containers."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dgym.errors import SandboxLost
from dgym.sandbox.container import DEFAULT_IMAGE, LABEL
from dgym.sandbox.container._process import scope

DEADLINE = 60.0

STUBBORN = """
import os, signal, time
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
reading, writing = os.pipe()
if os.fork():
    os.read(reading, 1)
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
os.write(writing, b".")
os.closerange(0, 100)
time.sleep(1000)
"""

OWNER = """
import asyncio
from dgym.sandbox import SandboxSpec
from dgym.sandbox.container._provider import ContainerProvider
from dgym.sandbox.container._engine import find_engine
from dgym.sandbox.container._engine import DEFAULT_IMAGE, ensure_image

async def main():
    engine = await find_engine({engine!r})
    image = await ensure_image(engine, DEFAULT_IMAGE)
    sandbox = await ContainerProvider(SandboxSpec(), engine=engine, image=image).sandbox()
    await sandbox.run(["python", "-c", {program!r}])
    print(sandbox.name, flush=True)
    await asyncio.sleep(1000)

asyncio.run(main())
"""


def until(condition):
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


@pytest.fixture
def owner(engine):
    """A separate process that owns a sandbox with a running daemon, and the container's name."""
    script = OWNER.format(engine=engine.flavor, program=STUBBORN)
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    with process, process.stdout as lines:
        yield process, lines.readline().strip()
        process.kill()


async def test_stop_ends_everything(sandbox, ours):
    await sandbox.run(["python", "-c", STUBBORN])
    assert await sandbox.processes()
    assert sandbox.name in ours()
    await sandbox.stop()
    assert sandbox.name not in ours()
    await sandbox.stop()
    with pytest.raises(SandboxLost):
        await sandbox.run("true")


async def test_a_cancelled_stop_continues(sandbox, ours):
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(sandbox.stop(), 0.001)
    await sandbox.stop()
    assert sandbox.name not in ours()


async def test_a_start_that_is_given_up_leaves_nothing(open_sandbox, ours):
    before = ours()
    for seconds in (0.05, 0.2, 0.4):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(open_sandbox(activate="sleep 1000"), seconds)
    assert ours() == before


async def test_a_killed_container_is_a_lost_sandbox(sandbox, podman):
    running = asyncio.ensure_future(sandbox.run("sleep 1000", timeout_seconds=1000))
    while not await sandbox.processes():
        await asyncio.sleep(0.01)
    podman("kill", sandbox.name)
    with pytest.raises(SandboxLost):
        await running
    await sandbox.stop()


def test_the_container_is_removed_if_its_owner_is_killed(owner, ours):
    process, name = owner
    assert name in ours()
    os.kill(process.pid, signal.SIGKILL)
    until(lambda: name not in ours())


def test_ctrl_c_removes_the_container_of_the_owner(owner, ours):
    process, name = owner
    os.killpg(process.pid, signal.SIGINT)
    process.wait(DEADLINE)
    until(lambda: name not in ours())


def test_clean_removes_only_abandoned_containers(owner, engine, podman, ours):
    abandoned, foreign = "dgym-0000000000000001", f"dgym-foreign-{os.getpid()}"
    for name, label in ((abandoned, scope()), (foreign, "another machine")):
        arguments = ("--name", name, "--label", f"{LABEL}={label}", "--network", "none", "--entrypoint", "sleep")
        podman("run", "--rm", "--detach", *arguments, DEFAULT_IMAGE, "1000")
    try:
        first, again = [
            subprocess.run(
                [Path(sys.executable).with_name("dgym"), "clean", "--engine", engine.flavor],
                capture_output=True, text=True, check=True, timeout=DEADLINE,
            ).stdout
            for _ in range(2)
        ]  # fmt: skip
        assert f"removed container {abandoned} ({engine.flavor})" in first
        assert "container" not in again
        assert abandoned not in ours()
        assert owner[1] in ours()
        assert foreign in podman("ps", "--format", "{{.Names}}").split()
    finally:
        podman("rm", "--force", "--time", "0", foreign)


async def test_a_start_removes_abandoned_containers(podman, ours, engine):
    abandoned = "dgym-0000000000000002"
    arguments = ("--name", abandoned, "--label", f"{LABEL}={scope()}", "--network", "none", "--entrypoint", "sleep")
    podman("run", "--rm", "--detach", *arguments, DEFAULT_IMAGE, "1000")
    script = OWNER.format(engine=engine.flavor, program="").replace("asyncio.sleep(1000)", "sandbox.stop()")
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=DEADLINE
    )
    assert done.stdout.startswith("dgym-")
    assert abandoned not in ours()
