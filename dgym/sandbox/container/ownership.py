"""Containers and their owners: a container whose lock is free was left behind by a process that ended.

Lock and container carry the same name.
"""

import hashlib
import os
import platform
import secrets
import time
from contextlib import suppress
from pathlib import Path

from dgym.locks import acquire, try_acquire
from dgym.sandbox.cache import cache_directory

PREFIX = "dgym-"
_SUFFIX = ".lock"
_YOUNG_SECONDS = 60.0


class Ownership:
    """The name of one container, and the lock that says that its owner lives."""

    def __init__(self) -> None:
        self.name = f"{PREFIX}{secrets.token_hex(8)}"
        self._path = directory() / f"{self.name}{_SUFFIX}"
        self._lock = acquire(self._path)

    def release(self) -> None:
        """Say that the container is gone. Idempotent."""
        if self._lock >= 0:
            self._path.unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = -1


def directory() -> Path:
    """Where the locks are."""
    path = cache_directory() / "containers"
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def scope() -> str:
    """Names the containers whose locks are here: an engine may serve other users and machines too."""
    described = f"{platform.node()}\0{os.getuid()}\0{directory().resolve()}"
    return hashlib.sha256(described.encode()).hexdigest()[:16]


def is_abandoned(name: str) -> bool:
    """True when the owner of that container of this scope is gone."""
    try:
        lock = try_acquire(directory() / f"{name}{_SUFFIX}", create=False)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    if lock is None:
        return False
    os.close(lock)
    return True


def forget(name: str) -> None:
    """Remove the lock of an abandoned container that is gone."""
    (directory() / f"{name}{_SUFFIX}").unlink(missing_ok=True)


def forget_unused(existing: set[str]) -> None:
    """Remove the locks of processes that died before or after their container existed."""
    young = time.time() - _YOUNG_SECONDS
    for path in directory().glob(f"{PREFIX}*{_SUFFIX}"):
        name = path.name.removesuffix(_SUFFIX)
        with suppress(OSError):
            # Between its making and its locking a lock looks abandoned.
            if name not in existing and path.lstat().st_mtime < young and is_abandoned(name):
                path.unlink()
