"""Tests of timeouts, limits and ends of commands: partial output is returned, and no process is left."""

import asyncio
import ctypes
import resource
import signal
import subprocess
import time
import uuid
from pathlib import Path

import pytest

from dgym.errors import SandboxLost
from dgym.sandbox import SandboxLimits

TIMEOUTS = (0.3, 2.0, 20.0)
"""In seconds. On a busy machine, a program may need a longer timeout before it writes its first output."""

# A program that ignores SIGTERM, leaves its group and session, empties its environment and keeps inherited pipes open.
ESCAPEE = (
    "import os, signal, sys, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "reading, writing = os.pipe()\n"
    "if os.fork(): os.read(reading, 1), os._exit(0)\n"
    "os.setsid()\n"
    "if os.fork(): os._exit(0)\n"
    "os.write(writing, b'.')\n"
    "again = [sys.executable, '-c', 'import time; time.sleep(600)', sys.argv[1]]\n"
    "if 'clean' in sys.argv: os.execve(sys.executable, again, {})\n"
    "time.sleep(600)\n"
)


async def run_out_of_time(run, command, first_words):
    """The result of a command that a timeout ends after its first output."""
    for timeout in TIMEOUTS:
        result = await run(command, timeout_seconds=timeout)
        if result.text.startswith(first_words):
            break
    return result


@pytest.fixture
def mark():
    """A string that only processes of this test have on their command line."""
    return f"mark-{uuid.uuid4().hex}"


async def test_a_timeout_returns_the_partial_output_soon(sandbox):
    begin = time.monotonic()
    result = await run_out_of_time(sandbox.run, "echo before; sleep 600; echo after", "before\n")
    assert (result.text, result.ended_by) == ("before\n", "timeout")
    assert result.exit_status == -signal.SIGTERM
    assert time.monotonic() - begin < 60


async def test_a_program_may_clean_up_when_it_runs_out_of_time(sandbox):
    line = "trap 'echo bye; exit 3' TERM; echo hi; while :; do sleep 0.01; done"
    result = await run_out_of_time(sandbox.run, line, "hi\n")
    # Between them bash may report that its sleep was terminated.
    assert (result.text[:3], result.text[-4:]) == ("hi\n", "bye\n")
    assert (result.exit_status, result.ended_by) == (3, "timeout")


async def test_a_command_that_ignores_sigterm_is_killed(sandbox):
    line = "trap '' TERM; echo hi; while :; do sleep 0.01; done"
    result = await run_out_of_time(sandbox.run, line, "hi\n")
    assert (result.text, result.exit_status, result.ended_by) == ("hi\n", -9, "timeout")


async def test_a_timeout_leaves_no_daemon_behind(sandbox, interpreter, helpers, mark):
    await sandbox.write_file("escapee.py", ESCAPEE.encode())
    escape = f"{interpreter} escapee.py {mark}"
    line = f"{escape} tagged; {escape} clean; echo escaped; sleep 600"
    result = await run_out_of_time(sandbox.run, line, "escaped\n")
    assert (result.ended_by, result.text) == ("timeout", "escaped\n")
    assert helpers.alive_with(mark) == []
    assert await sandbox.processes() == []


async def test_no_daemon_of_a_command_that_has_ended_is_left(sandbox, interpreter, helpers, mark):
    await sandbox.write_file("escapee.py", ESCAPEE.encode())
    for manner in ("tagged", "clean"):
        assert (await sandbox.run(f"{interpreter} escapee.py {mark} {manner}")).exit_status == 0
    assert len(await sandbox.processes()) == 2
    assert await sandbox.end_processes() == 2
    assert helpers.alive_with(mark) == []
    assert await sandbox.end_processes() == 0
    assert (await sandbox.run("echo alive")).text == "alive\n"


async def test_end_processes_kills_a_daemon_that_forks_repeatedly(sandbox, interpreter, helpers, mark):
    again = "import os\nfor number in range(20):\n    if os.fork(): os._exit(0)\n"
    daemon = f"{again}os.setsid()\nos.execve({interpreter!r}, [{interpreter!r}, __file__, {mark!r}], {{}})\n"
    await sandbox.write_file("daemon.py", daemon.encode())
    assert (await sandbox.run(f"{interpreter} daemon.py {mark}")).exit_status == 0
    await sandbox.end_processes()
    assert helpers.alive_with(mark) == []
    assert await sandbox.processes() == []


async def test_commands_are_preferred_by_the_oom_killer(sandbox):
    preferred = 'while [ "$(cat /proc/$$/oom_score_adj)" != 1000 ]; do sleep 0.01; done'
    result = await sandbox.run(preferred, timeout_seconds=60)
    assert (result.exit_status, result.ended_by) == (0, "exit")


async def test_standard_input_is_not_kept_open(runner):
    links = f"readlink /proc/{runner.info.pid}/fd/*"
    gone = f"cat > read; while {links} | grep -q stdin-; do sleep 0.01; done; cat read"
    result = await runner.client.run(gone, stdin=b"secret", timeout_seconds=60)
    assert (result.text, result.ended_by) == ("secret", "exit")


async def test_a_timeout_leaves_other_commands_alone(sandbox):
    other = asyncio.create_task(sandbox.run("until [ -e ended ]; do sleep 0.01; done; echo on", timeout_seconds=60))
    await sandbox.run("sleep 600", timeout_seconds=0.1)
    await sandbox.write_file("ended", b"")
    assert (await other).text == "on\n"


async def test_background_jobs_that_hold_the_pipes_do_not_delay_the_answer(sandbox, helpers, mark):
    begin = time.monotonic()
    result = await sandbox.run(f"(exec -a {mark} sleep 600) & echo hi", timeout_seconds=300)
    assert (result.text, result.ended_by, result.exit_status) == ("hi\n", "exit", 0)
    assert time.monotonic() - begin < 60
    await helpers.eventually(lambda: not helpers.alive_with(mark))


async def test_a_process_in_its_own_session_runs_until_the_runner_ends(runner, helpers, mark):
    line = f"setsid bash -c 'touch on; exec -a {mark} sleep 600' & until [ -e on ]; do sleep 0.01; done"
    await runner.client.run(line)
    await helpers.eventually(lambda: helpers.alive_with(f"{mark} 600"))
    assert await runner.client.processes() == helpers.alive_with(mark)
    await runner.client.close()
    assert await runner.exit_status() == 0
    assert helpers.alive_with(mark) == []


async def test_the_output_of_a_slow_pipeline_member_is_not_lost(sandbox):
    result = await sandbox.run('echo text > >(sleep 0.06; read -r line; echo "${line^^}")')
    assert result.text == "TEXT\n"


@pytest.mark.parametrize("manner", ["terminated in another thread", "asked", "gone", "terminated"])
async def test_every_process_is_killed_when_the_runner_ends(runner, interpreter, helpers, mark, manner):
    await runner.client.write_file("escapee.py", ESCAPEE.encode())
    for kind in ("tagged", "clean"):
        await runner.client.run([interpreter, "escapee.py", mark, kind])
    running = asyncio.create_task(
        runner.client.run(["bash", "-c", f"trap '' TERM; : {mark}; while :; do sleep 0.1; done"])
    )
    await helpers.eventually(lambda: len(helpers.alive_with(mark)) >= 3)
    scratch = runner.info.scratch
    if manner == "terminated":
        runner.process.terminate()
    elif manner == "terminated in another thread":
        threads = {int(path.name) for path in Path(f"/proc/{runner.process.pid}/task").iterdir()}
        other = max(threads - {runner.process.pid})
        assert ctypes.CDLL(None).tgkill(runner.process.pid, other, signal.SIGTERM) == 0
    elif manner == "gone":
        runner.client._channel._writer.transport.abort()
    else:
        await runner.client.close()
    with pytest.raises(SandboxLost):
        await running
    assert await runner.exit_status() == 0
    assert helpers.alive_with(mark) == []
    assert (await asyncio.to_thread(subprocess.run, ["test", "-e", scratch], check=False)).returncode == 1
    with pytest.raises(SandboxLost):
        await runner.client.stat(["."])


async def test_a_cancelled_command_is_killed(sandbox, helpers, mark):
    task = asyncio.create_task(
        sandbox.run(["bash", "-c", f": {mark}; while :; do sleep 0.1; done"], timeout_seconds=600)
    )
    await helpers.eventually(lambda: helpers.alive_with(mark))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await helpers.eventually(lambda: not helpers.alive_with(mark))
    assert (await sandbox.run("echo on")).text == "on\n"


async def test_a_program_that_leaks_memory_is_killed_and_the_runner_continues(start_runner, interpreter):
    runner = await start_runner(interpreter, limits=SandboxLimits(memory_bytes=120_000_000))
    other = asyncio.create_task(runner.client.run("sleep 600", timeout_seconds=600))
    leak = (
        "import time\nkept = []\nprint('begin', flush=True)\n"
        "while True: kept.append(bytearray(1000000)); time.sleep(0.002)"
    )
    result = await runner.client.run([interpreter, "-c", leak], timeout_seconds=90)
    assert (result.ended_by, result.exit_status, result.text) == ("memory", -9, "begin\n")
    assert not other.done()
    other.cancel()


async def test_one_huge_allocation_fails_inside_the_program(start_runner, interpreter):
    runner = await start_runner(interpreter, limits=SandboxLimits(memory_bytes=200_000_000))
    result = await runner.client.run([interpreter, "-c", "bytearray(10**10)"])
    assert "MemoryError" in result.text


async def test_too_many_processes_end_the_command(start_runner, interpreter, helpers, mark):
    runner = await start_runner(interpreter, limits=SandboxLimits(processes=30))
    line = f"for n in $(seq 100); do setsid bash -c 'exec -a {mark} sleep 600' & done; wait"
    result = await runner.client.run(line, timeout_seconds=90)
    assert result.ended_by == "killed"
    await helpers.eventually(lambda: not helpers.alive_with(mark))


async def test_cpu_time_and_file_size_are_limited(start_runner, interpreter):
    runner = await start_runner(interpreter, limits=SandboxLimits(cpu_seconds=1, file_size_bytes=100_000))
    assert (await runner.client.run("while :; do :; done", timeout_seconds=90)).exit_status == -signal.SIGXCPU
    await runner.client.run("head -c 200000 /dev/zero > big")
    assert (await runner.client.stat(["big"]))[0].size <= 100_000


async def test_limits_of_commands_do_not_apply_to_the_runner(start_runner, interpreter):
    runner = await start_runner(interpreter, limits=SandboxLimits(file_size_bytes=1000))
    await runner.client.write_file("larger", b"x" * 5000)
    assert (await runner.client.stat(["larger"]))[0].size == 5000


async def test_a_resource_hog_is_counted_with_its_children(start_runner, interpreter):
    runner = await start_runner(interpreter, limits=SandboxLimits(memory_bytes=120_000_000))
    child = "x = bytearray(25000000); import time; time.sleep(600)"
    line = f"for n in 1 2 3 4 5 6 7 8; do {interpreter} -c '{child}' & done; wait"
    assert (await runner.client.run(line, timeout_seconds=90)).ended_by == "memory"


async def test_commands_start_while_others_are_killed(sandbox):
    """A process that has not yet executed its program is not mistaken for a process of the command that is killed."""

    async def start_many():
        for _ in range(60):
            assert (await sandbox.run("true")).exit_status == 0

    async def kill_many():
        for _ in range(15):
            assert (await sandbox.run("sleep 600", timeout_seconds=0.01)).ended_by == "timeout"

    await asyncio.gather(start_many(), start_many(), kill_many(), kill_many())


async def test_a_runner_without_free_descriptors_refuses_calls_and_continues(runner):
    resource.prlimit(runner.process.pid, resource.RLIMIT_NOFILE, (0, 0))
    for _ in range(3):
        with pytest.raises(OSError, match="Too many open files"):
            await runner.client.list_directory(".")
    assert runner.process.poll() is None
