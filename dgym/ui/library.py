"""What pages are made from: episodes as lists show them, and the files of their attempts."""

import time
from collections.abc import Mapping
from datetime import datetime
from typing import Protocol

import msgspec

from dgym.decoding import DECODE_ERRORS
from dgym.results import StoredResult, TrajectoryHeader
from dgym.results.report import EpisodeRow, row_of, run_of

RUNNING, NO_RESULT = "Running", "NoResult"
"""States of an attempt without a result: it grew lately, or it did not."""
MESSAGE_CHARACTERS = 300
_LIVE_SECONDS = 15 * 60.0


class Attempted(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt without a result: the fields of its header, and how far it is."""

    namespace: str = ""
    episode: str = ""
    task: str = ""
    agent: str = ""
    model: str = ""
    arm: str = ""
    sample: int = 0
    steps: int = 0
    start_time: str = ""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """The newest attempt at an episode.

    ``path`` identifies the episode; ``run`` is the results directory that it lies in, from the root, ``group`` its
    EpisodeSet, both empty where there is none. ``changed`` is when its files changed last, in seconds since the epoch,
    ``version`` differs after each change.
    """

    path: str
    run: str
    attempts: tuple[int, ...]
    state: str
    row: EpisodeRow | None = None
    attempted: Attempted = Attempted()
    group: str = ""
    message: str = ""
    changed: float = 0.0
    version: str = ""

    @property
    def about(self) -> EpisodeRow | Attempted:
        """The result's fields, else the header's."""
        return self.row if self.row is not None else self.attempted

    @property
    def started(self) -> float:
        """When the attempt began, as it recorded itself: seconds since the epoch, 0 if it did not."""
        return seconds_of(self.about.start_time)

    @property
    def ended(self) -> float:
        """When the attempt ended, by its own record: seconds since the epoch, 0 without a result."""
        return self.started + self.row.seconds if self.row is not None else 0.0

    @property
    def finished(self) -> bool:
        """Whether it has a result."""
        return self.row is not None

    @property
    def kind(self) -> str:
        """How it stands: resolved, unresolved (any other verdict), failed (no verdict), running, or waiting."""
        if self.row is None:
            return "running" if self.state == RUNNING else "waiting"
        if self.row.resolved:
            return "resolved"
        return "unresolved" if self.row.reason.is_verdict else "failed"


def finished_entry(
    path: str, attempts: tuple[int, ...], result: StoredResult, *, changed: float, version: str, group: str = ""
) -> Entry:
    """The entry of an episode whose newest attempt has a result."""
    row = row_of(result, attempt=attempts[-1], path=path)
    return Entry(
        path=path,
        run=run_of(path),
        group=group,
        attempts=attempts,
        state=str(row.reason),
        row=row,
        message=result.message[:MESSAGE_CHARACTERS],
        changed=changed,
        version=version,
    )


def unfinished_entry(
    path: str, attempts: tuple[int, ...], header: TrajectoryHeader, *, steps: int, changed: float, version: str
) -> Entry:
    """The entry of an episode whose newest attempt has none yet."""
    agent = header.agent
    attempted = Attempted(
        namespace=header.namespace,
        episode=header.episode or path.rpartition("/")[2],
        task=header.task,
        agent=str(agent.get("name", "")),
        model=str(agent.get("model") or ""),
        arm=header.arm,
        sample=header.sample,
        steps=steps,
        start_time=header.start_time,
    )
    return Entry(
        path=path,
        run=run_of(path),
        attempts=attempts,
        state=RUNNING if is_live(changed) else NO_RESULT,
        attempted=attempted,
        changed=changed,
        version=version,
    )


def decode_header(line: bytes) -> TrajectoryHeader:
    """The header in the first line of a trajectory; an empty one where it is none."""
    try:
        return msgspec.json.decode(line, type=TrajectoryHeader)
    except DECODE_ERRORS:
        return TrajectoryHeader()


def seconds_of(text: str) -> float:
    """An RFC 3339 time in seconds since the epoch; 0 for anything else."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return 0.0


def is_live(changed: float) -> bool:
    """Whether an attempt without a result that last grew then may still run."""
    return time.time() - changed < _LIVE_SECONDS


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How many episodes a run or set is to have, when it began (seconds since the epoch), and whether it has ended."""

    total: int
    began: float
    ended: bool = False


class Library(Protocol):
    """Episodes of a directory, a bucket or a cluster, as an index in memory."""

    @property
    def title(self) -> str:
        """Its name, for people."""
        ...

    @property
    def entries(self) -> Mapping[str, Entry]:
        """The episodes by path, as ``refresh`` found them."""
        ...

    @property
    def progress(self) -> Mapping[tuple[str, str], Progress]:
        """What is planned, by run and set; the set is empty for episodes that belong to none."""
        ...

    @property
    def notice(self) -> str:
        """What readers have to know: the index is not complete, or the source does not answer. Empty otherwise."""
        ...

    async def refresh(self) -> None:
        """Bring the index up to date, unless that was done a moment ago."""
        ...

    async def read(self, entry: Entry, attempt: int, name: str, limit: int) -> bytes | None:
        """At most the first ``limit`` bytes of a file of an attempt; None where there is none."""
        ...

    async def version(self, entry: Entry, attempt: int) -> str:
        """Differs after each change of the attempt's files."""
        ...
