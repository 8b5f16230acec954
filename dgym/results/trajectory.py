"""Trajectories: one header line, then one line a step; on a laptop each is on disk before the next step begins.

JSON lines, because a process can be killed at any byte: every line but the last is then whole, and a reader that
drops a torn last line loses one step at most. docs/trajectory.md describes the fields for other readers.
"""

from pathlib import Path
from typing import Any

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
