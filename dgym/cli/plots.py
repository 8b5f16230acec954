"""The figures of ``dgym report --plot``, one file each.

Equal results give equal bytes. The colours are those of Okabe and Ito. Lines also differ in marker and dash and areas
in their pattern, for print and for readers who are colour blind. This module needs matplotlib, so it is imported only
for ``--plot``.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import msgspec
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from dgym.cli.output import UsageFailure
from dgym.results import EpisodeRow, StageDurations
from dgym.results.report import Group, Price, Run, figures_of, grouped
from dgym.terminal import printable_line

_SUFFIXES = (".svg", ".png")
_SETTINGS: Any = {
    "svg.hashsalt": "dgym",
    "text.parse_math": False,  # a name with two dollar signs is not a formula
    "font.size": 10,
    "hatch.linewidth": 0.6,
}
_MOST_ARMS = 8
"""Maximum number of arms in a figure: the number of colours and patterns that are easy to distinguish."""
_LABEL_CHARACTERS = 36
_SHARES = 5
"""Number of tools that a figure shows separately. The others are combined."""
_MOST_STEPS = 60
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#444444")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (8, 2, 1, 2)))
_HATCHES = ("", "///", "...", "\\\\\\", "xxx", "ooo", "++", "--")
_WIDTH = 6.4
_PANELS = 4


class PlottedArm(msgspec.Struct, frozen=True, kw_only=True):
    """An arm of a set, or an agent with its model, with its episodes and their figures."""

    label: str
    records: tuple[EpisodeRow, ...]
    figures: Group

    @property
    def rate(self) -> tuple[float, float, float]:
        """Resolve rate and the bounds of its interval, from 0 to 1."""
        return self.figures.rate, self.figures.interval.low, self.figures.interval.high

    @property
    def resolved_within(self) -> list[tuple[int, float]]:
        """Points of a step function: a number of steps, and the share of scored episodes resolved within it."""
        scored = [record for record in self.records if record.is_scored]
        steps = Counter(record.steps for record in scored if record.resolved)
        points, resolved = [(0, 0.0)], 0
        for count in sorted(steps):
            resolved += steps[count]
            points.append((count, resolved / len(scored)))
        if (longest := max((record.steps for record in scored), default=0)) > points[-1][0]:
            points.append((longest, points[-1][1]))
        return points

    @property
    def cost(self) -> float | None:
        """Mean cost of an episode. None if the cost of some episode is unknown."""
        return None if self.figures.cost is None else self.figures.cost / len(self.records)

    @property
    def thousands_of_tokens(self) -> float:
        """Mean number of input and output tokens of an episode, in thousands."""
        tokens = sum(record.input_tokens + record.output_tokens for record in self.records)
        return tokens / 1000 / len(self.records)

    @property
    def stages(self) -> dict[str, float]:
        """Mean seconds of each stage, over the episodes for which stages are recorded."""
        timed = [record.stages for record in self.records if record.stages is not None]
        names = StageDurations.__struct_fields__
        return {name: sum(getattr(each, name) for each in timed) / len(timed) for name in names} if timed else {}


def arms_of(run: Run, confidence: float, prices: Mapping[str, Price]) -> list[PlottedArm]:
    """Return the arms of a run or, if there are none, each agent with its model. At most the 8 largest are returned."""
    by_arm = any(record.arm for record in run.records)
    groups = grouped(run.records, (lambda each: each.arm) if by_arm else lambda each: f"{each.agent} {each.model}")
    largest = sorted(groups.items(), key=lambda item: -len(item[1]))[:_MOST_ARMS]
    arms = [
        PlottedArm(
            label=_shown(name or "no arm"), records=tuple(records), figures=figures_of(records, confidence, prices)
        )
        for name, records in largest
    ]
    return sorted(arms, key=lambda arm: arm.label)


def _shown(name: str) -> str:
    """Make a printable label of at most 36 characters on one line."""
    line = printable_line(name.strip())
    return line if len(line) <= _LABEL_CHARACTERS else f"{line[: _LABEL_CHARACTERS - 1]}…"


def draw_figures(
    run: Run, target: str, names: Sequence[str], *, confidence: float, prices: Mapping[str, Price]
) -> tuple[list[Path], int]:
    """Draw the figures of these names, or all figures if ``names`` is empty.

    If ``target`` is a directory or ends in a slash, each figure is written as ``NAME.svg`` into that directory, which
    is created if necessary. Otherwise a single named figure is written to ``target``, and several are written beside it
    with ``-NAME`` after the stem.

    Returns:
        The written files, and the number of episodes that are not in the figures.

    Raises:
        UsageFailure: ``target`` is neither a directory nor ends in .svg or .png, a file cannot be written, or there are
            no results.
    """
    path = Path(target)
    directory = path.is_dir() or target.endswith("/")
    if not directory and path.suffix not in _SUFFIXES:
        remedy = f"the name must end in {' or '.join(_SUFFIXES)}, or be that of a directory, with a slash if it is new"
        raise UsageFailure(f"--plot {target}: {remedy}")
    arms = arms_of(run, confidence, prices)
    if not arms:
        raise UsageFailure("--plot: none of the episodes has a result yet")
    if directory:
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageFailure(f"--plot {target}: {error.strerror or error}") from None
    written = []
    with mpl.rc_context(_SETTINGS):
        for name in names or FIGURES:
            if directory:
                place = path / f"{name}.svg"
            else:
                place = path if len(names) == 1 else path.with_name(f"{path.stem}-{name}{path.suffix}")
            # Without date and version, equal results give equal files.
            metadata = {"Date": None, "Creator": None} if place.suffix == ".svg" else {"Software": None}
            try:
                FIGURES[name](arms, confidence).savefig(place, metadata=metadata, dpi=150)
            except OSError as error:
                raise UsageFailure(f"--plot {place}: {error.strerror or error}") from None
            written.append(place)
    kept = sum(len(arm.records) for arm in arms)
    return written, len(run.records) - kept


def _resolve_rate(arms: Sequence[PlottedArm], confidence: float) -> Figure:
    """Draw the resolve rate of each arm, with its interval and the number of scored episodes."""
    figure, axes = _axes(height=1.3 + 0.45 * len(arms))
    for place, arm in enumerate(arms):
        rate, low, high = arm.rate
        axes.errorbar(
            rate, place, xerr=[[rate - low], [high - rate]], fmt=_MARKERS[place], color=_COLOURS[place], capsize=4,
            markersize=8, markeredgecolor="black", ecolor="black", elinewidth=1.2,
        )  # fmt: skip
    axes.set_yticks(range(len(arms)), [f"{arm.label}\n{arm.figures.scored} scored" for arm in arms])
    axes.set_ylim(len(arms) - 0.5, -0.5)
    axes.set_xlim(-0.02, 1.02)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_xlabel(f"Episodes resolved, with the {100 * confidence:g} % interval")
    axes.grid(axis="x", color="#dddddd")
    return figure


def _steps(arms: Sequence[PlottedArm], _confidence: float) -> Figure:
    """Draw the share of scored episodes that are resolved within a number of steps."""
    figure, axes = _axes(height=4.0)
    for place, arm in enumerate(arms):
        points = arm.resolved_within
        axes.step(
            [count for count, _ in points], [share for _, share in points], where="post", label=arm.label,
            color=_COLOURS[place], linestyle=_DASHES[place], marker=_MARKERS[place], markersize=5, linewidth=1.8,
        )  # fmt: skip
    axes.set_ylim(0, 1.02)
    axes.set_xlim(left=0)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("Steps")
    axes.set_ylabel("Resolved within N steps")
    axes.grid(color="#dddddd")
    _legend(axes, len(arms))
    return figure


def _cost(arms: Sequence[PlottedArm], _confidence: float) -> Figure:
    """Draw cost against resolve rate. Tokens replace the cost if the cost of some arm is unknown."""
    figure, axes = _axes(height=4.0)
    costs = [arm.cost for arm in arms]
    known = all(each is not None for each in costs)
    for place, arm in enumerate(arms):
        amount = (costs[place] or 0.0) if known else arm.thousands_of_tokens
        rate, low, high = arm.rate
        axes.errorbar(
            amount, rate, yerr=[[rate - low], [high - rate]], fmt=_MARKERS[place], color=_COLOURS[place], capsize=4,
            markersize=9, markeredgecolor="black", ecolor="#777777", label=arm.label,
        )  # fmt: skip
    axes.set_ylim(-0.02, 1.02)
    axes.set_xlim(0, _wider(axes.get_xlim()[1]))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_xlabel("Cost of an episode, mean" if known else "Thousands of tokens of an episode, mean")
    axes.set_ylabel("Episodes resolved")
    axes.grid(color="#dddddd")
    _legend(axes, len(arms))
    return figure


def _stages(arms: Sequence[PlottedArm], _confidence: float) -> Figure:
    """Draw the mean time of an episode as stacked bars of its stages."""
    figure, axes = _axes(height=1.9 + 0.45 * len(arms))
    times = [arm.stages for arm in arms]
    names = list(dict.fromkeys(name for each in times for name, seconds in each.items() if seconds))
    reached = [0.0] * len(arms)
    for number, name in enumerate(names):
        seconds = [each.get(name, 0.0) for each in times]
        axes.barh(
            range(len(arms)), seconds, left=reached, label=name, height=0.6,
            color=_COLOURS[number], hatch=_HATCHES[number], edgecolor="black", linewidth=0.6,
        )  # fmt: skip
        reached = [before + more for before, more in zip(reached, seconds, strict=True)]
    axes.set_yticks(range(len(arms)), [arm.label for arm in arms])
    axes.set_ylim(len(arms) - 0.5, -0.5)
    axes.set_xlim(0, _wider(max(reached)))
    axes.set_xlabel("Seconds of an episode, mean")
    axes.grid(axis="x", color="#dddddd")
    _legend(axes, len(names))
    return figure


def _tools(arms: Sequence[PlottedArm], _confidence: float) -> Figure:
    """Draw, for each arm, the share of each tool among the calls of each step."""
    drawn = [arm for arm in arms if any(record.calls for record in arm.records)][:_PANELS] or list(arms[:1])
    figure = Figure(figsize=(_WIDTH, 1.2 + 1.9 * len(drawn)), layout="constrained")
    names = _common_tools(drawn)
    longest = 1
    panels = [figure.add_subplot(len(drawn), 1, number + 1) for number in range(len(drawn))]
    for axes, arm in zip(panels, drawn, strict=True):
        shares = _tool_shares(arm, names)
        below = [0.0] * len(shares[names[0]])
        for number, name in enumerate(names):
            axes.bar(
                range(1, len(below) + 1), shares[name], bottom=below, width=1.0, label=_shown(name),
                color=_COLOURS[number], hatch=_HATCHES[number], edgecolor="black", linewidth=0.4,
            )  # fmt: skip
            below = [before + more for before, more in zip(below, shares[name], strict=True)]
        longest = max(longest, len(below))
        axes.set_title(arm.label, fontsize=10, loc="left")
        axes.set_ylim(0, 1)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_ylabel("Calls")
    for axes in panels:
        axes.set_xlim(0.5, longest + 0.5)
    panels[-1].set_xlabel("Step")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return figure


def _axes(*, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(_WIDTH, height), layout="constrained")
    axes = figure.add_subplot()
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes


def _wider(highest: float) -> float:
    """Return an upper limit beyond the highest value. It is never 0, because an axis of length 0 has no scale."""
    return 1.05 * highest or 1.0


def _legend(axes: Axes, entries: int) -> None:
    axes.figure.legend(
        *axes.get_legend_handles_labels(), loc="outside lower center", ncols=min(entries, 3), frameon=False, fontsize=9
    )


def _tool_shares(arm: PlottedArm, tools: Sequence[str]) -> dict[str, list[float]]:
    """Return, for each tool, its share of an arm's calls at each step. The last tool stands for all others."""
    counts: list[Counter[str]] = []
    for record in arm.records:
        for number, call in enumerate(record.calls[:_MOST_STEPS]):
            if number == len(counts):
                counts.append(Counter())
            counts[number][call.tool if call.tool in tools else tools[-1]] += 1
    return {tool: [count[tool] / count.total() for count in counts] for tool in tools}


def _common_tools(arms: Sequence[PlottedArm]) -> list[str]:
    """Return the most frequently called tools, followed by ``others``."""
    calls = Counter(call.tool for arm in arms for record in arm.records for call in record.calls)
    return [*(tool for tool, _ in calls.most_common(_SHARES)), "others"]


FIGURES: dict[str, Callable[[Sequence[PlottedArm], float], Figure]] = {
    "resolve-rate": _resolve_rate,
    "steps": _steps,
    "cost": _cost,
    "stages": _stages,
    "tools": _tools,
}
