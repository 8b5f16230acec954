"""Lists of episodes: filtered, sorted and cut into pages, and the figures of runs and sets."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from dgym.pace import Pace
from dgym.results.report import cost_of
from dgym.ui.library import Entry, Library, Progress, is_live

PAGE_ROWS = 100
_CHOICES = 200
_TEXT_CHARACTERS = 200

FILTERS = ("run", "set", "state", "arm", "agent", "model", "task", "sample")
"""The fields that a list can be filtered by."""


def value_of(entry: Entry, name: str) -> str:
    """The value of a field of ``FILTERS``, as text."""
    match name:
        case "run":
            return entry.run
        case "set":
            return entry.group
        case "state":
            return entry.state
    return str(getattr(entry.about, name))


def score_of(entry: Entry) -> float:
    """The share of tests that passed, -1 without a result."""
    return -1.0 if entry.row is None else entry.row.score / max(1, entry.row.max_score)


def cost(entry: Entry) -> float | None:
    """The price of the episode's tokens, where it is stored."""
    return None if entry.row is None else cost_of([entry.row], {})


def tokens(entry: Entry) -> int:
    """Tokens in and out."""
    return 0 if entry.row is None else entry.row.input_tokens + entry.row.output_tokens


def seconds(entry: Entry) -> float:
    """The duration as of the result, 0 without one."""
    return 0.0 if entry.row is None else entry.row.seconds


SORTS: Mapping[str, Callable[[Entry], Any]] = {
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
    """``mini-2`` before ``mini-10``."""
    stem = name.rstrip("0123456789")
    number = name[len(stem) :]
    return stem, int(number) if number and len(number) < _TEXT_CHARACTERS else -1, name


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """What a list shows: values by field, a text that names contain, the order, and the page, from 1."""

    filters: tuple[tuple[str, str], ...] = ()
    text: str = ""
    sort: str = "episode"
    descending: bool = False
    page: int = 1

    @classmethod
    def parse(cls, parameters: Mapping[str, str]) -> "Query":
        """The query of an address; what is not known there is ignored."""
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
        """The parameters of the address, some of them changed; those with their default are left out."""
        order = ("-" if self.descending else "") + self.sort
        page = {"page": str(self.page)} if self.page > 1 else {}
        all_ = {**dict(self.filters), "q": self.text, "sort": "" if order == "episode" else order, **page, **changed}
        return {name: value for name, value in all_.items() if value}

    def select(self, entries: Iterable[Entry]) -> list[Entry]:
        """The entries that pass, in order."""
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


def choices(entries: Iterable[Entry], name: str) -> list[str]:
    """The values of a field that a filter offers, the most frequent first; none where there is but one."""
    counted = Counter(value_of(entry, name) for entry in entries)
    return sorted(value for value, _ in counted.most_common(_CHOICES) if value) if len(counted) > 1 else []


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a run or of a set in it.

    ``started`` is when its latest episode did; ``left_seconds`` is None where nothing runs or no rate is known.
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
        """Episodes with a result."""
        return sum(self.counts.get(kind, 0) for kind in ("resolved", "unresolved", "failed"))

    @property
    def verdicts(self) -> int:
        """Episodes whose result says something about the agent."""
        return self.counts.get("resolved", 0) + self.counts.get("unresolved", 0)


def overviews(library: Library, now: float | None = None) -> list[Overview]:
    """One for each run and set, the latest first."""
    grouped: dict[tuple[str, str], list[Entry]] = defaultdict(list)
    for entry in library.entries.values():
        grouped[entry.run, entry.group].append(entry)
    for key in library.progress:
        grouped.setdefault(key, [])
    made = [
        _overview(key, entries, library.progress.get(key), time.time() if now is None else now)
        for key, entries in grouped.items()
    ]
    return sorted(made, key=lambda each: (not each.active, -each.started, each.run, each.group))


def _overview(key: tuple[str, str], entries: Sequence[Entry], progress: Progress | None, now: float) -> Overview:
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
