"""From results directories to the episodes that a report counts."""

import itertools
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from dgym.decoding import DECODE_ERRORS
from dgym.errors import ManifestError
from dgym.results.attempts import Attempt, EpisodeFolder, StoredResult, trajectory_lines
from dgym.results.left_out import LeftOut, read_left_out
from dgym.results.report.provenance import Facts, facts_of
from dgym.wire import EndReason

UNREADABLE = "(not a call)"
"""The tool under which a report counts actions that are not calls."""


class Call(msgspec.Struct, frozen=True):
    """One call of a tool, whether it succeeded, and its duration."""

    tool: str
    ok: bool
    seconds: float


class Stages(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The seconds of an attempt by stage.

    ``model`` is the time of its answers, ``queue`` the wait before them; ``agent`` is the rest of the episode's time.
    """

    prepare: float
    model: float
    queue: float
    tools: float
    agent: float
    score: float


class EpisodeRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One episode: the fields of its newest result, and the calls of its trajectory.

    ``arm`` is empty outside a set with arms. ``clean`` and ``signs`` are of the label of integrity; None and none where
    it has no label. ``price`` is that of its tokens, where the configuration of the model has one. ``facts`` are of the
    provenance.
    """

    namespace: str
    episode: str
    task: str
    agent: str
    model: str
    sample: int
    arm: str = ""
    task_labels: dict[str, str] = {}
    attempt: int
    digest: str
    reason: EndReason
    resolved: bool
    score: int
    max_score: int
    steps: int
    rewrites: int
    input_tokens: int
    output_tokens: int
    seconds: float
    start_time: str
    path: str
    clean: bool | None = None
    signs: tuple[str, ...] = ()
    price: float | None = None
    facts: Facts | None = None
    calls: tuple[Call, ...] = ()
    stages: Stages | None = None

    @property
    def has_verdict(self) -> bool:
        """True if rates count the episode: it ended with a verdict, and not by a submission that is never scored."""
        return self.reason.is_verdict and self.reason is not EndReason.SUBMITTED


def run_of(path: str) -> str:
    """The results directory of an episode's path: what stands before namespace, episode and digest."""
    return "/".join(path.split("/")[:-3])


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """The episodes of some results directories.

    ``unfinished`` episodes have an attempt and no readable result. ``superseded`` results belong to an earlier
    configuration of an episode that was run again, and are left out. ``left_out`` are tasks of benchmarks.
    """

    records: tuple[EpisodeRow, ...]
    unfinished: tuple[str, ...] = ()
    superseded: int = 0
    left_out: LeftOut = msgspec.field(default_factory=dict)


def read_run(directories: Sequence[Path], *, every_configuration: bool = False) -> Run:
    """Read results directories, or parts of them.

    Of several attempts the newest with a result counts. Where the same episode was run by the same agent and model in
    more than one configuration (an edited task, another step limit), or more than once in a cluster, the newest counts,
    or with ``every_configuration`` each.

    Raises:
        ManifestError: A directory does not exist, or none of them holds any episode.
    """
    records: dict[Path, EpisodeRow] = {}
    unfinished: list[str] = []
    superseded = 0
    left_out: LeftOut = {}
    for directory in directories:
        if not directory.is_dir():
            raise ManifestError(f"{directory}: there is no such directory; give one that dgym run wrote its results to")
        left_out |= read_left_out(directory)
        found = [_read_folder(folder) for folder in _episode_folders(directory)]
        kept = [record for record in found if isinstance(record, EpisodeRow)]
        ended = {_same(record): record.start_time for record in sorted(kept, key=lambda each: each.start_time)}
        open_runs = [run for run in found if isinstance(run, _Unfinished)]
        unfinished.extend(run.path for run in open_runs if every_configuration or not run.is_before(ended))
        if not every_configuration:
            newest = list(_newest(kept))
            superseded += len(kept) - len(newest)
            kept = newest
        records.update((Path(record.path).resolve(), record) for record in kept)
    if not records and not unfinished:
        raise ManifestError(f"{', '.join(map(str, directories))}: no results there; dgym run writes them")
    ordered = sorted(records.values(), key=lambda record: (record.task, record.sample, record.agent, record.path))
    return Run(records=tuple(ordered), unfinished=tuple(sorted(unfinished)), superseded=superseded, left_out=left_out)


def _episode_folders(directory: Path) -> Iterator[EpisodeFolder]:
    """Every folder with attempts in it; ``directory`` may be any level of a results directory, an attempt too."""
    if _is_attempt(directory):
        yield EpisodeFolder(directory.resolve().parent)
        return
    for path, names, _ in os.walk(directory):
        attempts = {name for name in names if name.isdecimal() and _is_attempt(Path(path, name))}
        if attempts:
            names[:] = [name for name in names if name not in attempts]
            yield EpisodeFolder(Path(path))


def _is_attempt(path: Path) -> bool:
    return (path / "trajectory.jsonl").is_file() or (path / "result.json").is_file()


_Same = tuple[str, str, str, str, str, int]
"""What runs of the same episode by the same agent and model have in common."""


class _Agent(msgspec.Struct, frozen=True):
    name: str = ""
    model: str | None = None


class _Unfinished(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A run without a result: the fields of its trajectory's header, empty where there is none."""

    path: str = ""
    namespace: str = ""
    episode: str = ""
    arm: str = ""
    agent: _Agent = _Agent()
    sample: int = 0
    start_time: str = ""

    def is_before(self, ended: Mapping[_Same, str]) -> bool:
        """Whether the same episode has begun again since, and has ended; ``ended`` has the starts of those runs."""
        same = (self.namespace, self.episode, self.arm, self.agent.name, self.agent.model or "", self.sample)
        return bool(self.start_time) and self.start_time < ended.get(same, "")


def _read_folder(folder: EpisodeFolder) -> EpisodeRow | _Unfinished:
    """The record of an episode, or what is known of a run without a result."""
    attempts = folder.attempts()
    for attempt in reversed(attempts):
        result = attempt.load()
        if result is not None:
            return _record(attempt, result)
    header = _Unfinished()
    with suppress(OSError, *DECODE_ERRORS):
        line = next(iter(trajectory_lines(attempts[-1].trajectory)), b"")
        header = msgspec.json.decode(line, type=_Unfinished)
    return msgspec.structs.replace(header, path=str(folder.path))


def _same(record: EpisodeRow) -> _Same:
    return (record.namespace, record.episode, record.arm, record.agent, record.model, record.sample)


def _newest(records: Iterable[EpisodeRow]) -> Iterator[EpisodeRow]:
    by_episode: dict[_Same, list[EpisodeRow]] = defaultdict(list)
    for record in records:
        by_episode[_same(record)].append(record)
    for same in by_episode.values():
        yield max(same, key=lambda record: (record.start_time, record.path))


def _record(attempt: Attempt, result: StoredResult) -> EpisodeRow:
    steps = _read_steps(attempt.trajectory)
    calls = tuple(
        Call(step.call.tool or UNREADABLE, step.observation.ok, step.observation.duration_seconds)
        for step in steps
        if step.call is not None
    )
    row = row_of(result, attempt=attempt.number, path=str(attempt.path))
    return msgspec.structs.replace(row, calls=calls, stages=_stages(result, steps, calls))


def row_of(result: StoredResult, *, attempt: int, path: str) -> EpisodeRow:
    """The row of a result, without what takes its trajectory: calls and stages."""
    return EpisodeRow(
        namespace=result.namespace,
        episode=result.episode,
        task=result.task,
        agent=result.agent,
        model=result.model,
        sample=result.sample,
        arm=result.arm,
        task_labels=result.task_labels,
        attempt=attempt,
        digest=result.digest,
        reason=result.reason,
        resolved=result.resolved,
        score=result.score,
        max_score=result.max_score,
        steps=result.steps,
        rewrites=result.rewrites,
        input_tokens=result.input_tokens,
        output_tokens=result.output_tokens,
        seconds=result.duration_seconds,
        start_time=result.start_time,
        path=path,
        clean=result.integrity.clean if result.integrity is not None else None,
        signs=tuple(sorted({seen.sign for seen in result.integrity.seen})) if result.integrity is not None else (),
        price=_number(result.price),
        facts=facts_of(result),
    )


def _number(text: str | None) -> float | None:
    """A stored price; one that is no number is not known."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


class _Call(msgspec.Struct, frozen=True):
    tool: str


class _Observation(msgspec.Struct, frozen=True, rename="camel"):
    ok: bool = True
    duration_seconds: float = 0.0


class _Exchange(msgspec.Struct, frozen=True, rename="camel"):
    seconds_model: float = 0.0
    seconds_queue: float = 0.0


class _Step(msgspec.Struct, frozen=True, rename="camel"):
    """What a report needs of a line of a trajectory: texts, the bulk of it, are skipped without being decoded."""

    observation: _Observation
    call: _Call | None = None
    elapsed_seconds: float | None = None
    exchanges: tuple[_Exchange, ...] = ()


_DECODER = msgspec.json.Decoder(_Step)


def _read_steps(path: Path) -> list[_Step]:
    """The steps; a line that is torn or not a step ends them, and a missing file has none."""
    steps: list[_Step] = []
    with suppress(OSError, *DECODE_ERRORS):
        for line in itertools.islice(trajectory_lines(path), 1, None):
            if not line.endswith(b"\n"):
                break
            steps.append(_DECODER.decode(line))
    return steps


def _stages(result: StoredResult, steps: Sequence[_Step], calls: Sequence[Call]) -> Stages | None:
    """The stages of an episode with a verdict; None for older results, which lack their times."""
    if not result.reason.is_verdict or result.wall_seconds is None or not steps or steps[0].elapsed_seconds is None:
        return None
    prepare, tools = steps[0].elapsed_seconds, sum(call.seconds for call in calls)
    model = sum(exchange.seconds_model for step in steps for exchange in step.exchanges)
    queue = sum(exchange.seconds_queue for step in steps for exchange in step.exchanges)
    return Stages(
        prepare=prepare,
        model=model,
        queue=queue,
        tools=tools,
        agent=max(0.0, result.duration_seconds - tools - model - queue),
        score=max(0.0, result.wall_seconds - prepare - result.duration_seconds),
    )
