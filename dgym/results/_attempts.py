"""Attempts at episodes in a results directory: their trajectories and ``result.json`` files.

Also the files in the root of the directory, next to the episodes.
"""

import hashlib
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import msgspec

from dgym.api import LEFT_OUT_ANNOTATION
from dgym.decoding import DECODE_ERRORS
from dgym.errors import ManifestError
from dgym.results._store import LOG, PATCH, RESULT, TRAJECTORY
from dgym.untrusted import open_regular, read_regular
from dgym.wire import Result, Step, ToolCall
from dgym.wire.outcome import Provenance
from dgym.workspace.sources import RESULTS_MARKER

AnyStep = TypeVar("AnyStep")
INLINE_PATCH_LIMIT = 1024**2
"""Maximum number of bytes of a patch in ``result.json``. A larger patch is only in ``patch.diff``."""
RESULT_LIMIT: Final = 16 * 1024**2
PATCH_LIMIT: Final = 128 * 1024**2
TRAJECTORY_LIMIT: Final = 256 * 1024**2
_LINE_LIMIT = 32 * 1024**2
GIVEN_UP = b'{"givenUp": true}\n'
"""The content of ``result.json`` of an attempt that was given up before a result was stored. It is not a result."""
_PLAN = re.compile(r"\.dgym-plan-[0-9a-f]{16}\.json")
_LEFT_OUT = ".dgym-left-out.json"


class StoredResult(Result, frozen=True, kw_only=True):
    """The content of ``result.json``: the result, and the episode that it belongs to.

    Attributes:
        namespace: Namespace of the episode.
        episode: Name of the episode.
        task: Name of the task.
        agent: Name of the agent.
        model: Name of the model, as manifests name it; empty without one.
        sample: Number of the sample, from 0.
        arm: The arm; empty in a set without arms.
        task_labels: Labels of the DebugTask, by which reports group.
        attempt: Number of the attempt, from 1.
        digest: The digest in the path of the files.
        start_time: Start of the attempt, RFC 3339 in UTC.
        wall_seconds: Duration of the whole attempt. None if one process began it and another stored its result.
        provenance: The versions, parameters, prompts and model of the run.
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
    """The directory of one attempt at an episode. Its files are untrusted."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.number = int(path.name)
        self.trajectory = path / TRAJECTORY
        self.patch = path / PATCH
        self.result = path / RESULT
        self.log = path / LOG

    def load(self) -> StoredResult | None:
        """The stored result, or None if it does not exist, is a symbolic link or cannot be decoded."""
        try:
            return decode_result(read_regular(self.result, limit=RESULT_LIMIT))
        except OSError:
            return None

    def read_header(self) -> "TrajectoryHeader":
        """The header in the first line of the trajectory, or an empty header if it cannot be read."""
        try:
            return decode_header(next(iter(trajectory_lines(self.trajectory)), b""))
        except OSError:
            return TrajectoryHeader()

    def read_patch(self) -> bytes:
        """The content of ``patch.diff``, or empty bytes if the file does not exist.

        Raises:
            ManifestError: The file cannot be read, is not a regular file, or has more than 128 MiB.
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
        """All attempts, oldest first."""
        try:
            names = [entry.name for entry in self.path.iterdir() if entry.name.isdecimal()]
        except FileNotFoundError:
            return []
        return [Attempt(self.path / name) for name in sorted(names, key=int)]

    def result(self) -> StoredResult | None:
        """The result of the newest attempt that has a result, or None."""
        for attempt in reversed(self.attempts()):
            if (stored := attempt.load()) is not None:
                return stored
        return None


def decode_result(data: bytes) -> StoredResult | None:
    """The result in the bytes of ``result.json``, or None if they cannot be decoded."""
    try:
        return msgspec.json.decode(data, type=StoredResult)
    except DECODE_ERRORS:
        return None


def episode_path(namespace: str, episode: str, digest: str) -> str:
    """The path of the attempts at an episode, relative to the root. Names are converted to valid path segments."""
    return "/".join(_segment(name) for name in (namespace or "local", episode, digest))


def _segment(name: str) -> str:
    """``name`` as one path segment. The result never leads outside its directory, even if ``name`` is untrusted."""
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", name)
    return safe if re.match(r"[A-Za-z0-9_]", safe) else f"_{safe}"


SCHEMA_VERSION = 1


class TrajectoryHeader(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The first line of a trajectory: the configuration that is needed to understand and to repeat the steps.

    It is written with the first step, or at the end of an episode that did not begin. A trajectory contains neither the
    solution nor hidden files.

    Attributes:
        schema_version: Version of the format. Later versions only add fields.
        dgym_version: Version of dgym that wrote the file.
        namespace: Namespace of the episode.
        episode: Name of the episode.
        sample: Number of the sample, from 0.
        arm: The arm; empty in a set without arms.
        attempt: Number of the attempt, from 1.
        task: Name of the task.
        task_digest: Digest of the task alone.
        entrypoint: The task's command that runs the tests.
        digest: The digest in the path of the files.
        manifest: Absolute path of the manifest, or ``bundled:NAME``.
        agent: ``spec.agent`` of the manifest after overrides, without defaults.
        tools: The tools after overrides, as names or ``{name, options}``.
        sandbox: The value of ``--sandbox``.
        start_time: Start of the attempt, RFC 3339 in UTC.
        replayed_attempt: In a cluster, the lost attempt whose steps this one repeats first; else absent.
        provenance: The values that were known before the first step.
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
    """A step as a line of the trajectory.

    The time between two lines minus the duration of the tool is the agent's time. The type of ``exchanges`` is not
    checked, because agents record different values and people edit trajectories.

    Attributes:
        elapsed_seconds: Time from the start of the attempt to the observation.
        exchanges: The model's requests and replies before the call; absent if no request was sent.
    """

    elapsed_seconds: float = 0.0
    exchanges: Any = msgspec.UNSET


class UnansweredStep(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A step that its agent has sent, with the exchanges before it. It does not have an observation yet."""

    seq: int
    call: ToolCall
    exchanges: tuple[Any, ...] = ()


class Trajectory(msgspec.Struct, Generic[AnyStep], frozen=True, kw_only=True):
    """The readable part of a trajectory.

    Attributes:
        header: The header, empty if it cannot be read.
        steps: The steps before the first step that cannot be read.
        torn: True if the last line is incomplete. It is not part of ``steps``.
        problem: The first error, or empty.
        problem_line: The number of the line with the error, 0 if it concerns the whole file.
    """

    header: TrajectoryHeader = TrajectoryHeader()
    steps: tuple[AnyStep, ...] = ()
    torn: bool = False
    problem: str = ""
    problem_line: int = 0


def parse_trajectory(lines: Iterable[bytes], kind: type[AnyStep]) -> Trajectory[AnyStep]:
    """Parse the trajectory in ``lines``. Each line includes its line feed. A last line without line feed is skipped.

    Steps are decoded as ``kind``: ``TimedStep``, or a struct with some of its fields, which is faster because texts are
    the largest part of a trajectory. If the header cannot be read, the steps are read nevertheless.
    """
    header, problem, torn = None, ("", 0), False
    steps: list[AnyStep] = []
    decoder = msgspec.json.Decoder(kind)
    try:
        for number, line in enumerate(lines, start=1):
            if torn := not line.endswith(b"\n"):
                break
            if header is None:
                header, fault = _decode_header(line)
                problem = (fault, number) if fault else problem
            elif line.strip():
                try:
                    steps.append(decoder.decode(line))
                except DECODE_ERRORS as error:
                    problem = problem if problem[0] else (f"not a step: {error}", number)
                    break
        if header is None:
            problem = ("not a trajectory: the header line is missing", 0)
    except OSError as error:
        problem = (f"cannot read the trajectory: {error.strerror or error}", 0)
    return Trajectory(
        header=header or TrajectoryHeader(), steps=tuple(steps), torn=torn, problem=problem[0], problem_line=problem[1]
    )


def read_trajectory(path: Path) -> Trajectory[TimedStep]:
    """Read a trajectory. An incomplete last line, which a killed process can leave, is skipped.

    Raises:
        ManifestError: The file cannot be read or is not a trajectory. The message contains the line number.
    """
    found = parse_trajectory(trajectory_lines(path), TimedStep)
    if found.problem:
        place = f"{path}:{found.problem_line}" if found.problem_line else str(path)
        raise ManifestError(f"{place}: {found.problem}")
    return found


def decode_header(line: bytes) -> TrajectoryHeader:
    """The header in the first line of a trajectory, or an empty header if it cannot be read."""
    return _decode_header(line)[0]


def _decode_header(line: bytes) -> tuple[TrajectoryHeader, str]:
    """The header and an error message, which is empty if the header is valid."""
    try:
        header = msgspec.json.decode(line, type=TrajectoryHeader)
    except DECODE_ERRORS as error:
        return TrajectoryHeader(), f"not a trajectory: {error}"
    if b'"schemaVersion"' in line:
        return header, ""
    remedy = "a list of calls runs with --agent replay -p agent.parameters.trajectory=FILE"
    return header, f"not a trajectory: the first line has no schemaVersion ({remedy})"


def trajectory_lines(path: Path) -> Iterator[bytes]:
    """The lines of a trajectory with their line feeds. The last line has none if a killed process left it incomplete.

    Raises:
        OSError: The file cannot be read, is a link out of its directory, is not a regular file, or has more than
            256 MiB or a line of more than 32 MiB.
    """
    with open_regular(path, root=path.parent, limit=TRAJECTORY_LIMIT) as file:
        left = TRAJECTORY_LIMIT
        while line := file.readline(_LINE_LIMIT + 1):
            left -= len(line)
            if len(line) > _LINE_LIMIT or left < 0:
                raise OSError(f"{path} is larger, or has a longer line, than a trajectory may have")
            yield line


class Planned(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The planned episodes of a run.

    ``sets`` maps the name of each EpisodeSet to the paths of its episodes, relative to the root of the results. The
    name is empty for episodes without a set. ``began`` is in seconds since the epoch.
    """

    began: float
    sets: dict[str, tuple[str, ...]]


def is_plan(name: str) -> bool:
    """Whether a file with this name is a plan."""
    return _PLAN.fullmatch(name) is not None


def write_plan(root: Path, sets: Mapping[str, Sequence[str]]) -> None:
    """Write the plan of a run that starts now.

    Raises:
        OSError: The file cannot be written.
    """
    fixed = {name: tuple(paths) for name, paths in sets.items()}
    digest = hashlib.sha256(msgspec.json.encode(fixed, order="sorted")).hexdigest()[:16]
    root.mkdir(parents=True, exist_ok=True)
    (root / RESULTS_MARKER).touch()
    path = root / f".dgym-plan-{digest}.json"
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.write_bytes(msgspec.json.encode(Planned(began=round(time.time(), 3), sets=fixed)))
    temporary.replace(path)


def read_plan(data: bytes) -> Planned | None:
    """The plan in the bytes of a file, or None if they cannot be decoded."""
    try:
        return msgspec.json.decode(data, type=Planned)
    except DECODE_ERRORS:
        return None


LeftOut = dict[str, dict[str, int]]
"""By the name of an EpisodeSet: the number of tasks that are left out, by reason (``Flaky``, ``Broken``)."""


def record_left_out(directory: Path, set_name: str, annotations: Mapping[str, str]) -> None:
    """Store the counts in the annotation of an EpisodeSet next to its results. Without annotation they are removed."""
    try:
        counts = msgspec.json.decode(annotations.get(LEFT_OUT_ANNOTATION, "{}"), type=dict[str, int])
    except DECODE_ERRORS:
        return
    known = read_left_out(directory)
    if counts != known.get(set_name, {}):
        merged = {name: found for name, found in {**known, set_name: counts}.items() if found}
        directory.mkdir(parents=True, exist_ok=True)
        temporary = directory / f"{_LEFT_OUT}.part"
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(merged)))
        temporary.replace(directory / _LEFT_OUT)


def read_left_out(directory: Path) -> LeftOut:
    """The stored counts in ``directory``, or an empty mapping."""
    try:
        return msgspec.json.decode(read_regular(directory / _LEFT_OUT), type=LeftOut)
    except (OSError, *DECODE_ERRORS):
        return {}
