"""Attempts at episodes in a results directory: the trajectory of each, and ``result.json``, written at its end.

The layout is ``<root>/<namespace>/<episode>/<digest or uid>/<attempt>/``. On a laptop the digest covers task, agent and
sample, so a changed prompt or a repaired task runs again while everything else is found finished. ``result.json`` is
written last and at once: where it stands, the episode is over.

A trajectory has one header line, then one line a step; on a laptop each is on disk before the next step begins. These
are JSON lines, because a process can be killed at any byte: every line but the last is then whole, and a reader that
drops a torn last line loses one step at most. docs/trajectory.md describes the fields for other readers.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from dgym.decoding import DECODE_ERRORS
from dgym.errors import ManifestError
from dgym.results.store import LOG, PATCH, RESULT, TRAJECTORY
from dgym.untrusted import open_regular, read_regular
from dgym.wire import Result, Step, ToolCall
from dgym.wire.provenance import Provenance

INLINE_PATCH_LIMIT = 1024**2
"""Bytes of patch kept inside ``result.json``; a larger one stands in ``patch.diff`` alone."""

RESULT_LIMIT: Final = 16 * 1024**2
PATCH_LIMIT: Final = 128 * 1024**2
TRAJECTORY_LIMIT: Final = 256 * 1024**2
_LINE_LIMIT = 32 * 1024**2

GIVEN_UP = b'{"givenUp": true}\n'
"""Stands in for ``result.json`` where an attempt was given up before a result was stored: it is no result."""


class StoredResult(Result, frozen=True, kw_only=True, rename="camel"):
    """``result.json``: the result, and which episode it belongs to.

    ``arm`` is empty outside a set with arms; ``task_labels`` are those of the DebugTask, by which reports group.
    ``wall_seconds`` are those of the whole attempt, where ``duration_seconds`` leave out preparation and scoring;
    None when the process that began the attempt is not the one that stored its result. ``provenance`` is None in
    results of earlier versions.
    """

    namespace: str = "local"
    episode: str = ""
    task: str = ""
    agent: str = ""
    model: str = ""
    sample: int = 0
    arm: str = ""
    task_labels: dict[str, str] = msgspec.field(default_factory=dict)
    attempt: int = 1
    digest: str = ""
    start_time: str = ""
    wall_seconds: float | None = None
    provenance: Provenance | None = None


class Attempt:
    """The directory of one attempt at an episode. A stranger may have written what is in it."""

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
            return decode_result(read_regular(self.result, root=self.path, limit=RESULT_LIMIT))
        except OSError:
            return None

    def read_patch(self) -> bytes:
        """``patch.diff``; empty if there is none.

        Raises:
            ManifestError: It cannot be read, is not a regular file, or has more than 128 MiB.
        """
        try:
            return read_regular(self.patch, root=self.path, limit=PATCH_LIMIT)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise ManifestError(f"{self.patch}: cannot read the patch: {error.strerror or error}") from None


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
    except DECODE_ERRORS:
        return None


def episode_path(namespace: str, episode: str, digest: str) -> str:
    """Where the attempts at an episode are, from the root; names of any kind become segments of a path."""
    return "/".join(_segment(name) for name in (namespace or "local", episode, digest))


def _segment(name: str) -> str:
    """``name`` as one path segment, whatever it holds: a name never leaves its directory."""
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", name)
    return safe if re.match(r"[A-Za-z0-9_]", safe) else f"_{safe}"


SCHEMA_VERSION = 1


class TrajectoryHeader(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The first line: what was run, so that the steps below it can be understood and run again.

    ``manifest`` is the file the episode came from, or ``bundled:NAME``; ``tools`` and ``agent`` are as the manifest
    gives them after overrides. Neither the solution nor anything that scores is in a trajectory. The first steps of an
    attempt that goes on after a lost one are those of ``replayed_attempt``. ``provenance`` is what was known before the
    first step.
    """

    schema_version: int = SCHEMA_VERSION
    dgym_version: str = ""
    namespace: str = "local"
    episode: str = ""
    sample: int = 0
    arm: str = ""
    attempt: int = 1
    task: str = ""
    task_digest: str = ""
    entrypoint: str = ""
    digest: str = ""
    manifest: str = ""
    agent: dict[str, Any] = msgspec.field(default_factory=dict)
    tools: tuple[Any, ...] = ()
    sandbox: str = "auto"
    start_time: str = ""
    replayed_attempt: int | msgspec.UnsetType = msgspec.UNSET
    provenance: Provenance | None = None


class TimedStep(Step, frozen=True, kw_only=True, rename="camel"):
    """A step as a line of the file: ``elapsed_seconds`` since the attempt began, when its observation was there.

    What passed between two lines beyond the tool's own duration is the agent's time. ``exchanges`` are what the agent
    and its model said to each other before the call; left out where no model was asked.
    """

    elapsed_seconds: float
    exchanges: tuple[Any, ...] | msgspec.UnsetType = msgspec.UNSET


class UnansweredStep(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A step as its agent sends it, with the exchanges that led to it; there is no observation yet."""

    seq: int
    call: ToolCall
    exchanges: tuple[Any, ...] = ()


class Trajectory(msgspec.Struct, frozen=True, kw_only=True):
    """A trajectory as read back. ``torn``: the last line was cut short and left out."""

    header: TrajectoryHeader
    steps: tuple[Step, ...]
    torn: bool = False


def read_trajectory(path: Path) -> Trajectory:
    """Read a trajectory, leaving out a last line that a killed process left half written.

    Raises:
        ManifestError: The file cannot be read or is not a trajectory; the line is named.
    """
    steps: list[Step] = []
    header, torn = None, False
    try:
        for number, line in enumerate(trajectory_lines(path), start=1):
            torn = not line.endswith(b"\n")
            if torn:
                break
            if header is None:
                header = _decode_header(line, path)
            elif line.strip():
                steps.append(_decode_step(line, path, number))
    except OSError as error:
        raise ManifestError(f"{path}: cannot read the trajectory: {error.strerror or error}") from None
    if header is None:
        raise ManifestError(f"{path}: not a trajectory: the header line is missing")
    return Trajectory(header=header, steps=tuple(steps), torn=torn)


def trajectory_lines(path: Path) -> Iterator[bytes]:
    """The lines of a trajectory with their line feeds; the last has none if a killed process left it half written.

    Raises:
        OSError: It cannot be read, leads out of its directory, is not a regular file, or has more than 256 MiB or a
            line of more than 32 MiB.
    """
    with open_regular(path, root=path.parent, limit=TRAJECTORY_LIMIT) as file:
        left = TRAJECTORY_LIMIT
        while line := file.readline(_LINE_LIMIT + 1):
            left -= len(line)
            if len(line) > _LINE_LIMIT or left < 0:
                raise OSError(f"{path} has a line or all lines larger than a trajectory may have")
            yield line


def _decode_header(line: bytes, path: Path) -> TrajectoryHeader:
    try:
        fields = msgspec.json.decode(line, type=dict[str, Any])
        if "schemaVersion" not in fields:
            raise ManifestError(
                f"{path}:1: not a trajectory: the first line has no schemaVersion"
                " (a list of calls runs with --agent replay -p agent.parameters.trajectory=FILE)"
            )
        return msgspec.json.decode(line, type=TrajectoryHeader)
    except DECODE_ERRORS as error:
        raise ManifestError(f"{path}:1: not a trajectory: {error}") from None


def _decode_step(line: bytes, path: Path, number: int) -> Step:
    try:
        return msgspec.json.decode(line, type=Step)
    except DECODE_ERRORS as error:
        raise ManifestError(f"{path}:{number}: not a step: {error}") from None
