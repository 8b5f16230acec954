"""Recorder of what API readers see during a run: every version of pods, Episodes, sets and Events, and the Secrets.

It records during the run, because tests delete their namespaces.
"""

import os
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

from tests.security.leaks import documents

DIRECTORY = "DGYM_E2E_WITNESS"
SECRETS = "secrets"
OBJECTS = ("pods", "episodes", "episodesets", "debugtasks", "events", "configmaps")
PAUSE = 2.0


@contextmanager
def witnessed() -> Iterator[None]:
    """Record until the end. Only this user can read the directory, and it is deleted with the run."""
    with tempfile.TemporaryDirectory(prefix="dgym-witness-") as directory, ExitStack() as watches:
        for kind in (SECRETS, *OBJECTS):
            watches.enter_context(_Watch(kind, Path(directory)))
        os.environ[DIRECTORY] = directory
        yield


def seen(kind: str) -> list[dict[str, Any]]:
    """Every recorded version of every object of a kind."""
    text = (Path(os.environ[DIRECTORY]) / f"{kind}.json").read_text("utf-8", "replace")
    return list(documents(text))


class _Watch:
    """``kubectl get --watch``, restarted when it ends: the kind may not exist yet, the API server may be stopped."""

    def __init__(self, kind: str, directory: Path) -> None:
        self._command = ("kubectl", "get", kind, "--all-namespaces", "--watch", "--output", "json")
        self._path = directory / f"{kind}.json"
        self._over = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> None:
        self._path.touch(mode=0o600)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._process is not None:
            self._process.terminate()
        self._thread.join(30)

    def _run(self) -> None:
        while not self._over.is_set():
            with self._path.open("ab") as file:
                self._follow(file)
            self._over.wait(PAUSE)

    def _follow(self, file: IO[bytes]) -> None:
        self._process = subprocess.Popen(self._command, stdout=file, stderr=subprocess.DEVNULL)
        if self._over.is_set():
            self._process.terminate()
        self._process.wait()
