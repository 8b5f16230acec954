"""Tests of the resources that untrusted programs can and cannot reach."""

import json
import os
import socket
import sys
from pathlib import Path

import pytest

import dgym
from dgym.sandbox.local._bubblewrap import RUNNER_INSIDE
from tests.fakes.shared_objects import COUNT, FOUND, LEAVE

TRY_TO_WRITE = """
import json, os, sys
written = []
for path in sys.argv[1:]:
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT if not os.path.exists(path) else os.O_WRONLY))
        written.append(path)
    except OSError:
        pass
print(json.dumps(written))
"""

PROBE = """
import json, os, socket, sys
def connects(family, address):
    with socket.socket(family) as client:
        client.settimeout(5)
        return client.connect_ex(address) == 0
abstract, port = sys.argv[1:]
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps({
    "user": os.getuid(),
    "capabilities": [int(status[name], 16) for name in ("CapEff", "CapPrm", "CapBnd", "CapAmb")],
    "no_new_privileges": status["NoNewPrivs"].strip(),
    "interfaces": [name for _, name in socket.if_nameindex()],
    "tcp": connects(socket.AF_INET, ("127.0.0.1", int(port))),
    "abstract": connects(socket.AF_UNIX, chr(0) + abstract),
    "processes": [int(name) for name in os.listdir("/proc") if name.isdigit()],
    "host": socket.gethostname(),
    "tmp": os.listdir("/tmp"),
}))
"""


async def python(sandbox, script, *arguments):
    result = await sandbox.run(["python", "-c", script, *arguments], timeout_seconds=60)
    assert result.exit_status == 0, result.text
    return json.loads(result.text)


@pytest.mark.attack("your-files")
async def test_only_workspace_home_and_temporary_files_can_be_written(open_sandbox, isolated):
    sandbox = await open_sandbox(isolated)
    forbidden = ["/x", "/usr/x", "/usr/bin/x", "/etc/x", "/etc/passwd", "/root/x", "/home/x", "/dev/x", "/opt/x",
                 f"{RUNNER_INSIDE}/x", f"{RUNNER_INSIDE}/__main__.py", f"{sys.prefix}/x", f"{sys.base_prefix}/x",
                 "/proc/sys/kernel/core_pattern", "/proc/sys/vm/drop_caches", "/proc/sysrq-trigger"]  # fmt: skip
    allowed = ["/workspace/x", "/tmp/x", "/home/agent/x", "/dev/shm/x", "/dev/null"]
    assert await python(sandbox, TRY_TO_WRITE, *forbidden, *allowed) == allowed


@pytest.mark.attack("egress")
async def test_a_sandbox_has_no_privileges_network_or_other_processes(open_sandbox, isolated):
    sandbox = await open_sandbox(isolated)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as abstract:
        name = f"dgym-test-{os.getpid()}"
        abstract.bind(f"\0{name}")
        abstract.listen()
        seen = await python(sandbox, PROBE, name, str(server.getsockname()[1]))
    assert seen["user"] == 1000
    assert seen["capabilities"] == [0, 0, 0, 0]
    assert seen["no_new_privileges"] == "1"
    assert seen["interfaces"] == ["lo"]
    assert not seen["tcp"]
    assert not seen["abstract"]
    assert max(seen["processes"]) < 100
    assert seen["host"] == "dgym"
    # Only directories of the interpreter are visible in the machine's /tmp.
    prefixes = {Path(prefix).parts[2] for prefix in (sys.prefix, sys.base_prefix) if prefix.startswith("/tmp/")}
    assert set(seen["tmp"]) <= prefixes


@pytest.mark.attack("your-files")
async def test_files_of_the_machine_do_not_exist_inside(open_sandbox, isolated, tmp_path):
    (tmp_path / "secret").write_text("key")
    sandbox = await open_sandbox(isolated)
    script = "import json, os, sys; print(json.dumps([path for path in sys.argv[1:] if os.path.exists(path)]))"
    private = [
        tmp_path / "secret",
        Path(dgym.__file__),
        Path("/etc/shadow"),
        Path("/etc/machine-id"),
        Path("/sys/class"),
    ]
    # Interpreters and their parent directories are visible.
    above = {parent for prefix in (sys.prefix, sys.base_prefix) for parent in (Path(prefix), *Path(prefix).parents)}
    private += [entry for entry in Path.home().iterdir() if entry not in above]
    assert await python(sandbox, script, *map(str, private)) == []


async def test_the_solutions_of_bundled_tasks_cannot_be_found(open_sandbox, isolated):
    sandbox = await open_sandbox(isolated)
    found = await sandbox.run(
        "find / -xdev \\( -name 'mini_nightmare*' -o -path '*/dgym/benchmarks*' \\) 2>/dev/null; "
        f"for root in {sys.prefix} {sys.base_prefix} /usr /usr/local; do "
        "ls -d $root/lib*/python*/*-packages/dgym/* 2>/dev/null; done",
        timeout_seconds=60,
    )
    assert found.text == ""


async def test_a_nested_user_namespace_gains_nothing(open_sandbox, isolated):
    sandbox = await open_sandbox(isolated)
    await sandbox.run(
        "unshare -Urm sh -c 'mount -t proc proc /proc; echo x > /proc/sys/kernel/domainname; touch /usr/x'"
    )
    assert not Path("/usr/x").exists()
    assert Path("/proc/sys/kernel/domainname").read_text().strip() != "x"


@pytest.mark.attack("your-files")
async def test_no_variable_of_the_machine_gets_in(open_sandbox, kind, monkeypatch):
    for name in ("OPENAI_API_KEY", "PYTEST_ADDOPTS", "PYTHONPATH", "LD_PRELOAD_TEST", "SSH_AUTH_SOCK"):
        monkeypatch.setenv(name, "s3cr3t")
    sandbox = await open_sandbox(kind, environment={"OWN": "of the task"})
    seen = (await sandbox.run("env; cat /proc/$PPID/environ | tr '\\0' '\\n'")).text
    assert "s3cr3t" not in seen
    assert "OWN=of the task" in seen


async def test_two_sandboxes_do_not_share_files(open_sandbox, kind):
    one, other = await open_sandbox(kind), await open_sandbox(kind)
    await one.write_file("mine.txt", b"1")
    await one.run("touch ~/mine.txt $TMPDIR/mine.txt")
    seen = await other.run("ls ~ $TMPDIR .")
    assert "mine.txt" not in seen.text


@pytest.mark.parametrize("workspace", ["/workspace", "/testbed", "/usr/src/app", "/home/agent/project", "/tmp/repo"])
async def test_the_workspace_is_at_the_path_of_the_task(open_sandbox, isolated, workspace):
    sandbox = await open_sandbox(isolated, workspace=workspace)
    assert sandbox.workspace == workspace
    await sandbox.write_file("file.txt", b"text")
    assert (await sandbox.run("pwd; cat file.txt; python -c 'print(6 * 7)'")).text == f"{workspace}\ntext42\n"


async def test_ordinary_programs_work(sandbox):
    result = await sandbox.run(
        "set -e; whoami >/dev/null; id -un; "
        "python -c 'import ssl, ctypes, sqlite3, zoneinfo, multiprocessing; multiprocessing.Lock(); "
        'print(zoneinfo.ZoneInfo("Europe/Berlin"))\'; '
        'python -c \'import socket; s = socket.create_server(("localhost", 0)); print("served")\'; '
        "echo out > /dev/stdout; mktemp -d >/dev/null"
    )
    assert result.exit_status == 0, result.text
    assert result.text.splitlines()[-3:] == ["Europe/Berlin", "served", "out"]


@pytest.mark.attack("shared-objects")
async def test_ipc_objects_of_one_sandbox_are_not_visible_in_another(open_sandbox, isolated):
    sandbox, verifier = await open_sandbox(isolated), await open_sandbox(isolated)
    left = await sandbox.run(["python", "-c", LEAVE])
    assert left.exit_status == 0, left.text
    assert (await sandbox.run(["python", "-c", FOUND])).text == f"found {COUNT}\n"
    assert (await verifier.run(["python", "-c", FOUND])).text == "found 0\n"
