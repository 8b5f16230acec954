"""Attempts at episodes as they lie in a results directory, and ``result.json``, what each of them ends with.

The layout is ``<root>/<namespace>/<episode>/<digest or uid>/<attempt>/``. On a laptop the digest covers task, agent and
sample, so a changed prompt or a repaired task runs again while everything else is found finished. ``result.json`` is
written last and at once: where it stands, the episode is over.
"""

import re
from pathlib import Path

import msgspec

from dgym.results.store import LOG, PATCH, RESULT, TRAJECTORY
from dgym.wire import Result

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
    """The directory of one attempt at an episode."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.number = int(path.name)
        self.trajectory = path / TRAJECTORY
        self.patch = path / PATCH
        self.result = path / RESULT
        self.log = path / LOG

    def load(self) -> StoredResult | None:
        """The stored result; None while there is none, or when it is not readable as one."""
        try:
            return decode_result(self.result.read_bytes())
        except OSError:
            return None


class EpisodeFolder:
    """All attempts at one episode (one task, one agent, one sample)."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def attempts(self) -> list[Attempt]:
        """Every attempt, oldest first."""
        try:
            names = [entry.name for entry in self.path.iterdir() if entry.name.isdecimal()]
        except FileNotFoundError:
            return []
        return [Attempt(self.path / name) for name in sorted(names, key=int)]

    def result(self) -> StoredResult | None:
        """The result of the newest attempt that has one."""
        for attempt in reversed(self.attempts()):
            if (stored := attempt.load()) is not None:
                return stored
        return None


def decode_result(data: bytes) -> StoredResult | None:
    """The result in ``result.json``; None when it is not readable as one."""
    try:
        return msgspec.json.decode(data, type=StoredResult)
    except msgspec.MsgspecError:
        return None


def episode_path(namespace: str, episode: str, digest: str) -> str:
    """Where the attempts at an episode are, from the root; names of any kind become segments of a path."""
    return "/".join(_segment(name) for name in (namespace or "local", episode, digest))


def _segment(name: str) -> str:
    """``name`` as one path segment, whatever it holds: a name never leaves its directory."""
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", name)
    return safe if re.match(r"[A-Za-z0-9_]", safe) else f"_{safe}"
