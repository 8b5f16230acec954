"""The arms that figures compare, and the numbers that are drawn of each. Knows nothing of drawing."""

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from dgym.results.report import EpisodeRow, Price, Run, cost_of, grouped, wilson
from dgym.terminal import printable_line

MOST_ARMS = 8
"""As many as there are colours and patterns that can be told apart."""
_LABEL_CHARACTERS = 36
_SHARES = 5
"""Tools with a place of their own in a figure; the others are one."""
_MOST_STEPS = 60


class ArmData(msgspec.Struct, frozen=True, kw_only=True):
    """One arm: the label of its agent, model or configuration, and its episodes."""

    label: str
    records: tuple[EpisodeRow, ...]

    @property
    def verdicts(self) -> list[EpisodeRow]:
        """Episodes whose end says something about the agent."""
        return [record for record in self.records if record.has_verdict]

    def rate(self, confidence: float) -> tuple[float, float, float]:
        """Resolve rate and the bounds of Wilson's interval, as shares."""
        verdicts = self.verdicts
        resolved = sum(record.resolved for record in verdicts)
        interval = wilson(resolved, len(verdicts), confidence)
        return (resolved / len(verdicts) if verdicts else 0.0), interval.low, interval.high

    def resolved_within(self) -> list[tuple[int, float]]:
        """Steps, and the share of verdicts that were resolved with so many or fewer."""
        verdicts = self.verdicts
        steps = Counter(record.steps for record in verdicts if record.resolved)
        points, resolved = [(0, 0.0)], 0
        for count in sorted(steps):
            resolved += steps[count]
            points.append((count, resolved / len(verdicts)))
        if (longest := max((record.steps for record in verdicts), default=0)) > points[-1][0]:
            points.append((longest, points[-1][1]))
        return points

    def cost(self, prices: Mapping[str, Price]) -> float | None:
        """The mean cost of an episode; None where that of some is not known."""
        cost = cost_of(self.records, prices)
        return None if cost is None else cost / len(self.records)

    @property
    def thousands_of_tokens(self) -> float:
        """The mean of an episode."""
        tokens = sum(record.input_tokens + record.output_tokens for record in self.records)
        return tokens / 1000 / len(self.records)

    def stages(self) -> dict[str, float]:
        """Mean seconds of each stage, of the episodes whose trajectory shows them."""
        timed = [record.stages for record in self.records if record.stages is not None]
        names = ("prepare", "model", "queue", "tools", "agent", "score")
        return {name: sum(getattr(each, name) for each in timed) / len(timed) for name in names} if timed else {}


def arms_of(run: Run) -> list[ArmData]:
    """The arms of a run: those of its sets, else each agent with its model; the largest where there are too many."""
    by_arm = any(record.arm for record in run.records)
    groups = grouped(run.records, (lambda each: each.arm) if by_arm else lambda each: f"{each.agent} {each.model}")
    largest = sorted(groups.items(), key=lambda item: -len(item[1]))[:MOST_ARMS]
    named = [ArmData(label=shown(name or "no arm"), records=tuple(records)) for name, records in largest]
    return sorted(named, key=lambda arm: arm.label)


def shown(name: str) -> str:
    """A name as a label: one line, nothing invisible, not too long."""
    line = printable_line(name.strip())
    return line if len(line) <= _LABEL_CHARACTERS else f"{line[: _LABEL_CHARACTERS - 1]}…"


def tool_shares(arm: ArmData, tools: Sequence[str]) -> dict[str, list[float]]:
    """By tool, the share of an arm's calls at each step from the first on; the last name stands for all others."""
    counts: list[Counter[str]] = []
    for record in arm.records:
        for number, call in enumerate(record.calls[:_MOST_STEPS]):
            if number == len(counts):
                counts.append(Counter())
            counts[number][call.tool if call.tool in tools else tools[-1]] += 1
    return {tool: [count[tool] / count.total() for count in counts] for tool in tools}


def common_tools(arms: Sequence[ArmData]) -> list[str]:
    """The tools called most, and ``others``."""
    calls = Counter(call.tool for arm in arms for record in arm.records for call in record.calls)
    return [*(tool for tool, _ in calls.most_common(_SHARES)), "others"]
