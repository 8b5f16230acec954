"""Tests of system calls that reach out of a sandbox, in a real sandbox and in one without the seccomp filter."""

import errno
import json
import os
import pty
import subprocess
import sys
import textwrap

import pytest

from dgym.sandbox.local import _bubblewrap
from dgym.sandbox.local._bubblewrap import ABSENT, FAMILIES, REFUSED, call_number
from dgym.sandbox.local._interpreter import inspect_interpreter

pytestmark = pytest.mark.attack("system-calls")

MACHINE = os.uname().machine
CALLS = {name: number for name in (*REFUSED, *ABSENT) if (number := call_number(name, MACHINE)) is not None}

# Arguments with which a process without privileges gets something other than EPERM and ENOSYS from the kernel.
SUCCEED = textwrap.dedent(
    """
    import ctypes, errno, json, os, sys, time
    numbers = json.loads(sys.argv[1])
    libc = ctypes.CDLL(None, use_errno=True)

    def call(name, *arguments):
        ctypes.set_errno(0)
        given = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
        if libc.syscall(ctypes.c_long(numbers[name]), *given) < 0:
            return errno.errorcode[ctypes.get_errno()]
        return "done"

    class Vector(ctypes.Structure):
        _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]

    secret, room = ctypes.create_string_buffer(b"secret"), ctypes.create_string_buffer(7)
    mine, theirs = Vector(ctypes.addressof(room), 7), Vector(ctypes.addressof(secret), 7)
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    found = {
        "add_key": call("add_key", b"user", b"dgym", b"x", 1, -2),
        "keyctl": call("keyctl", 0, -3, 1),
        "request_key": call("request_key", b"user", b"dgym", None, 0),
        "process_vm_readv": call("process_vm_readv", child, ctypes.byref(mine), 1, ctypes.byref(theirs), 1, 0),
        "process_vm_writev": call("process_vm_writev", child, ctypes.byref(mine), 1, ctypes.byref(theirs), 1, 0),
        "kcmp": call("kcmp", os.getpid(), os.getpid(), 0, 0, 0),
        "pidfd_getfd": call("pidfd_getfd", os.pidfd_open(child), 0, 0),
        "ptrace": call("ptrace", 16, child, 0, 0),
        "userfaultfd": call("userfaultfd", 1),
        "io_uring_setup": call("io_uring_setup", 1, ctypes.create_string_buffer(256)),
        "io_uring_enter": call("io_uring_enter", -1, 0, 0, 0, None, 0),
        "io_uring_register": call("io_uring_register", -1, 99, None, 0),
        "clone3": call("clone3", None, 0),
        "open_tree": call("open_tree", -1, b"nowhere", 0),
        "perf_event_open": call("perf_event_open", None, 0, -1, -1, 0),
    }
    os.kill(child, 9)
    print(json.dumps(found))
    """
)

EVERY = textwrap.dedent(
    """
    import ctypes, errno, json, sys
    libc = ctypes.CDLL(None, use_errno=True)
    found = {}
    for name, number in json.loads(sys.argv[1]).items():
        libc.syscall(ctypes.c_long(number), *[ctypes.c_long(-1)] * 6)
        found[name] = errno.errorcode.get(ctypes.get_errno(), "done")
    print(json.dumps(found))
    """
)


async def python(sandbox, script, *arguments):
    result = await sandbox.run(["python", "-c", script, *arguments], timeout_seconds=60)
    assert result.exit_status == 0, result.text
    return json.loads(result.text)


async def test_every_call_of_the_filter_is_refused(open_sandbox, isolated):
    sandbox = await open_sandbox(isolated)
    expected = {name: "ENOSYS" if name in ABSENT else "EPERM" for name in CALLS}
    assert await python(sandbox, EVERY, json.dumps(CALLS)) == expected


async def test_calls_that_succeed_without_the_filter_are_refused_with_it(open_sandbox, isolated, tmp_path):
    layout = _bubblewrap.Layout(
        workspace=tmp_path,
        workspace_inside="/workspace",
        etc=_bubblewrap.write_etc(tmp_path),
        interpreter=inspect_interpreter(sys.executable),
    )
    unfiltered = subprocess.run(
        [*_bubblewrap.command_line(layout), "--", sys.executable, "-c", SUCCEED, json.dumps(CALLS)],
        capture_output=True,
        text=True,
        check=True,
    )
    before = json.loads(unfiltered.stdout)
    sandbox = await open_sandbox(isolated)
    after = await python(sandbox, SUCCEED, json.dumps(CALLS))
    # Some machines refuse some of these calls by sysctl settings (perf_event_paranoid, io_uring_disabled).
    assert {"ptrace", "process_vm_readv", "kcmp"} <= {name for name in before if before[name] == "done"}
    assert [name for name in before if before[name] not in ("EPERM", "ENOSYS")]
    assert after == {name: "ENOSYS" if name in ABSENT else "EPERM" for name in before}


async def test_no_namespace_is_made_by_any_call(open_sandbox, isolated):
    sandbox = await open_sandbox(isolated)
    script = textwrap.dedent(
        """
        import ctypes, errno, json, os, sys
        libc = ctypes.CDLL(None, use_errno=True)
        clone, unshare = map(int, sys.argv[1:])
        found = []
        for flag in (0x80, 0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
            for number, extra in ((clone, 0 if flag == 0x80 else 17), (unshare, 0)):
                if libc.syscall(ctypes.c_long(number), ctypes.c_long(flag | extra), None, None, None, None) == 0:
                    os._exit(9)
                found.append(errno.errorcode[ctypes.get_errno()])
        print(json.dumps(sorted(set(found))))
        """
    )
    numbers = [str(call_number(name, MACHINE)) for name in ("clone", "unshare")]
    assert await python(sandbox, script, *numbers) == ["EPERM"]


async def test_programs_of_another_architecture_end(open_sandbox, isolated):
    """``int 0x80`` is the 32-bit entry. Its call numbers differ, so rules for 64-bit numbers would not apply."""
    if MACHINE != "x86_64":
        pytest.skip("an entry of x86_64")
    sandbox = await open_sandbox(isolated)
    # mov eax, 26 (ptrace of i386); xor ebx, ebx; int 0x80; ret
    script = textwrap.dedent(
        """
        import ctypes, mmap
        code = mmap.mmap(-1, 4096, prot=7)
        code.write(bytes.fromhex("b81a000000 31db cd80 c3".replace(" ", "")))
        ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()
        """
    )
    result = await sandbox.run(["python", "-c", script])
    assert result.exit_status == -31, result.text


async def test_threads_processes_and_event_loops_work(open_sandbox, isolated):
    sandbox = await open_sandbox(isolated)
    script = textwrap.dedent(
        """
        import asyncio, concurrent.futures, json, multiprocessing, os, subprocess, threading
        thread = threading.Thread(target=lambda: None); thread.start(); thread.join()
        with multiprocessing.get_context("fork").Pool(2) as pool:
            squares = pool.map(int.bit_length, [1, 2])
        async def main():
            child = await asyncio.create_subprocess_exec("true")
            return await child.wait()
        ended = [subprocess.run("exit 3", shell=True).returncode, asyncio.run(main()), os.system("exit 0")]
        print(json.dumps([squares, ended]))
        """
    )
    assert await python(sandbox, script) == [[1, 2], [3, 0, 0]]


# A user with a key in the session keyring and with a controlling terminal.
USER = """
import asyncio, ctypes, os, subprocess, sys
from dgym.sandbox import SandboxSpec
from dgym.sandbox.local import LocalProvider
from dgym.sandbox.local._process import _launcher

libc = ctypes.CDLL(None, use_errno=True)
keyctl, add_key = map(int, sys.argv[1:3])
libc.syscall(keyctl, 1, None)
key = libc.syscall(add_key, b"user", b"dgym-secret-key", b"x", 1, -3)
if key < 0:
    print("no keys")
    sys.exit()
# Listed for processes whose session keyring leads to it, not for all of the user's.
assert libc.syscall(keyctl, 5, key, 0x3F000000) == 0
listing = ["cat", "/proc/keys"]

async def main():
    sandbox = await LocalProvider(SandboxSpec(python=sys.executable)).sandbox()
    keys = await sandbox.run(listing)
    terminal = await sandbox.run(["python", "-c", sys.argv[3]])
    started = _launcher(os.getpid()).submit(subprocess.check_output, listing, text=True).result()
    print("the user's processes:", "dgym-secret-key" in subprocess.check_output(listing, text=True))
    print("what starts a sandbox:", "dgym-secret-key" in started)
    print("keys listed inside:", keys.exit_status == 0)
    print("terminal:", terminal.text.strip())
    await sandbox.stop()

asyncio.run(main())
"""
TYPE = """
import fcntl, os
try:
    terminal = os.open("/dev/tty", os.O_RDWR)
except OSError as error:
    terminal = 0
    print("none;", end=" ")
try:
    fcntl.ioctl(terminal, 0x5412, b"x")
    print("typed")
except OSError as error:
    print(error.errno)
"""


def test_the_users_keys_and_terminal_stay_outside(isolated):
    """At a terminal, --new-session detaches from it, and a new session keyring replaces the user's keyring."""
    numbers = [str(call_number(name, MACHINE)) for name in ("keyctl", "add_key")]
    leader, follower = pty.openpty()
    user = subprocess.Popen(
        [sys.executable, "-c", LEAD, sys.executable, "-c", USER, *numbers, TYPE],
        stdin=follower,
        stdout=subprocess.PIPE,
        text=True,
    )
    os.close(follower)
    output, _ = user.communicate(timeout=120)
    os.close(leader)
    if output == "no keys\n":
        pytest.skip("the kernel or the container has no keyrings")
    assert output.splitlines() == [
        "the user's processes: True",
        "what starts a sandbox: False",
        "keys listed inside: False",
        f"terminal: none; {errno.EPERM}",
    ]


# Makes standard input the controlling terminal of a session, as a login does.
LEAD = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


async def test_sockets_are_of_the_families_that_programs_need(open_sandbox, isolated):
    sandbox = await open_sandbox(isolated)
    script = textwrap.dedent(
        """
        import errno, json, socket
        found = {}
        for family in range(50):
            try:
                socket.socket(family, socket.SOCK_DGRAM).close()
                found[family] = "open"
            except OSError as error:
                found[family] = errno.errorcode[error.errno]
        print(json.dumps(found))
        """
    )
    found = await python(sandbox, script)
    assert {family for family, how in found.items() if how == "open"} <= {str(each) for each in FAMILIES.values()}
    assert found[str(FAMILIES["AF_UNIX"])] == found[str(FAMILIES["AF_INET"])] == "open"
    vsock, packet, alg = "40", "17", "38"
    assert {found[vsock], found[packet], found[alg]} == {"EAFNOSUPPORT"}


async def test_only_the_limits_of_the_caller_are_set(open_sandbox, isolated):
    sandbox = await open_sandbox(isolated)
    script = textwrap.dedent(
        """
        import json, os, resource, sys
        resource.prlimit(0, resource.RLIMIT_NOFILE, (50, 50))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE)
        found = []
        for which in ("AS", "NOFILE", "STACK", "FSIZE", "DATA"):
            for process in (1, os.getppid(), int(sys.argv[1])):
                try:
                    resource.prlimit(process, getattr(resource, "RLIMIT_" + which), (0, 0))
                    found.append(which)
                except PermissionError:
                    pass
        print(json.dumps([resource.getrlimit(resource.RLIMIT_NOFILE), found]))
        """
    )
    assert await python(sandbox, script, str(1)) == [[50, 50], []]
