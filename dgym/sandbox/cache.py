"""The user's cache directory, and in it the copies of the runner's files that sandboxes start from."""

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
    """The cache directory of dgym: ``$XDG_CACHE_HOME/dgym``, else ``~/.cache/dgym``.

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
        raise SandboxStartFailed(f"{fallback} belongs to another user; set XDG_CACHE_HOME to a directory of yours")
    return fallback


def compiled_runner(executable: str, cache_tag: str) -> Path:
    """The runner's files with the bytecode of one interpreter: compiling them at each start would be slow."""

    def compile_all(copy: Path) -> None:
        # Without bytecode the runner is only slower to start, so an interpreter that cannot compile is no failure.
        # Stale bytecode cannot occur: the directory is named by the digest of its sources and never changes.
        subprocess.run(
            [executable, "-I", "-S", "-m", "compileall", "-q", str(copy)],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=120,
            check=False,
        )

    return _runner_copy(cache_tag, compile_all)


def shared_runner() -> Path:
    """The runner's files readable for every user of this machine, whichever one a container's user maps to.

    Without bytecode: the image's interpreter is not known, and the directory is read-only inside.
    """

    def open_to_all(copy: Path) -> None:
        for path in (copy, *copy.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)

    return _runner_copy("shared", open_to_all)


def _runner_copy(name: str, finish: Callable[[Path], None]) -> Path:
    """A copy of the runner's sources, made and finished once for each version of them."""
    target = cache_directory() / "runner" / f"{runner_digest()}-{name}"
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(dir=target.parent, prefix="building-"))
    copy = building / "runner"
    shutil.copytree(RUNNER_SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__", "*.py[co]"))
    finish(copy)
    with suppress(OSError):  # another process was faster: its copy is the same
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
