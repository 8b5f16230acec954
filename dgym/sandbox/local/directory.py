"""The private directory of a local sandbox, from its making to its removal, and the runner's files.

A directory belongs to a live process as long as that process holds its lock. What a killed process left behind is
recognised by its free lock and removed by the next process that opens a sandbox.
"""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from dgym.errors import SandboxStartFailed
from dgym.locks import acquire, try_acquire

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
            lock = acquire(path / _LOCK)
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
            lock = try_acquire(path / _LOCK, create=False)
            if lock is None:
                continue
            try:
                if also is None or also(path.name) is not False:
                    remove_tree(path)
            finally:
                os.close(lock)


def _prefix() -> str:
    return f"dgym-{os.getuid()}-"
