"""The user's cache directory, and the copies of the runner's files in it from which sandboxes start."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

from dgym.errors import SandboxStartFailed

RUNNER_SOURCE = Path(__file__).resolve().parents[1] / "runner"


def cache_directory() -> Path:
    """Return the cache directory of dgym: ``$XDG_CACHE_HOME/dgym``, by default ``~/.cache/dgym``.

    If it is not writable, a private directory below the directory for temporary files is used.

    Raises:
        SandboxStartFailed: That private directory belongs to another user.
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
        raise SandboxStartFailed(f"{fallback} belongs to another user; set XDG_CACHE_HOME to a directory of yours")
    return fallback


def compiled_runner(executable: str, cache_tag: str) -> Path:
    """Return a directory with the runner's files and their bytecode for one interpreter.

    Compiling the files at each start would be slow.
    """

    def compile_all(copy: Path) -> None:
        # The exit status is ignored: without bytecode the runner starts too, only more slowly.
        # Bytecode cannot become stale: the directory's name has the digest of the sources, and they never change.
        subprocess.run(
            [executable, "-I", "-S", "-m", "compileall", "-q", str(copy)],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=120,
            check=False,
        )

    return _runner_copy(cache_tag, compile_all)


def shared_runner() -> Path:
    """Return a directory with the runner's files that all users of this machine can read.

    The user of a container can be mapped to any user of the machine. The directory does not contain
    bytecode, because the image's interpreter is not known, and the directory is mounted read-only.
    """

    def open_to_all(copy: Path) -> None:
        for path in (copy, *copy.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)

    return _runner_copy("shared", open_to_all)


def _runner_copy(name: str, finish: Callable[[Path], None]) -> Path:
    """Return the cached copy of the runner's sources; create it if this version is not in the cache."""
    target = cache_directory() / "runner" / f"{runner_digest()}-{name}"
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(dir=target.parent, prefix="building-"))
    copy = building / "runner"
    shutil.copytree(RUNNER_SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__", "*.py[co]"))
    finish(copy)
    with suppress(OSError):  # another process has created the same copy
        copy.rename(target)
    shutil.rmtree(building, ignore_errors=True)
    return target


@cache
def runner_digest() -> str:
    """Return the first 16 digits of the SHA-256 of the runner's files."""
    digest = hashlib.sha256()
    for path in sorted(RUNNER_SOURCE.rglob("*.py")):
        digest.update(str(path.relative_to(RUNNER_SOURCE)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
