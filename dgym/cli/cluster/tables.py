"""Tables of Episodes and EpisodeSets."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from dgym.cli.cluster.views import EpisodeView, SetView, age
from dgym.cli.output import add_row, console, table, widen

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
    status = {each.type: each for each in view.status.conditions if each.status == "True"}
    if "Finished" in status:
        return status["Finished"].reason or "Finished"
    if view.spec.cancel:
        return "Cancelling"
    return view.status.reason or ("Suspended" if "Suspended" in status else "Pending")


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
