"""Tests of resource limits of programs: the sandbox stays usable when a program exceeds a limit."""

import asyncio
import os
import time

import pytest

from dgym.sandbox import SandboxLimits
from dgym.sandbox.local._resources import ControlGroup

MEGABYTE = 1024**2
BOUNDS = ("memory.max", "memory.limit_in_bytes")


async def still_works(sandbox):
    return (await sandbox.run("echo works", timeout_seconds=60)).text == "works\n"


async def test_a_file_cannot_grow_beyond_its_limit(open_sandbox, kind):
    sandbox = await open_sandbox(kind, limits=SandboxLimits(file_size_bytes=MEGABYTE))
    result = await sandbox.run("head -c 3000000 /dev/zero > large; stat -c %s large")
    assert result.text.splitlines()[-1] == str(MEGABYTE)
    assert await still_works(sandbox)


async def test_a_busy_program_is_ended_by_its_processor_time(open_sandbox, kind):
    sandbox = await open_sandbox(kind, limits=SandboxLimits(cpu_seconds=1))
    result = await sandbox.run(["python", "-c", "while True: pass"], timeout_seconds=100)
    assert result.exit_status is not None
    assert result.exit_status < 0
    assert result.ended_by != "timeout"
    assert await still_works(sandbox)


@pytest.mark.attack("killed-sandbox")
async def test_a_program_cannot_have_more_memory_than_its_limit(open_sandbox, kind):
    sandbox = await open_sandbox(kind, limits=SandboxLimits(memory_bytes=200 * MEGABYTE))
    hungry = "kept = []\nfor _ in range(1000): kept.append(bytearray(10 * 1024 ** 2))\nprint('had it all')"
    result = await sandbox.run(["python", "-c", hungry], timeout_seconds=100)
    assert "had it all" not in result.text
    assert result.exit_status != 0
    assert await still_works(sandbox)


@pytest.mark.parametrize("by_shell", [False, True])
async def test_a_program_that_the_kernel_kills_for_its_memory_is_named_so(open_sandbox, kind, by_shell):
    sandbox = await open_sandbox(kind, limits=SandboxLimits(memory_bytes=None))
    group = sandbox._prepared.group
    bounds = [each / name for each in (group.directories if group else ()) for name in BOUNDS if (each / name).exists()]
    if not bounds:
        pytest.skip("this machine lets us make no control group that bounds memory")
    # Only the kernel enforces these bounds: the runner has read its limits before.
    for bound in bounds:
        bound.write_text(str(100 * MEGABYTE))
    hungry = "held = [bytearray(4 * 1024 ** 2) for _ in range(1000)]"
    command = sandbox.shell(f'python -c "{hungry}"') if by_shell else sandbox.run(["python", "-c", hungry])
    result = await command
    # The watchdog may kill the shell before the shell reports the exit status of its child.
    assert (result.ended_by, result.exit_status) in [("memory", -9), *([("memory", 137)] if by_shell else [])]
    killed = await sandbox.run("kill -9 $$")
    assert (killed.ended_by, killed.exit_status) == ("exit", -9)
    assert await still_works(sandbox)


@pytest.mark.attack("killed-sandbox")
async def test_a_fork_bomb_is_contained(open_sandbox, kind, machine):
    sandbox = await open_sandbox(kind, limits=SandboxLimits(processes=40))
    bomb = "import os, time\nfor _ in range(2000):\n    try: os.fork()\n    except OSError: time.sleep(0.01)"
    await sandbox.run(machine.command(bomb), timeout_seconds=3)
    await machine.until(lambda: not machine.marked())
    assert await still_works(sandbox)


async def test_a_program_that_takes_every_task_can_be_ended(open_sandbox, kind, machine):
    sandbox = await open_sandbox(kind, limits=SandboxLimits(processes=10))
    if sandbox._prepared.group is None:
        pytest.skip("this machine lets us make no control group")
    # Threads are not processes, so the runner's watchdog does not end this program.
    hungry = (
        "import threading, time\n"
        "try:\n"
        "    while True: threading.Thread(target=time.sleep, args=(1000,)).start()\n"
        "except RuntimeError: open('full', 'w').close()\n"
    )
    running = asyncio.ensure_future(sandbox.run(machine.command(hungry), timeout_seconds=100))
    await machine.until((sandbox._prepared.directory.workspace / "full").exists)
    described = asyncio.ensure_future(sandbox.stat(["full"]))
    running.cancel()
    assert (await described)[0].type == "file"
    await machine.until(lambda: not machine.marked())
    assert await still_works(sandbox)


@pytest.mark.attack("killed-sandbox")
async def test_the_private_temporary_directory_cannot_fill_the_memory(open_sandbox, isolated):
    sandbox = await open_sandbox(isolated, limits=SandboxLimits(memory_bytes=64 * MEGABYTE))
    result = await sandbox.run("head -c 100M /dev/zero > /tmp/large; stat -c %s /tmp/large")
    assert "No space left" in result.text
    assert int(result.text.splitlines()[-1]) <= 64 * MEGABYTE


def test_a_control_group_can_be_removed_after_its_processes_ended():
    name = f"dgym-test-{os.getpid()}"
    group = ControlGroup.make(name, SandboxLimits(processes=10, memory_bytes=100 * MEGABYTE))
    if group is None:
        pytest.skip("this machine lets us make no control group")
    child = os.fork()
    if child == 0:
        time.sleep(1000)
        os._exit(0)
    try:
        group.add(child)
        assert group.processes() == {child}
        assert not group.remove()
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
    end = time.monotonic() + 90
    while not group.remove():
        assert time.monotonic() < end
    assert not any(directory.exists() for directory in group.directories)


async def test_the_control_group_of_a_sandbox_is_removed(sandbox):
    group = sandbox._prepared.group
    await sandbox.stop()
    assert group is None or not any(directory.exists() for directory in group.directories)
