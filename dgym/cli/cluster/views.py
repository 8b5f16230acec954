"""Episodes and EpisodeSets as commands show them: the fields that are decoded, and their table."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import ClassVar

import msgspec
from rich.table import Table

from dgym.api import TREATMENTS, Treatment
from dgym.cli.output import add_row, table
from dgym.pace import Pace

_NUMBERS = frozenset({"Score", "Steps", "Age"})


class View(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of all views: unknown fields are ignored, so that an older command shows a newer cluster."""


class Meta(View, frozen=True, kw_only=True):
    """Identity and version."""

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: datetime | None = None
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)


class ConditionView(View, frozen=True, kw_only=True):
    """A condition."""

    type: str
    status: str
    reason: str = ""
    message: str = ""


class Outcome(View, frozen=True, kw_only=True):
    """The verdict of an episode."""

    resolved: bool = False
    score: int = 0
    max_score: int = 0
    steps: int = 0
    result_uri: str = msgspec.field(default="", name="resultURI")
    message: str = ""


class _Status(View, frozen=True, kw_only=True):
    conditions: tuple[ConditionView, ...] = ()
    reason: str = ""

    def has(self, type_: str) -> bool:
        """Whether the condition of that type is true."""
        return any(each.type == type_ and each.status == "True" for each in self.conditions)


class _Object(View, frozen=True, kw_only=True):
    metadata: Meta
    status: _Status = _Status()

    @property
    def finished(self) -> bool:
        """Whether it has ended."""
        return self.status.has("Finished")


class EpisodeViewStatus(_Status, frozen=True, kw_only=True):
    """The fields of the status."""

    message: str = ""
    steps: int = 0
    outcome: Outcome | None = None
    attempt: int = 0
    pod_name: str | None = None


class EpisodeView(_Object, frozen=True, kw_only=True):
    """An Episode."""

    kind: ClassVar[str] = "Episode"

    status: EpisodeViewStatus = EpisodeViewStatus()

    @property
    def failed(self) -> bool:
        """Whether it ended without a verdict."""
        return self.finished and TREATMENTS.get(self.status.reason) is not Treatment.VERDICT

    @property
    def state(self) -> str:
        """The reason it waits for or ended with."""
        return self.status.reason or "Pending"

    @property
    def score(self) -> str:
        """Tests passed of tests that count, once there is a verdict."""
        outcome = self.status.outcome
        return f"{outcome.score}/{outcome.max_score}" if outcome is not None else ""

    @property
    def steps(self) -> str:
        """Steps of the verdict, or so far."""
        outcome = self.status.outcome
        return str(outcome.steps) if outcome is not None else str(self.status.steps or "")

    @property
    def message(self) -> str:
        """The message that explains the reason, in one line; empty for a verdict."""
        if self.finished and not self.failed:
            return ""
        texts = [self.status.outcome.message] if self.status.outcome is not None else []
        texts += [self.status.message]
        texts += [each.message for each in self.status.conditions if each.reason == self.status.reason]
        return next((text.strip().partition("\n")[0] for text in texts if text.strip()), "")

    @property
    def style(self) -> str:
        """The colour of its reason."""
        if not self.finished:
            return "cyan" if self.status.reason == "Running" else ""
        return "red" if self.failed else "green" if self.status.reason == "Resolved" else "yellow"


class ArmView(View, frozen=True, kw_only=True):
    """An arm of a set."""

    name: str


class SetViewSpec(View, frozen=True, kw_only=True):
    """The fields of the spec."""

    cancel: bool = False
    arms: tuple[ArmView, ...] = ()


class FailedView(View, frozen=True, kw_only=True):
    """The failed episodes of one reason."""

    reason: str
    indexes: str = ""

    @property
    def count(self) -> int:
        """How many they are."""
        intervals = (item.partition("-") for item in self.indexes.split(",") if item)
        return sum(int(last or first) - int(first) + 1 for first, _, last in intervals)


class SetViewStatus(_Status, frozen=True, kw_only=True):
    """The fields of the status."""

    completed_indexes: str = ""
    total: int = 0
    active: int = 0
    resolved: int = 0
    unresolved: int = 0
    failed: int = 0
    failed_indexes: tuple[FailedView, ...] = ()
    cancelled: int = 0
    waiting: str = ""
    start_time: datetime | None = None
    completion_time: datetime | None = None
    pass_at_1: str = msgspec.field(default="", name="passAt1")
    resolved_by_arm: str = ""


class SetView(_Object, frozen=True, kw_only=True):
    """An EpisodeSet."""

    kind: ClassVar[str] = "EpisodeSet"

    spec: SetViewSpec = SetViewSpec()
    status: SetViewStatus = SetViewStatus()

    @property
    def state(self) -> str:
        """The reason of its end, or its present state."""
        if self.finished:
            return next((each.reason for each in self.status.conditions if each.type == "Finished"), "") or "Finished"
        if self.spec.cancel:
            return "Cancelling"
        return self.status.reason or ("Suspended" if self.status.has("Suspended") else "Pending")

    @property
    def score(self) -> str:
        """Episodes resolved of all."""
        return f"{self.status.resolved}/{self.status.total}" if self.status.total else ""

    @property
    def steps(self) -> str:
        """Empty: steps belong to episodes."""
        return ""

    @property
    def message(self) -> str:
        """The counts of its episodes."""
        status = self.status
        if not status.total:
            return ""
        rate = f"; pass@1 {status.pass_at_1}" if status.pass_at_1 else ""
        arms = f"; by arm: {status.resolved_by_arm}" if status.resolved_by_arm else ""
        waiting = f"; waiting for {status.waiting}" if status.waiting else ""
        cancelled = f"; {status.cancelled} cancelled" if status.cancelled else ""
        return f"{self.pace.done}/{status.total} finished: {self.pace}{rate}{arms}{waiting}{cancelled}"

    @property
    def pace(self) -> Pace:
        """How far the set is; its rate is that since it began."""
        status = self.status
        end = status.completion_time or datetime.now(UTC)
        done = status.resolved + status.unresolved + status.failed + status.cancelled
        return Pace(
            total=status.total,
            resolved=status.resolved,
            unresolved=status.unresolved,
            failed=status.failed,
            active=status.active,
            finished_lately=done,
            seconds=0.0 if status.start_time is None else (end - status.start_time).total_seconds(),
        )

    @property
    def style(self) -> str:
        """The colour of its state."""
        return ("red" if self.status.failed else "green") if self.finished else ""


def age(since: datetime | None, now: datetime | None = None) -> str:
    """How long ago, as kubectl writes it: 45s, 12m, 3h20m, 2d."""
    if since is None:
        return ""
    seconds = max(0, int(((now or datetime.now(UTC)) - since).total_seconds()))
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if minutes < 2:
        return f"{seconds}s"
    if hours < 3:
        return f"{minutes}m"
    if days < 2:
        return f"{hours}h{minutes % 60}m" if hours < 10 and minutes % 60 else f"{hours}h"
    return f"{days}d"


def table_of(views: Iterable[EpisodeView | SetView], *, everywhere: bool = False) -> Table:
    """The table of ``dgym get``; with ``everywhere`` the namespaces are its first column."""
    first = ["Namespace"] if everywhere else []
    drawn = table(
        [*first, "Name", "Reason", "Score", "Steps", "Age", "Message"], numbers=_NUMBERS, breaking=("Message",)
    )
    for view in views:
        metadata = view.metadata
        name = metadata.name if isinstance(view, EpisodeView) else f"episodeset/{metadata.name}"
        cells = [name, view.state, view.score, view.steps, age(metadata.creation_timestamp), view.message]
        first = [metadata.namespace] if everywhere else []
        add_row(drawn, [*first, *cells], styled=1 + everywhere, style=view.style)
    return drawn
