"""Tests of isolation: actions that a program in a container cannot perform."""

import sys

import pytest

from dgym.sandbox import SandboxLimits
from tests.fakes.shared_objects import COUNT, FOUND, LEAVE

MiB = 1024**2

LEAK = """
kept = []
while True:
    kept.append(bytearray(b"x") * (8 * 1024 * 1024))
"""

FORKS = """
import os, time
born = 0
try:
    for _ in range(2000):
        if os.fork() == 0:
            time.sleep(1000)
        born += 1
except OSError:
    pass
print("born", born, flush=True)
"""


async def output_of(sandbox, command, **options):
    result = await sandbox.run(command, **options)
    assert result.exit_status == 0, result.text
    return result.text.strip()


@pytest.mark.attack("egress")
async def test_has_no_network(sandbox):
    assert await output_of(sandbox, "ls /sys/class/net") == "lo"
    script = "import socket; socket.create_connection(('1.1.1.1', 53), 5)"
    result = await sandbox.run(["python", "-c", script])
    assert "Network is unreachable" in result.text


async def test_is_an_ordinary_user_without_capabilities(sandbox):
    status = dict(line.split(":\t", 1) for line in (await output_of(sandbox, "cat /proc/self/status")).splitlines())
    assert status["Uid"].split() == ["1000"] * 4
    assert status["Gid"].split() == ["1000"] * 4
    assert status["Groups"].split() in ([], ["1000"])
    for name in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
        assert int(status[name], 16) == 0, name
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"


async def test_the_runner_has_the_user_and_capabilities_of_its_programs(sandbox):
    status = dict(line.split(":\t", 1) for line in (await output_of(sandbox, "cat /proc/1/status")).splitlines())
    assert status["Uid"].split() == ["1000"] * 4
    assert int(status["CapPrm"], 16) == int(status["CapEff"], 16) == 0


@pytest.mark.attack("your-files")
async def test_a_program_cannot_become_root(sandbox):
    result = await sandbox.run(["python", "-c", "import os; os.setuid(0)"])
    assert "Operation not permitted" in result.text
    for path in ("/etc/passwd", "/opt/python/x", "/usr/bin/python3", "/proc/sys/kernel/core_pattern"):
        result = await sandbox.run(["sh", "-c", f"echo x >> {path}"])
        assert result.exit_status != 0, path


@pytest.mark.attack("your-files")
@pytest.mark.parametrize("in_place", [False, True])
async def test_cannot_change_the_runner(build, open_sandbox, in_place):
    sandbox = await open_sandbox(build("root", "USER 0\n"), in_place=in_place)
    assert await output_of(sandbox, "id -u") == ("0" if in_place else "1000")
    result = await sandbox.run("echo x >> $DGYM_RUNNER/server.py; touch $DGYM_RUNNER/new; rm -rf $DGYM_RUNNER/*")
    assert "Read-only file system" in result.text


@pytest.mark.attack("your-files")
async def test_files_of_the_machine_are_not_visible(sandbox, tmp_path):
    (tmp_path / "secret").write_text("x")
    result = await sandbox.run(["cat", str(tmp_path / "secret")])
    assert "No such file or directory" in result.text


@pytest.mark.attack("your-files")
async def test_api_keys_of_the_machine_are_not_visible(open_sandbox, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    sandbox = await open_sandbox(environment={"COLOUR": "green"})
    environment = await output_of(sandbox, "env; cat /proc/1/environ | tr '\\0' '\\n'")
    assert "sk-secret" not in environment
    assert "COLOUR=green" in environment


async def test_a_leak_ends_the_program_and_not_the_sandbox(open_sandbox, engine):
    sandbox = await open_sandbox(limits=SandboxLimits(memory_bytes=256 * MiB))
    result = await sandbox.run(["python", "-c", LEAK], timeout_seconds=100)
    assert result.ended_by == "memory"
    assert await output_of(sandbox, "echo alive") == "alive"
    if engine.memory:
        paths = "/sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes"
        assert int(await output_of(sandbox, f"cat {paths} 2>/dev/null || true")) == (256 + 64) * MiB


async def test_processes_are_bounded(open_sandbox):
    sandbox = await open_sandbox(limits=SandboxLimits(processes=50))
    result = await sandbox.run(["python", "-c", FORKS], timeout_seconds=100)
    born = [int(line.split()[1]) for line in result.text.splitlines() if line.startswith("born")]
    assert result.ended_by == "killed" or max(born) <= 50 + 64
    assert await output_of(sandbox, "echo alive") == "alive"


async def test_processors_are_bounded(open_sandbox, engine):
    if not engine.cpus:
        pytest.skip("this engine cannot bound processors")
    sandbox = await open_sandbox(cpus=0.5)
    paths = "/sys/fs/cgroup/cpu.max /sys/fs/cgroup/cpu/cpu.cfs_quota_us /sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us"
    assert (await output_of(sandbox, f"cat {paths} 2>/dev/null || true")).split()[0] == "50000"


async def test_two_sandboxes_share_nothing(open_sandbox):
    first, second = await open_sandbox(), await open_sandbox()
    await output_of(first, "echo mine > /workspace/file; echo mine > /tmp/file; sleep 1000 >/dev/null 2>&1 & echo $!")
    assert await output_of(second, "ls /workspace; cat /tmp/file 2>/dev/null; pgrep sleep 2>/dev/null || true") == ""


@pytest.mark.attack("shared-objects")
async def test_ipc_objects_of_one_sandbox_are_not_visible_in_another(open_sandbox):
    first, second = await open_sandbox(), await open_sandbox()
    await output_of(first, ["python", "-c", LEAVE])
    assert await output_of(first, ["python", "-c", FOUND]) == f"found {COUNT}"
    assert await output_of(second, ["python", "-c", FOUND]) == "found 0"


async def test_two_containers_print_the_same(open_sandbox):
    first, second = await open_sandbox(), await open_sandbox()
    question = "env | grep -v DGYM_TAG | sort; hostname; id; pwd; ls -a /tmp /home/agent /run/dgym | grep -v dgym-"
    assert await output_of(first, question) == await output_of(second, question)


async def test_programs_run_with_the_interpreter_of_the_image(sandbox):
    version = await output_of(sandbox, ["python", "-c", "import sys, pytest; print(sys.prefix)"])
    assert version == "/opt/python" != sys.prefix
