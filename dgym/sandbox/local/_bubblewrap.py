"""The command line of bubblewrap for a runner, its seccomp filter, and the check whether bubblewrap works here.

Only listed paths are visible inside: the system's programs and libraries, a few files of /etc, the task's interpreter,
the runner and the workspace. Other paths of the machine do not exist there.

If dgym runs as root, more is necessary. A process of root in a user namespace has no capabilities, but it is still the
owner of root's files. The kernel checks the owner, not capabilities, of the files in /proc/sys, and bubblewrap leaves
them writable. Therefore /proc, /dev and / are remounted read-only at the end, and the process gets an ordinary user id.

A program in a namespace still uses the machine's kernel. The seccomp filter refuses the calls with which it could read
another process, use the user's keys, create namespaces and mounts, or use rarely used parts of the kernel. A refused
call fails with EPERM. Calls that libraries try first and can do without fail with ENOSYS, as on an older kernel. The
filter is a classic BPF program: see seccomp(2), and ``seccomp_data`` in ``linux/seccomp.h`` for the offsets.
"""

import errno
import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, NamedTuple

from dgym.errors import ManifestError
from dgym.sandbox.local._interpreter import Interpreter
from dgym.sandbox.local._rust import Rust

REFUSED = {
    # Keys of the user's session. Keys are not isolated by namespaces.
    "add_key": (248, 217),
    "keyctl": (250, 219),
    "request_key": (249, 218),
    # Memory, registers and descriptors of other processes, such as the runner.
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    # Parts of the kernel that few programs but many exploits use.
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    # Mounts, namespaces, and file handles, which bypass mounts.
    "chroot": (161, 51),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "pivot_root": (155, 41),
    "setns": (308, 268),
    "umount2": (166, 39),
    # The machine as a whole.
    "acct": (163, 89),
    "delete_module": (176, 106),
    "finit_module": (313, 273),
    "init_module": (175, 105),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "reboot": (169, 142),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
}
"""Calls that fail with EPERM, with their numbers on x86_64 and aarch64."""

ABSENT = {
    # Its flags are in memory, which a filter cannot read. The C library falls back to clone.
    "clone3": (435, 435),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
}
"""Calls that fail with ENOSYS."""

# Refused if the first argument has flags for new namespaces.
_WITH_FLAGS = {"clone": (56, 220), "unshare": (272, 97)}
# NEWTIME, NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET.
NAMESPACES = 0x80 | 0x20000 | 0x2000000 | 0x4000000 | 0x8000000 | 0x10000000 | 0x20000000 | 0x40000000

# Refused if the second argument is a command that inserts characters into the input of a terminal.
_WITH_COMMAND = {"ioctl": (16, 29)}
TIOCSTI, TIOCLINUX = 0x5412, 0x541C

# Refused if the first argument is another family: some give access to drivers (AF_ALG) or the host of a virtual
# machine (AF_VSOCK).
_WITH_FAMILY = {"socket": (41, 198), "socketpair": (53, 199)}
FAMILIES = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10, "AF_NETLINK": 16}

# Refused if it sets limits of another process, such as the runner. The first argument is the process (0: the caller),
# and the third points to the new limits (0: only read them).
_WITH_PROCESS = {"prlimit64": (302, 261)}

# By the kernel's name of the machine: the architecture of a call, and the index of the call's number in the tables.
_MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
_X32 = 0x40000000

ALLOW, KILL = 0x7FFF0000, 0x80000000
REFUSE, ABSENT_HERE, NO_FAMILY = (0x50000 | number for number in (errno.EPERM, errno.ENOSYS, errno.EAFNOSUPPORT))

_LOAD, _RETURN = 0x20, 0x06
_IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT = 0x15, 0x35, 0x45
_NUMBER, _ARCHITECTURE, _FIRST, _SECOND, _THIRD = 0, 4, 16, 24, 32


class _Instruction(NamedTuple):
    """One instruction. A jump without a label continues with the next instruction."""

    code: int
    operand: int
    yes: str = ""
    no: str = ""


def is_supported() -> bool:
    """Return whether this machine's architecture is supported."""
    return os.uname().machine in _MACHINES


def open_filter() -> IO[bytes]:
    """Return the filter for this machine as an open file, for ``bwrap --seccomp``."""
    file = os.fdopen(os.memfd_create("seccomp", os.MFD_CLOEXEC), "w+b")
    file.write(filter_program(os.uname().machine))
    file.seek(0)
    return file


def call_number(name: str, machine: str) -> int | None:
    """Return the number of a system call that this module names; None if the machine does not have it."""
    numbers = {**REFUSED, **ABSENT, **_WITH_FLAGS, **_WITH_COMMAND, **_WITH_FAMILY, **_WITH_PROCESS}[name]
    return numbers[_MACHINES[machine][1]]


def filter_program(machine: str) -> bytes:
    """Return the filter for a machine (as in ``uname -m``), an array of ``struct sock_filter``."""
    architecture, _ = _MACHINES[machine]
    tests = (
        *((_WITH_FLAGS, "flags"), (_WITH_COMMAND, "command"), (_WITH_FAMILY, "family"), (_WITH_PROCESS, "process")),
        *((REFUSED, "refuse"), (ABSENT, "absent")),
    )
    numbered = [(call_number(name, machine), label) for names, label in tests for name in names]
    return _assemble(
        [
            # Calls of another architecture (32-bit programs) have different numbers.
            _Instruction(_LOAD, _ARCHITECTURE),
            _Instruction(_IF_EQUAL, architecture, no="kill"),
            _Instruction(_LOAD, _NUMBER),
            # Calls of x32 have the architecture of x86_64 but different numbers.
            *([_Instruction(_IF_AT_LEAST, _X32, yes="absent")] if machine == "x86_64" else []),
            *(_Instruction(_IF_EQUAL, number, yes=label) for number, label in numbered if number is not None),
            _Instruction(_RETURN, ALLOW),
            "flags",
            _Instruction(_LOAD, _FIRST),
            _Instruction(_IF_ANY_BIT, NAMESPACES, yes="refuse", no="allow"),
            "command",
            _Instruction(_LOAD, _SECOND),
            _Instruction(_IF_EQUAL, TIOCSTI, yes="refuse"),
            _Instruction(_IF_EQUAL, TIOCLINUX, yes="refuse"),
            _Instruction(_RETURN, ALLOW),
            "family",
            _Instruction(_LOAD, _FIRST),
            *(_Instruction(_IF_EQUAL, family, yes="allow") for family in FAMILIES.values()),
            _Instruction(_RETURN, NO_FAMILY),
            "process",
            _Instruction(_LOAD, _FIRST),
            _Instruction(_IF_EQUAL, 0, yes="allow"),
            *(
                instruction
                for half in (_THIRD, _THIRD + 4)
                for instruction in (_Instruction(_LOAD, half), _Instruction(_IF_EQUAL, 0, no="refuse"))
            ),
            "allow",
            _Instruction(_RETURN, ALLOW),
            "refuse",
            _Instruction(_RETURN, REFUSE),
            "absent",
            _Instruction(_RETURN, ABSENT_HERE),
            "kill",
            _Instruction(_RETURN, KILL),
        ]
    )


def _assemble(program: Sequence[_Instruction | str]) -> bytes:
    """Encode a program. A label is before the instruction that it names; jumps can only go forward."""
    instructions: list[_Instruction] = []
    labels: dict[str, int] = {}
    for item in program:
        if isinstance(item, str):
            labels[item] = len(instructions)
        else:
            instructions.append(item)
    return b"".join(
        struct.pack("=HBBI", code, *(labels[to] - at - 1 if to else 0 for to in (yes, no)), operand)
        for at, (code, operand, yes, no) in enumerate(instructions)
    )


RUNNER_INSIDE = "/opt/dgym/runner"
SHIMS_INSIDE = "/opt/dgym/bin"
OVERLAY_INSIDE = "/opt/dgym/environment"
CRATES_INSIDE = "/opt/dgym/crates"
HOME_INSIDE = "/home/agent"
RUN_INSIDE = "/run/dgym"
USER_ID = 1000

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC = (
    "alternatives",
    "ca-certificates",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "mime.types",
    "os-release",
    "pki/ca-trust",
    "pki/tls/certs",
    "protocols",
    "services",
    "ssl/certs",
    "ssl/openssl.cnf",
    "timezone",
)
_STORES = ("/nix/store", "/gnu/store")
_RESERVED = ("/proc", "/dev", "/sys", "/etc", "/opt/dgym", "/run/dgym", *_SYSTEM)
_SMALL_BYTES = 64 * 1024**2
TMP_BYTES = 512 * 1024**2
"""Size of the temporary directory and of the home directory, each. They use memory of the machine."""


@dataclass(frozen=True)
class Layout:
    """The paths of this machine that are visible in one sandbox.

    Attributes:
        etc: Directory with the sandbox's own files of /etc.
        shims: Directory with a link ``python`` to the interpreter.
        overlay: Directory of the overlay of this sandbox.
        build: Interpreter of the environment with the build requirements.
        rust: Directories of the Rust toolchain and of vendored crates.
        tmp_bytes: Size of the temporary directory and of the home directory, each.
    """

    workspace: Path
    workspace_inside: str
    etc: Path
    runner: Path | None = None
    shims: Path | None = None
    overlay: Path | None = None
    build: Interpreter | None = None
    rust: Rust | None = None
    interpreter: Interpreter | None = None
    tmp_bytes: int = TMP_BYTES


def bubblewrap_works() -> bool:
    """True if a trial run with the namespaces, mounts and filter of a sandbox succeeds. It is run once per process."""
    return bubblewrap_problem() is None


@cache
def bubblewrap_problem() -> str | None:
    """Return why bubblewrap cannot be used on this machine; None if it can."""
    program = shutil.which("bwrap")
    if program is None:
        return "bwrap is not installed"
    if not is_supported():
        return f"dgym has no seccomp filter for {os.uname().machine}"
    with tempfile.TemporaryDirectory(prefix="dgym-trial-") as directory:
        try:
            os.close(os.pidfd_open(os.getpid()))
            layout = Layout(workspace=Path(directory), workspace_inside="/workspace", etc=write_etc(Path(directory)))
            with open_filter() as file:
                trial = subprocess.run(
                    [*command_line(layout), "--seccomp", str(file.fileno()), "--", "/bin/sh", "-c", "exit 0"],
                    capture_output=True,
                    stdin=subprocess.DEVNULL,
                    pass_fds=[file.fileno()],
                    timeout=30,
                    check=False,
                )
        except (OSError, subprocess.SubprocessError) as error:
            return str(error)
    if trial.returncode == 0:
        return None
    return trial.stderr.decode("utf-8", "replace").strip() or f"bwrap ended with status {trial.returncode}"


def command_line(layout: Layout) -> list[str]:
    """Return the command line of ``bwrap``, without the program to start.

    Raises:
        ManifestError: The workspace has an invalid path, or the interpreter's prefix contains the home directory.
    """
    check_workspace(layout.workspace_inside)
    inside = Path(layout.workspace_inside)
    interpreters = [each for each in (layout.interpreter, layout.build) if each is not None]
    prefixes = tuple(_prefixes(interpreters))
    arguments = [shutil.which("bwrap") or "bwrap", *_namespaces()]
    for path in (*_SYSTEM, "/sys/devices/system/cpu"):
        arguments += _bind(Path(path), inside)
    arguments += ["--proc", "/proc", "--dev", "/dev"]
    for path in filter(os.path.exists, ("/proc/keys", "/proc/key-users")):
        # Keys are not isolated by namespaces. The bind mount does not allow devices, so the file cannot be read.
        arguments += ["--ro-bind", os.devnull, path]
    for path in ("/dev/shm", RUN_INSIDE):  # noqa: S108 - the sandbox's own
        arguments += _tmpfs(path, _SMALL_BYTES)
    for path in ("/tmp", HOME_INSIDE):  # noqa: S108 - the sandbox's own
        arguments += _tmpfs(path, layout.tmp_bytes)
    arguments += _etc(layout.etc)
    shown = [argument for prefix in prefixes for argument in _bind(prefix, inside)]
    workspace = ["--bind", str(layout.workspace), str(inside)]
    arguments += [*shown, *workspace] if _is_inside_any(inside, prefixes) else [*workspace, *shown]
    arguments += _links(interpreters, prefixes)
    for package in _packages_of_dgym(prefixes):
        arguments += ["--tmpfs", str(package), "--remount-ro", str(package)]
    if layout.runner is not None:
        arguments += ["--ro-bind", str(layout.runner), RUNNER_INSIDE]
    if layout.shims is not None:
        arguments += ["--ro-bind", str(layout.shims), SHIMS_INSIDE]
    if layout.overlay is not None:
        arguments += ["--bind", str(layout.overlay), OVERLAY_INSIDE]
    if layout.rust is not None:
        arguments += _rust(layout.rust, prefixes)
    for path in ("/proc", "/dev", "/"):
        arguments += ["--remount-ro", path]
    return [*arguments, "--chdir", str(inside)]


def check_workspace(path: str) -> None:
    """Check that a workspace path does not hide paths that the sandbox needs.

    Raises:
        ManifestError: The path is relative, not normalized, or a directory of the system.
    """
    pure = Path(path)
    if not pure.is_absolute() or str(pure) != path or path.startswith("//") or ".." in pure.parts:
        raise ManifestError(
            f"workingDirectory {path!r} must be an absolute path without '..' and without a slash at its end, such as "
            "/workspace"
        )
    below = [
        reserved
        for reserved in ("/proc", "/dev", "/sys", "/etc", "/opt/dgym", "/run/dgym")
        if pure.is_relative_to(reserved)
    ]
    above = [reserved for reserved in (*_RESERVED, HOME_INSIDE, "/tmp") if Path(reserved).is_relative_to(pure)]  # noqa: S108
    if below or above:
        reserved = (below + above)[0]
        raise ManifestError(
            f"workingDirectory {path!r} would replace {reserved} in the sandbox; choose another, such as /workspace"
        )


def write_etc(directory: Path) -> Path:
    """Write the sandbox's own files of /etc, so that the machine's users and host names are not visible inside."""
    etc = directory / "etc"
    etc.mkdir()
    files = {
        "passwd": f"root:x:0:0:root:/root:/bin/sh\nagent:x:{USER_ID}:{USER_ID}:agent:{HOME_INSIDE}:/bin/sh\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/bin/false\n",
        "group": f"root:x:0:\nagent:x:{USER_ID}:\nnogroup:x:65534:\n",
        "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
        "hosts": "127.0.0.1 localhost dgym\n::1 localhost\n",
        "hostname": "dgym\n",
    }
    for name, text in files.items():
        (etc / name).write_text(text)
    return etc


def _namespaces() -> list[str]:
    arguments = ["--unshare-user", "--uid", str(USER_ID), "--gid", str(USER_ID)]
    if "--disable-userns" in _options():
        arguments.append("--disable-userns")
    arguments += ["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net", "--unshare-cgroup-try"]
    return [*arguments, "--hostname", "dgym", "--cap-drop", "ALL", "--die-with-parent", "--new-session", "--as-pid-1"]


@cache
def _options() -> str:
    """Return the help text of the installed bubblewrap, to check for options that were added in 0.8."""
    answer = subprocess.run(["bwrap", "--help"], capture_output=True, text=True, timeout=30, check=False)
    return answer.stdout + answer.stderr


def _tmpfs(path: str, size: int) -> list[str]:
    bounded = ["--size", str(size)] if "--size" in _options() else []
    return [*bounded, "--tmpfs", path]


def _bind(path: Path, hole: Path) -> list[str]:
    """Mount ``path`` read-only. If the workspace ``hole`` is below it, mount its entries except the workspace."""
    if path.is_symlink():
        return ["--symlink", str(path.readlink()), str(path)]
    if not path.exists() or path == hole:
        return []
    if not hole.is_relative_to(path):
        return ["--ro-bind", str(path), str(path)]
    arguments = ["--dir", str(path)]
    for child in sorted(path.iterdir()):
        arguments += _bind(child, hole)
    return arguments


def _etc(own: Path) -> Iterator[str]:
    for name in _ETC:
        if Path("/etc", name).exists():
            yield from ("--ro-bind", f"/etc/{name}", f"/etc/{name}")
    for file in sorted(own.iterdir()):
        yield from ("--ro-bind", str(file), f"/etc/{file.name}")


def _prefixes(interpreters: Sequence[Interpreter]) -> list[Path]:
    """Return the directories of interpreters, outermost first, both with symbolic links and resolved."""
    candidates: list[Path] = []
    for prefix in [Path(prefix) for interpreter in interpreters for prefix in interpreter.prefixes]:
        candidates += [prefix, prefix.resolve()]
        candidates += [Path(store) for store in _STORES if prefix.resolve().is_relative_to(store)]
    chosen: list[Path] = []
    for candidate in sorted(set(candidates), key=lambda path: len(path.parts)):
        if _is_inside_any(candidate, (*map(Path, _SYSTEM), *chosen)):
            continue
        if Path.home().is_relative_to(candidate):
            raise ManifestError(
                f"python {interpreters[0].executable!r} has the prefix {candidate}, which contains your home directory "
                "and would show it to untrusted programs; use a virtual environment"
            )
        chosen.append(candidate)
    return chosen


@cache
def _packages_of_dgym(prefixes: tuple[Path, ...]) -> tuple[Path, ...]:
    """Return dgym's packages in visible directories. They must be hidden: they have solutions of bundled tasks."""
    visible = (Path("/usr"), Path("/usr/local"), *prefixes)
    found = {package for root in visible for package in root.glob("lib*/python*/*-packages/dgym")}
    own = Path(__file__).resolve().parents[1]
    if _is_inside_any(own, visible):
        found.add(own)
    return tuple(sorted(package for package in found if package.is_dir() and not package.is_symlink()))


def _links(interpreters: Sequence[Interpreter], visible: Sequence[Path]) -> list[str]:
    """Return arguments for the symbolic links from interpreters to their files that are not in a visible directory."""
    arguments: list[str] = []
    for start in [name for each in interpreters for name in (each.executable, each.base_executable)]:
        path = Path(start)
        while path.is_symlink():
            target = path.readlink()
            if not _is_inside_any(path, (*visible, *map(Path, _SYSTEM))) and str(path) not in arguments:
                arguments += ["--symlink", str(target), str(path)]
            path = Path(os.path.normpath(path.parent / target))
    return arguments


def _rust(rust: Rust, visible: Iterable[Path]) -> list[str]:
    crates = [] if rust.crates is None else ["--ro-bind", rust.crates, CRATES_INSIDE]
    if _is_inside_any(Path(rust.toolchain), (*visible, *map(Path, _SYSTEM))):
        return crates
    return ["--ro-bind", rust.toolchain, rust.toolchain, *crates]


def _is_inside_any(path: Path, directories: Iterable[Path]) -> bool:
    return any(path.is_relative_to(directory) for directory in directories)
