"""Episodes and EpisodeSets as commands show them: the fields that are decoded, and the tables."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, ClassVar

import msgspec

from dgym.api import TREATMENTS, Treatment
from dgym.cli.output import add_row, console, table, widen


class View(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of all views: lenient, so that a newer cluster is shown by an older command."""


class Meta(View, frozen=True, kw_only=True):
    """Identity and version."""

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: datetime | None = None
    labels: dict[str, str] = msgspec.field(default_factory=dict)


class ConditionView(View, frozen=True, kw_only=True):
    """A condition."""

    type: str
    status: str
    reason: str = ""
    message: str = ""


class Named(View, frozen=True, kw_only=True):
    """A reference, or an agent."""

    name: str = ""
    model: str = ""


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


class EpisodeViewSpec(View, frozen=True, kw_only=True):
    """The fields of the spec."""

    task_ref: Named | None = None
    agent: Named | None = None
    cancel: bool = False


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

    spec: EpisodeViewSpec = EpisodeViewSpec()
    status: EpisodeViewStatus = EpisodeViewStatus()

    @property
    def failed(self) -> bool:
        """Whether it ended without a verdict."""
        return self.finished and TREATMENTS.get(self.status.reason) is not Treatment.VERDICT

    @property
    def message(self) -> str:
        """The message that explains its reason, in one line."""
        texts = [self.status.outcome.message] if self.status.outcome is not None else []
        texts += [self.status.message]
        texts += [each.message for each in self.status.conditions if each.reason == self.status.reason]
        return next((text.strip().partition("\n")[0] for text in texts if text.strip()), "")


class SetViewSpec(View, frozen=True, kw_only=True):
    """The fields of the spec."""

    parallelism: int = 0
    cancel: bool = False


class SetViewStatus(_Status, frozen=True, kw_only=True):
    """The fields of the status."""

    completed_indexes: str = ""
    total: int = 0
    pending: int = 0
    active: int = 0
    resolved: int = 0
    unresolved: int = 0
    failed: int = 0
    pass_at_1: str = msgspec.field(default="", name="passAt1")


class SetView(_Object, frozen=True, kw_only=True):
    """An EpisodeSet."""

    kind: ClassVar[str] = "EpisodeSet"

    spec: SetViewSpec = SetViewSpec()
    status: SetViewStatus = SetViewStatus()


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


if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

ROWS = 200
"""Rows of a table at most; those that are finished are left out first."""

_COUNTS = ("Total", "Pending", "Active", "Resolved", "Unresolved", "Failed")
_NUMBERS = frozenset({"Score", "Steps", "Attempt", *_COUNTS, "Pass@1", "Age"})


def show(
    episodes: Sequence[EpisodeView], sets: Sequence[SetView], *, wide: bool = False, everywhere: bool = False
) -> None:
    """Print the tables."""
    screen, drawn = console(), tables(episodes, sets, wide=wide, everywhere=everywhere)
    widen(screen, drawn)
    screen.print(drawn)


def tables(
    episodes: Sequence[EpisodeView], sets: Sequence[SetView], *, wide: bool, everywhere: bool
) -> "RenderableType":
    """A table for each kind that there is anything of."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = []
    if sets:
        parts.append(_set_table(sets, everywhere=everywhere))
    if sets and episodes:
        parts.append(Text(""))
    if episodes:
        shown = _shown(episodes)
        parts.append(_episode_table(shown, wide=wide, everywhere=everywhere))
        if len(shown) < len(episodes):
            parts.append(Text(f"… {len(episodes) - len(shown)} more; --output json lists all", style="dim"))
    return Group(*parts)


def _shown(episodes: Sequence[EpisodeView]) -> Sequence[EpisodeView]:
    if len(episodes) <= ROWS:
        return episodes
    urgent = sorted(episodes, key=lambda view: view.finished + (view.finished and not view.failed))
    return urgent[:ROWS]


def _episode_table(episodes: Iterable[EpisodeView], *, wide: bool, everywhere: bool) -> "Table":
    headings = ["Episode", "Reason", "Score", "Steps", "Age"]
    headings += ["Task", "Agent", "Model", "Attempt", "Pod"] if wide else []
    drawn = _table([*headings, "Message"], everywhere=everywhere)
    for view in episodes:
        cells = [view.metadata.name, view.status.reason or "Pending", _score(view), _steps(view), _age(view)]
        if wide:
            agent, task = view.spec.agent, view.spec.task_ref
            cells += [
                task.name if task else "(inline)",
                agent.name if agent else "(none)",
                agent.model if agent else "",
            ]
            cells += [str(view.status.attempt or ""), view.status.pod_name or ""]
        message = "" if view.finished and not view.failed and not wide else view.message
        _add(drawn, view, [*cells, message], everywhere=everywhere, styled=1)
    return drawn


def _set_table(sets: Iterable[SetView], *, everywhere: bool) -> "Table":
    headings = ["EpisodeSet", *_COUNTS, "Pass@1", "Age"]
    drawn = _table([*headings, "State"], everywhere=everywhere)
    for view in sets:
        status = view.status
        counts = (status.total, status.pending, status.active, status.resolved, status.unresolved, status.failed)
        cells = [view.metadata.name, *map(str, counts), status.pass_at_1, _age(view)]
        _add(drawn, view, [*cells, _state(view)], everywhere=everywhere, styled=9)
    return drawn


def _table(headings: Sequence[str], *, everywhere: bool) -> "Table":
    headings = [*(["Namespace"] if everywhere else []), *headings]
    return table(headings, numbers=_NUMBERS, breaking=("Message",))


def _add(to: "Table", view: EpisodeView | SetView, cells: Sequence[str], *, everywhere: bool, styled: int) -> None:
    cells = [*([view.metadata.namespace] if everywhere else []), *cells]
    add_row(to, cells, styled=styled + everywhere, style=_style(view))


def _state(view: SetView) -> str:
    if view.finished:
        return next((each.reason for each in view.status.conditions if each.type == "Finished"), "") or "Finished"
    if view.spec.cancel:
        return "Cancelling"
    return view.status.reason or ("Suspended" if view.status.has("Suspended") else "Pending")


def _style(view: EpisodeView | SetView) -> str:
    if isinstance(view, SetView):
        return ("red" if view.status.failed else "green") if view.finished else ""
    if not view.finished:
        return "cyan" if view.status.reason == "Running" else ""
    return "red" if view.failed else "green" if view.status.reason == "Resolved" else "yellow"


def _score(view: EpisodeView) -> str:
    outcome = view.status.outcome
    return f"{outcome.score}/{outcome.max_score}" if outcome is not None else ""


def _steps(view: EpisodeView) -> str:
    outcome = view.status.outcome
    return str(outcome.steps) if outcome is not None else str(view.status.steps or "")


def _age(view: EpisodeView | SetView) -> str:
    return age(view.metadata.creation_timestamp)
