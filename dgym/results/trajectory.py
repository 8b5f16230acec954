"""Trajectories: one header line, then one line a step, each on disk before the next step begins.

JSON lines, because a process can be killed at any byte: every line but the last is then whole, and a reader that
drops a torn last line loses one step at most. docs/trajectory.md describes the fields for other readers.
"""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from dgym.errors import ManifestError
from dgym.wire import Step

SCHEMA_VERSION = 1


class TrajectoryHeader(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The first line: what was run, so that the steps below it can be understood and run again.

    ``manifest`` is the file the episode came from, or ``bundled:NAME``; ``tools`` and ``agent`` are as the manifest
    gives them after overrides. Neither the solution nor anything that scores is in a trajectory.
    """

    schema_version: int = SCHEMA_VERSION
    dgym_version: str = ""
    namespace: str = "local"
    episode: str = ""
    sample: int = 0
    attempt: int = 1
    task: str = ""
    task_digest: str = ""
    digest: str = ""
    manifest: str = ""
    agent: dict[str, Any] = msgspec.field(default_factory=dict)
    tools: tuple[Any, ...] = ()
    sandbox: str = "auto"
    start_time: str = ""


class TimedStep(Step, frozen=True, kw_only=True, rename="camel"):
    """A step as a line of the file: ``elapsed_seconds`` since the attempt began, when its observation was there.

    What passed between two lines beyond the tool's own duration is the agent's time. ``exchanges`` are what the agent
    and its model said to each other before the call; left out where no model was asked.
    """

    elapsed_seconds: float
    exchanges: tuple[Any, ...] | msgspec.UnsetType = msgspec.UNSET


class Trajectory(msgspec.Struct, frozen=True, kw_only=True):
    """A trajectory as read back. ``torn`` says that the last line was cut short and left out."""

    header: TrajectoryHeader
    steps: tuple[Step, ...]
    torn: bool = False


class TrajectoryWriter:
    """Appends steps to a trajectory file.

    One unbuffered ``write`` a line: what was written survives the death of the process, though not of the machine
    (an fsync for every step would cost more than most steps).
    """

    def __init__(self, path: Path, header: TrajectoryHeader) -> None:
        self._encoder = msgspec.json.Encoder()
        self._started = time.monotonic()
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._write_line(header)

    def write(self, step: Step, exchanges: Sequence[Any] = ()) -> None:
        """Append one step, with the exchanges that led to it."""
        self._write_line(
            TimedStep(
                seq=step.seq,
                call=step.call,
                observation=step.observation,
                elapsed_seconds=round(time.monotonic() - self._started, 6),
                exchanges=tuple(exchanges) or msgspec.UNSET,
            )
        )

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _write_line(self, value: TrajectoryHeader | Step) -> None:
        rest = memoryview(self._encoder.encode(value) + b"\n")
        while rest:
            rest = rest[os.write(self._file, rest) :]


def read_trajectory(path: Path) -> Trajectory:
    """Read a trajectory, leaving out a last line that a killed process left half written.

    Raises:
        ManifestError: The file cannot be read or is not a trajectory; the line is named.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ManifestError(f"{path}: cannot read the trajectory: {error.strerror}") from None
    lines = data.split(b"\n")
    torn = lines.pop() != b""
    if not lines:
        raise ManifestError(f"{path}: not a trajectory: the header line is missing")
    header = _decode_header(lines[0], path)
    steps = tuple(_decode_step(line, path, number) for number, line in enumerate(lines[1:], start=2) if line.strip())
    return Trajectory(header=header, steps=steps, torn=torn)


def _decode_header(line: bytes, path: Path) -> TrajectoryHeader:
    try:
        fields = msgspec.json.decode(line, type=dict[str, Any])
        if "schemaVersion" not in fields:
            raise ManifestError(
                f"{path}:1: not a trajectory: the first line has no schemaVersion"
                " (a list of calls runs with --agent replay -p agent.parameters.trajectory=FILE)"
            )
        return msgspec.json.decode(line, type=TrajectoryHeader)
    except msgspec.MsgspecError as error:
        raise ManifestError(f"{path}:1: not a trajectory: {error}") from None


def _decode_step(line: bytes, path: Path, number: int) -> Step:
    try:
        return msgspec.json.decode(line, type=Step)
    except msgspec.MsgspecError as error:
        raise ManifestError(f"{path}:{number}: not a step: {error}") from None
