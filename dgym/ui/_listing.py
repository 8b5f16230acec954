"""Lists of episodes (filter, sort, paginate), the figures of runs and sets, and comparisons of runs and episodes."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any
from urllib.parse import parse_qsl, urlencode

import msgspec

from dgym.episodes import normalize
from dgym.pace import Pace
from dgym.results import EpisodeEntry, Library, RunProgress, is_live
from dgym.results.report import Report, Run, RunComparison, TaskPair, compare, cost_of, make_report
from dgym.ui._trajectories import Knowledge, Story, Turn, collect_knowledge

PAGE_ROWS = 100
_CHOICES = 200
_TEXT_CHARACTERS = 200
FILTERS = ("run", "set", "state", "arm", "agent", "model", "task", "sample")
"""The fields that a list can be filtered by."""
_SIDES = 200
_TASKS_SHOWN = 500
_SAMPLES_SHOWN = 10
_ALIGNED_STEPS = 1_000
"""Maximum number of steps of each episode that are aligned. Later steps are paired by their number."""
_FIELDS = ("run", "set", "arm", "agent", "model")


def value_of(entry: EpisodeEntry, name: str) -> str:
    """The value of a field of ``FILTERS``, as text."""
    match name:
        case "run":
            return entry.run
        case "set":
            return entry.group
        case "state":
            return entry.state
    return str(getattr(entry.about, name))


def score_of(entry: EpisodeEntry) -> float:
    """The share of the maximum score, or -1 without a result."""
    return -1.0 if entry.row is None else entry.row.score / max(1, entry.row.max_score)


def cost(entry: EpisodeEntry) -> float | None:
    """The stored price of the episode's tokens, or None."""
    return None if entry.row is None else cost_of([entry.row], {})


def tokens(entry: EpisodeEntry) -> int:
    """The number of input and output tokens."""
    return 0 if entry.row is None else entry.row.input_tokens + entry.row.output_tokens


def seconds(entry: EpisodeEntry) -> float:
    """The duration of the episode in seconds, or 0 without a result."""
    return 0.0 if entry.row is None else entry.row.seconds


SORTS: Mapping[str, Callable[[EpisodeEntry], Any]] = {
    "episode": lambda entry: _natural(entry.about.episode),
    "task": lambda entry: entry.about.task,
    "agent": lambda entry: (entry.about.agent, entry.about.model),
    "arm": lambda entry: entry.about.arm,
    "state": lambda entry: entry.state,
    "score": score_of,
    "steps": lambda entry: entry.about.steps,
    "tokens": tokens,
    "cost": lambda entry: -1.0 if (known := cost(entry)) is None else known,
    "duration": seconds,
    "run": lambda entry: entry.run,
    "started": lambda entry: entry.started,
}


def _natural(name: str) -> tuple[str, int, str]:
    """A sort key that puts ``mini-2`` before ``mini-10``."""
    stem = name.rstrip("0123456789")
    number = name[len(stem) :]
    return stem, int(number) if number and len(number) < _TEXT_CHARACTERS else -1, name


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of a list.

    Attributes:
        filters: Required values by field.
        text: A text that the path, task or message must contain, ignoring case.
        sort: A key of ``SORTS``.
        descending: Whether the order is reversed.
        page: The number of the page, from 1.
    """

    filters: tuple[tuple[str, str], ...] = ()
    text: str = ""
    sort: str = "episode"
    descending: bool = False
    page: int = 1

    @classmethod
    def parse(cls, parameters: Mapping[str, str]) -> "Query":
        """Parse the parameters of a URL. Unknown values are ignored."""
        order = parameters.get("sort", "")
        number = parameters.get("page", "1")
        return cls(
            filters=tuple((name, parameters[name]) for name in FILTERS if parameters.get(name)),
            text=parameters.get("q", "")[:_TEXT_CHARACTERS],
            sort=order.lstrip("-") if order.lstrip("-") in SORTS else "episode",
            descending=order.startswith("-"),
            page=max(1, int(number)) if number.isdecimal() and len(number) < 9 else 1,
        )

    def parameters(self, **changed: str) -> dict[str, str]:
        """The parameters of the URL, with the values in ``changed``. Default values are left out."""
        order = ("-" if self.descending else "") + self.sort
        page = {"page": str(self.page)} if self.page > 1 else {}
        all_ = {**dict(self.filters), "q": self.text, "sort": "" if order == "episode" else order, **page, **changed}
        return {name: value for name, value in all_.items() if value}

    def select(self, entries: Iterable[EpisodeEntry]) -> list[EpisodeEntry]:
        """The entries that match, sorted."""
        text = self.text.casefold()
        found = [
            entry
            for entry in entries
            if all(value_of(entry, name) == value for name, value in self.filters)
            and (not text or text in f"{entry.path} {entry.about.task} {entry.message}".casefold())
        ]
        found.sort(key=SORTS["episode"])
        if self.sort != "episode" or self.descending:
            found.sort(key=SORTS[self.sort], reverse=self.descending)
        return found


def choices(entries: Iterable[EpisodeEntry], name: str) -> list[str]:
    """The values that the filter of a field offers, sorted: the 200 most frequent. Empty if there is only one."""
    counted = Counter(value_of(entry, name) for entry in entries)
    return sorted(value for value, _ in counted.most_common(_CHOICES) if value) if len(counted) > 1 else []


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a run, or of an EpisodeSet in a run.

    ``started`` is the start of the latest episode. ``left_seconds`` is the estimated remaining time, None if the run is
    not active or its rate is unknown.
    """

    run: str
    group: str
    total: int
    counts: dict[str, int]
    steps: int
    cost: float | None
    started: float
    active: bool
    rate: float = 0.0
    left_seconds: float | None = None

    @property
    def done(self) -> int:
        """The number of episodes with a result."""
        return sum(self.counts.get(kind, 0) for kind in ("resolved", "unresolved", "failed"))

    @property
    def counted(self) -> int:
        """The number of episodes that count for the agent."""
        return self.counts.get("resolved", 0) + self.counts.get("unresolved", 0)


def overviews(library: Library, now: float | None = None) -> list[Overview]:
    """An overview for each run and set. Active ones come first, then the latest."""
    grouped: dict[tuple[str, str], list[EpisodeEntry]] = defaultdict(list)
    for entry in library.entries.values():
        grouped[entry.run, entry.group].append(entry)
    for key in library.progress:
        grouped.setdefault(key, [])
    made = [
        _overview(key, entries, library.progress.get(key), time.time() if now is None else now)
        for key, entries in grouped.items()
    ]
    return sorted(made, key=lambda each: (not each.active, -each.started, each.run, each.group))


def _overview(
    key: tuple[str, str], entries: Sequence[EpisodeEntry], progress: RunProgress | None, now: float
) -> Overview:
    counts = Counter(entry.kind for entry in entries)
    finished = [entry for entry in entries if entry.finished]
    total = max(len(entries), progress.total if progress is not None else 0)
    began = progress.began if progress is not None else 0.0
    changed = max([began, *(entry.changed for entry in entries)])
    ended = len(finished) >= total or (progress is not None and progress.ended)
    active = not ended and (counts["running"] > 0 or is_live(changed))
    lately = sum(entry.ended >= began for entry in finished)
    pace = Pace(
        total=total,
        resolved=counts["resolved"],
        unresolved=counts["unresolved"],
        failed=counts["failed"],
        finished_lately=lately,
        seconds=now - began if began else 0.0,
    )
    return Overview(
        run=key[0],
        group=key[1],
        total=total,
        counts=dict(counts),
        steps=sum(entry.about.steps for entry in entries),
        cost=cost_of([entry.row for entry in finished if entry.row is not None], {}),
        started=max((entry.started for entry in entries), default=began),
        active=active,
        rate=pace.rate,
        left_seconds=pace.left_seconds if active and pace.rate else None,
    )


class Side(msgspec.Struct, frozen=True):
    """One side of a comparison: the episodes with these values of ``FILTERS``."""

    filters: tuple[tuple[str, str], ...] = ()

    @property
    def key(self) -> str:
        """The side as a parameter of a URL."""
        return urlencode(self.filters, errors="surrogateescape")

    @property
    def label(self) -> str:
        """The name of the side for people."""
        return " · ".join(value for _, value in self.filters) or "all episodes"

    @classmethod
    def parse(cls, key: str) -> "Side":
        """Parse the parameter of a URL. Unknown fields are ignored."""
        given = dict(parse_qsl(key, errors="surrogateescape", max_num_fields=20)) if key else {}
        return cls(tuple((name, given[name]) for name in FILTERS if given.get(name)))

    def select(self, entries: Iterable[EpisodeEntry]) -> list[EpisodeEntry]:
        """The entries of the side."""
        return [entry for entry in entries if all(value_of(entry, name) == value for name, value in self.filters)]


def sides_of(entries: Iterable[EpisodeEntry]) -> list[Side]:
    """All sides that can be compared: the distinct combinations of run, set, arm, agent and model, sorted."""
    found = {tuple((name, value) for name in _FIELDS if (value := value_of(entry, name))) for entry in entries}
    return [Side(filters) for filters in sorted(found)[:_SIDES]]


class TaskLine(msgspec.Struct, frozen=True):
    """A task of both sides: its rates if both sides have scored episodes, and the pairs with the same sample."""

    task: str
    rates: TaskPair | None
    pairs: tuple[tuple[EpisodeEntry, EpisodeEntry], ...]


class RunsCompared(msgspec.Struct, frozen=True):
    """The comparison of two sides: their reports, the test, and the common tasks, largest difference first.

    ``left_out`` is the number of common tasks that are not in ``tasks``.
    """

    report_a: Report
    report_b: Report
    comparison: RunComparison
    tasks: tuple[TaskLine, ...]
    left_out: int


def compare_runs(a: Sequence[EpisodeEntry], b: Sequence[EpisodeEntry]) -> RunsCompared:
    """Compare two sides like ``dgym report --compare``."""
    run_a, run_b = _run(a), _run(b)
    comparison = compare(run_a, run_b)
    rated = {pair.task: pair for pair in comparison.pairs}
    tasks_a, tasks_b = _by_task(a), _by_task(b)
    lines = []
    for task in tasks_a.keys() & tasks_b.keys():
        samples = sorted(tasks_a[task].keys() & tasks_b[task].keys())[:_SAMPLES_SHOWN]
        pairs = tuple((tasks_a[task][each], tasks_b[task][each]) for each in samples)
        lines.append(TaskLine(task, rated.get(task), pairs))
    lines.sort(key=lambda line: (-abs(line.rates.difference) if line.rates is not None else 0.0, line.task))
    return RunsCompared(
        make_report(run_a), make_report(run_b), comparison, tuple(lines[:_TASKS_SHOWN]), len(lines[_TASKS_SHOWN:])
    )


def _run(entries: Sequence[EpisodeEntry]) -> Run:
    return Run(records=tuple(entry.row for entry in entries if entry.row is not None))


def _by_task(entries: Iterable[EpisodeEntry]) -> Mapping[str, dict[int, EpisodeEntry]]:
    found: defaultdict[str, dict[int, EpisodeEntry]] = defaultdict(dict)
    for entry in entries:
        found[entry.about.task].setdefault(entry.about.sample, entry)
    return found


class Line(msgspec.Struct, frozen=True):
    """A step of one episode, or a pair of steps of both. ``same_call`` and ``same_answer`` are only set for pairs."""

    a: Turn | None
    b: Turn | None
    same_call: bool = False
    same_answer: bool = False


class EpisodesCompared(msgspec.Struct, frozen=True):
    """Two episodes aligned by step.

    Attributes:
        lines: The aligned steps.
        parted: Index of the first line with different calls, or at which one episode has ended. May be None.
        answered: Index of the first line with the same call and different observations. May be None.
        known_a: Information in the steps of A before ``parted``.
        known_b: Information in the steps of B before ``parted``.
    """

    lines: tuple[Line, ...]
    parted: int | None
    answered: int | None
    known_a: Knowledge
    known_b: Knowledge


def compare_episodes(a: Story, b: Story) -> EpisodesCompared:
    """Align the steps of two episodes of one task by their calls."""
    lines = list(_aligned(a.turns, b.turns))
    parted = next((index for index, line in enumerate(lines) if not line.same_call), None)
    answered = next((index for index, line in enumerate(lines) if line.same_call and not line.same_answer), None)
    before = len(lines) if parted is None else parted
    return EpisodesCompared(
        tuple(lines), parted, answered, collect_knowledge(a.turns[:before]), collect_knowledge(b.turns[:before])
    )


def _aligned(a: Sequence[Turn], b: Sequence[Turn]) -> Iterable[Line]:
    keys_a, keys_b = ([_key(turn) for turn in turns[:_ALIGNED_STEPS]] for turns in (a, b))
    common = 0
    while common < min(len(keys_a), len(keys_b)) and keys_a[common] == keys_b[common]:
        yield _both(a[common], b[common])
        common += 1
    matcher = SequenceMatcher(None, keys_a[common:], keys_b[common:], autojunk=False)
    for kind, low_a, high_a, low_b, high_b in matcher.get_opcodes():
        turns_a, turns_b = a[common + low_a : common + high_a], b[common + low_b : common + high_b]
        yield from (map(_both, turns_a, turns_b) if kind == "equal" else _paired_by_index(turns_a, turns_b))
    yield from _paired_by_index(a[_ALIGNED_STEPS:], b[_ALIGNED_STEPS:])


def _key(turn: Turn) -> bytes:
    return msgspec.json.encode(turn.call, order="sorted")


def _both(a: Turn, b: Turn) -> Line:
    same = a.observation.ok == b.observation.ok and normalize(a.observation.text) == normalize(b.observation.text)
    return Line(a, b, same_call=True, same_answer=same)


def _paired_by_index(a: Sequence[Turn], b: Sequence[Turn]) -> Iterable[Line]:
    for index in range(max(len(a), len(b))):
        yield Line(a[index] if index < len(a) else None, b[index] if index < len(b) else None)
