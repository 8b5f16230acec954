"""The private directory of a local sandbox, from its making to its removal, and the runner's files.

A directory belongs to a live process as long as that process holds its lock. What a killed process left behind is
recognised by its free lock and removed by the next process that opens a sandbox.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

from dgym.errors import SandboxStartFailed
from dgym.sandbox.local_interpreter import Interpreter

RUNNER_SOURCE = Path(__file__).resolve().parents[1] / "runner"
_LOCK = "lock"
_YOUNG_SECONDS = 60.0


class PrivateDirectory:
    """A directory of one sandbox that only this user can enter; the workspace is inside."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def make(cls) -> "PrivateDirectory":
        """Make it below the machine's directory for temporary files.

        Raises:
            SandboxStartFailed: the disk is full or not writable.
        """
        try:
            path = Path(tempfile.mkdtemp(prefix=_prefix())).resolve()
            lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)
            for name in ("workspace", "home", "tmp", "run"):
                (path / name).mkdir()
        except OSError as error:
            raise SandboxStartFailed(f"a directory for the sandbox could not be made: {error}") from error
        return cls(path, lock)

    @property
    def workspace(self) -> Path:
        """Where the repository stands on this machine."""
        return self.path / "workspace"

    def remove(self) -> None:
        """Remove everything, whatever modes the sandbox left on it. Idempotent."""
        if self._lock < 0:
            return
        remove_tree(self.path)
        os.close(self._lock)
        self._lock = -1


def remove_tree(path: Path) -> None:
    """Remove a tree that untrusted programs made: directories without permissions or nested thousands deep."""
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        return
    except (OSError, RecursionError):
        # rm walks with descriptors, so neither depth nor the length of a path stops it.
        for command in (["chmod", "-R", "u+rwx", "--"], ["rm", "-rf", "--"]):
            subprocess.run([*command, str(path)], capture_output=True, stdin=subprocess.DEVNULL, check=False)


def remove_abandoned(also: Callable[[str], bool | None] | None = None) -> None:
    """Remove directories whose process was killed before it could.

    ``also`` is called with the name of each before; False: something of it still lives, and it is left for later.
    """
    young = time.time() - _YOUNG_SECONDS
    for path in Path(tempfile.gettempdir()).glob(f"{_prefix()}*"):
        with suppress(OSError):
            # Between its making and its locking a directory looks abandoned: leave young ones alone.
            about = path.lstat()
            if about.st_mtime > young or about.st_uid != os.getuid():
                continue
            lock = os.open(path / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if also is None or also(path.name) is not False:
                    remove_tree(path)
            finally:
                os.close(lock)


def cache_directory() -> Path:
    """Where dgym keeps what is costly to make: ``$XDG_CACHE_HOME/dgym``, else ``~/.cache/dgym``.

    A user without a usable home gets a private directory among the temporary files.
    """
    base = os.environ.get("XDG_CACHE_HOME")
    wanted = (Path(base) if base else Path.home() / ".cache") / "dgym"
    try:
        wanted.mkdir(parents=True, exist_ok=True)
        if os.access(wanted, os.W_OK | os.X_OK):
            return wanted
    except OSError:
        pass
    fallback = Path(tempfile.gettempdir(), f"dgym-cache-{os.getuid()}")
    fallback.mkdir(mode=0o700, exist_ok=True)
    if fallback.is_symlink() or fallback.stat().st_uid != os.getuid():
        raise SandboxStartFailed(f"{fallback} belongs to somebody else; set XDG_CACHE_HOME to a directory of yours")
    return fallback


def compiled_runner(interpreter: Interpreter) -> Path:
    """The runner's files with bytecode for ``interpreter``, made once: compiling them at each start would be slow."""
    return _compiled_runner(interpreter.executable, interpreter.cache_tag, runner_digest())


@cache
def _compiled_runner(executable: str, cache_tag: str, digest: str) -> Path:
    target = cache_directory() / "runner" / f"{digest}-{cache_tag}"
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(dir=target.parent, prefix="building-"))
    copy = building / "runner"
    shutil.copytree(RUNNER_SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__", "*.py[co]"))
    # Without bytecode the runner is only slower to start, so an interpreter that cannot compile is no failure. Stale
    # bytecode cannot occur: the directory is named by the digest of its sources and never changes.
    subprocess.run(
        [executable, "-I", "-m", "compileall", "-q", str(copy)],
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=120,
        check=False,
    )
    with suppress(OSError):  # another process was faster: theirs is the same
        copy.rename(target)
    shutil.rmtree(building, ignore_errors=True)
    return target


@cache
def runner_digest() -> str:
    """Names the contents of the runner's files."""
    digest = hashlib.sha256()
    for path in sorted(RUNNER_SOURCE.rglob("*.py")):
        digest.update(str(path.relative_to(RUNNER_SOURCE)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _prefix() -> str:
    return f"dgym-{os.getuid()}-"
