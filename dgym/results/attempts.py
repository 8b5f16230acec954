"""The results directory: ``<root>/<namespace>/<episode>/<digest>/<attempt>/``.

The digest covers task, agent and sample, so a changed prompt or a repaired task runs again while everything else is
found finished. ``result.json`` is written last and atomically: where it stands, the episode is over.
"""

import os
import re
import time
from pathlib import Path

import msgspec

from dgym.wire import Result
from dgym.workspace.sources import RESULTS_MARKER

INLINE_PATCH_LIMIT = 1024**2
"""Bytes of patch kept inside ``result.json``; a larger one stands in ``patch.diff`` alone."""


class StoredResult(Result, frozen=True, kw_only=True, rename="camel"):
    """``result.json``: the result, and which episode it belongs to.

    ``wall_seconds`` are those of the whole attempt, where ``duration_seconds`` leave out preparation and scoring;
    None when the process that began the attempt is not the one that stored its result. ``price`` of all the
    tokens is a decimal number as text, None where the model's configuration tells no prices.
    """

    namespace: str = "local"
    episode: str = ""
    task: str = ""
    agent: str = ""
    model: str = ""
    sample: int = 0
    attempt: int = 1
    digest: str = ""
    start_time: str = ""
    wall_seconds: float | None = None
    price: str | None = None


class Attempt:
    """The directory of one attempt at an episode; ``began`` is the monotonic time at which this process made it."""

    def __init__(self, path: Path, *, began: float | None = None) -> None:
        self.path = path
        self._began = began
        self.number = int(path.name)
        self.trajectory = path / "trajectory.jsonl"
        self.patch = path / "patch.diff"
        self.result = path / "result.json"
        self.log = path / "episode.log"

    def save(self, result: StoredResult) -> StoredResult:
        """Store the patch, then the result; returns it with its place filled in."""
        patch = result.patch.encode("utf-8", "surrogateescape")
        _write_atomically(self.patch, patch)
        stored = msgspec.structs.replace(
            result,
            attempt=self.number,
            result_uri=self.path.resolve().as_uri(),
            patch=result.patch if len(patch) <= INLINE_PATCH_LIMIT else "",
            wall_seconds=None if self._began is None else round(time.monotonic() - self._began, 3),
        )
        _write_atomically(self.result, msgspec.json.format(msgspec.json.encode(stored), indent=2) + b"\n")
        return stored

    def load(self) -> StoredResult | None:
        """The stored result; None while there is none, or when it is not readable as one."""
        try:
            return msgspec.json.decode(self.result.read_bytes(), type=StoredResult)
        except (OSError, msgspec.MsgspecError):
            return None


class EpisodeFolder:
    """All attempts at one episode (one task, one agent, one sample)."""

    def __init__(self, path: Path, *, root: Path | None = None) -> None:
        self.path = path
        self._root = root

    def attempts(self) -> list[Attempt]:
        """Every attempt, oldest first."""
        try:
            names = [entry.name for entry in self.path.iterdir() if entry.name.isdecimal()]
        except FileNotFoundError:
            return []
        return [Attempt(self.path / name) for name in sorted(names, key=int)]

    def new_attempt(self) -> Attempt:
        """Make the directory of the next attempt; two processes never get the same one."""
        while True:
            number = max((attempt.number for attempt in self.attempts()), default=0) + 1
            path = self.path / str(number)
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                path.mkdir()
            except FileExistsError:
                continue
            if self._root is not None:
                # Tells whoever packs a repository around it that this is none of it.
                (self._root / RESULTS_MARKER).touch()
            return Attempt(path, began=time.monotonic())

    def result(self) -> StoredResult | None:
        """The result of the newest attempt that has one."""
        for attempt in reversed(self.attempts()):
            if (stored := attempt.load()) is not None:
                return stored
        return None


class ResultsStore:
    """A results directory; nothing is created before the first attempt."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def episode(self, namespace: str, episode: str, digest: str) -> EpisodeFolder:
        """Where the attempts at an episode are."""
        path = self.root / _segment(namespace or "local") / _segment(episode) / _segment(digest)
        return EpisodeFolder(path, root=self.root)


def _segment(name: str) -> str:
    """``name`` as one path segment, whatever it holds: a name never leaves its directory."""
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", name)
    return safe if safe.strip(".") else f"_{safe}"


def _write_atomically(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
