"""The command line that puts a runner under bubblewrap, and whether bubblewrap works on this machine.

What is visible inside is listed, never subtracted: the system's programs and libraries, a few files of /etc, the
task's interpreter, the runner and the workspace. Everything else of the machine does not exist there.

Root needs care. A process of root in a user namespace holds no capabilities, but it still *owns* root's files: the
entries of /proc/sys ask for the owner, not for a capability, and bubblewrap leaves them writable. So /proc, /dev and
/ are remounted read-only after everything is in place, and the process appears under an ordinary user id.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from dgym.errors import ManifestError
from dgym.sandbox.local import seccomp
from dgym.sandbox.local.interpreter import Interpreter
from dgym.sandbox.local.rust import Rust

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
"""The most that each of the temporary directory and the home may hold: they are memory of the machine."""


@dataclass(frozen=True)
class Layout:
    """The files that one sandbox sees, as paths of this machine.

    ``etc``, ``shims`` and ``overlay`` are directories made for it. ``build`` is the interpreter of an environment that
    is visible, too. ``rust`` is the directories of a toolchain and of crates that are visible.
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
    """True when a trial run with the namespaces, mounts and filter of a sandbox succeeded (decided once)."""
    return bubblewrap_problem() is None


@cache
def bubblewrap_problem() -> str | None:
    """Why bubblewrap cannot be used on this machine; None when it can."""
    program = shutil.which("bwrap")
    if program is None:
        return "bwrap is not installed"
    if not seccomp.is_supported():
        return f"there is no seccomp filter for {os.uname().machine}"
    with tempfile.TemporaryDirectory(prefix="dgym-trial-") as directory:
        try:
            os.close(os.pidfd_open(os.getpid()))
            layout = Layout(workspace=Path(directory), workspace_inside="/workspace", etc=write_etc(Path(directory)))
            with seccomp.open_filter() as file:
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
    """The arguments of ``bwrap`` up to the program it shall start."""
    check_workspace(layout.workspace_inside)
    inside = Path(layout.workspace_inside)
    interpreters = [each for each in (layout.interpreter, layout.build) if each is not None]
    prefixes = tuple(_prefixes(interpreters))
    arguments = [shutil.which("bwrap") or "bwrap", *_namespaces()]
    for path in (*_SYSTEM, "/sys/devices/system/cpu"):
        arguments += _bind(Path(path), inside)
    arguments += ["--proc", "/proc", "--dev", "/dev"]
    for path in filter(os.path.exists, ("/proc/keys", "/proc/key-users")):
        # Keys belong to no namespace; without device files the mount makes the file unreadable.
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
    """Refuse a workspace that would hide what the sandbox itself needs.

    Raises:
        ManifestError: the path is relative, not in its shortest form, or a directory of the system.
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
            f"workingDirectory {path!r} would take the place of {reserved} in the sandbox; choose another, such as "
            "/workspace"
        )


def write_etc(directory: Path) -> Path:
    """Make the files of /etc that are the sandbox's own: the machine's users and names stay unknown inside."""
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
    """The help of this version of bubblewrap, which names its options: some that are used here came with 0.8."""
    answer = subprocess.run(["bwrap", "--help"], capture_output=True, text=True, timeout=30, check=False)
    return answer.stdout + answer.stderr


def _tmpfs(path: str, size: int) -> list[str]:
    bounded = ["--size", str(size)] if "--size" in _options() else []
    return [*bounded, "--tmpfs", path]


def _bind(path: Path, hole: Path) -> list[str]:
    """Show ``path`` read-only; where the workspace shall stand below it, show what is beside the workspace."""
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
    """The directories that interpreters live in, outermost first, under each name they are reached by."""
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
                f"python {interpreters[0].executable!r} has the prefix {candidate}, which holds your home directory "
                "and would show it to untrusted programs; use a virtual environment"
            )
        chosen.append(candidate)
    return chosen


@cache
def _packages_of_dgym(prefixes: tuple[Path, ...]) -> tuple[Path, ...]:
    """Where dgym stands inside visible directories: its package data holds the solutions of the bundled tasks."""
    visible = (Path("/usr"), Path("/usr/local"), *prefixes)
    found = {package for root in visible for package in root.glob("lib*/python*/*-packages/dgym")}
    own = Path(__file__).resolve().parents[1]
    if _is_inside_any(own, visible):
        found.add(own)
    return tuple(sorted(package for package in found if package.is_dir() and not package.is_symlink()))


def _links(interpreters: Sequence[Interpreter], visible: Sequence[Path]) -> list[str]:
    """The symbolic links between the names of interpreters and their files that no visible directory holds."""
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
