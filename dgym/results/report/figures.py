"""What a run came to: pure functions from records to a report.

Rates are over episodes with a verdict. An infrastructure failure says nothing about an agent, so failed episodes are
counted and shown but enter no rate and no average.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median
from typing import Any, TypeVar

import msgspec

from dgym.results.report.reading import Record, Run, Stages
from dgym.results.report.statistics import Interval, Spread, percentile, spread, wilson

Key = TypeVar("Key", bound=Any)

CONFIDENCE = 0.95


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """What a million tokens of a model cost, in whatever currency."""

    input: float
    output: float


class Group(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Figures over some episodes. ``cost`` is None unless it is known of every episode that used tokens.

    ``pass_at_1`` is the mean over tasks of the share of a task's samples that resolved it: the chance that one episode
    resolves a task drawn at random. With as many samples of each task it equals ``rate``.
    """

    episodes: int
    verdicts: int
    resolved: int
    failed: int
    rate: float
    interval: Interval
    pass_at_1: float
    reasons: dict[str, int]
    steps: Spread
    rewrites: Spread
    seconds: Spread
    input_tokens: Spread
    output_tokens: Spread
    cost: float | None = None


class AgentGroup(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The episodes of one agent with one model."""

    agent: str
    model: str
    figures: Group


class TaskGroup(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The episodes of one task."""

    task: str
    figures: Group


class ToolUse(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How one tool was used. ``refused`` calls are those the tool could not do, whatever the reason."""

    tool: str
    calls: int
    refused: int
    episodes: int
    share_of_calls: float
    median_milliseconds: float
    p95_milliseconds: float
    total_seconds: float


class StageTime(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What one stage took: preparation of the sandbox, the model, waiting for it, tools, the agent itself, scoring."""

    stage: str
    episodes: int
    seconds: Spread
    share: float


class Report(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Everything ``dgym report`` tells of one run."""

    confidence: float
    overall: Group
    agents: tuple[AgentGroup, ...]
    tasks: tuple[TaskGroup, ...]
    tools: tuple[ToolUse, ...]
    stages: tuple[StageTime, ...]
    unfinished: tuple[str, ...]
    superseded: int


def make_report(run: Run, *, confidence: float = CONFIDENCE, prices: Mapping[str, Price] | None = None) -> Report:
    """The report over ``run``; ``prices`` are by model."""

    def figures(records: Sequence[Record]) -> Group:
        return _figures(records, confidence, prices or {})

    by_agent = grouped(run.records, lambda record: (record.agent, record.model))
    by_task = grouped(run.records, lambda record: record.task)
    return Report(
        confidence=confidence,
        overall=figures(run.records),
        agents=tuple(
            AgentGroup(agent=agent, model=model, figures=figures(records))
            for (agent, model), records in by_agent.items()
        ),
        tasks=tuple(TaskGroup(task=task, figures=figures(records)) for task, records in by_task.items()),
        tools=_tools(run.records),
        stages=_stages(run.records),
        unfinished=run.unfinished,
        superseded=run.superseded,
    )


def grouped(records: Sequence[Record], key: Callable[[Record], Key]) -> dict[Key, list[Record]]:
    """The records by ``key``, in the order of the keys."""
    groups: defaultdict[Key, list[Record]] = defaultdict(list)
    for record in records:
        groups[key(record)].append(record)
    return {name: groups[name] for name in sorted(groups)}


def resolve_rate(records: Sequence[Record]) -> float | None:
    """The share of episodes with a verdict that are resolved; None without any."""
    verdicts = [record.resolved for record in records if record.reason.is_verdict]
    return fmean(verdicts) if verdicts else None


def cost_of(records: Sequence[Record], prices: Mapping[str, Price]) -> float | None:
    """What the tokens of ``records`` cost: as stored with each, else by ``prices``.

    None when it is not known of an episode that used tokens, or when none did.
    """
    used = [record for record in records if record.input_tokens or record.output_tokens]
    costs = [_cost(record, prices) for record in used]
    return sum(cost for cost in costs if cost is not None) if costs and None not in costs else None


def _cost(record: Record, prices: Mapping[str, Price]) -> float | None:
    if record.price is not None:
        return record.price
    price = prices.get(record.model)
    if price is None:
        return None
    return (price.input * record.input_tokens + price.output * record.output_tokens) / 1e6


def _figures(records: Sequence[Record], confidence: float, prices: Mapping[str, Price]) -> Group:
    verdicts = [record for record in records if record.reason.is_verdict]
    resolved = sum(record.resolved for record in verdicts)
    rates = [resolve_rate(same) for same in grouped(verdicts, lambda record: record.task).values()]
    reasons = Counter(str(record.reason) for record in records)
    return Group(
        episodes=len(records),
        verdicts=len(verdicts),
        resolved=resolved,
        failed=len(records) - len(verdicts),
        rate=resolved / len(verdicts) if verdicts else 0.0,
        interval=wilson(resolved, len(verdicts), confidence),
        pass_at_1=fmean(rate for rate in rates if rate is not None) if rates else 0.0,
        reasons=dict(sorted(reasons.items(), key=lambda item: (-item[1], item[0]))),
        steps=spread([record.steps for record in verdicts]),
        rewrites=spread([record.rewrites for record in verdicts]),
        seconds=spread([record.seconds for record in verdicts]),
        input_tokens=spread([record.input_tokens for record in verdicts]),
        output_tokens=spread([record.output_tokens for record in verdicts]),
        cost=cost_of(records, prices),
    )


def _tools(records: Sequence[Record]) -> tuple[ToolUse, ...]:
    seconds: defaultdict[str, list[float]] = defaultdict(list)
    refused: Counter[str] = Counter()
    episodes: Counter[str] = Counter()
    for record in records:
        episodes.update({call.tool for call in record.calls})
        refused.update(call.tool for call in record.calls if not call.ok)
        for call in record.calls:
            seconds[call.tool].append(call.seconds)
    calls = sum(map(len, seconds.values()))
    return tuple(
        ToolUse(
            tool=tool,
            calls=len(taken),
            refused=refused[tool],
            episodes=episodes[tool],
            share_of_calls=len(taken) / calls,
            median_milliseconds=median(taken) * 1000,
            p95_milliseconds=percentile(taken, 0.95) * 1000,
            total_seconds=sum(taken),
        )
        for tool, taken in sorted(seconds.items(), key=lambda item: (-len(item[1]), item[0]))
    )


def _stages(records: Sequence[Record]) -> tuple[StageTime, ...]:
    known = [record.stages for record in records if record.stages is not None]
    taken = {name: [getattr(stages, name) for stages in known] for name in Stages.__struct_fields__}
    everything = sum(map(sum, taken.values()))
    return tuple(
        StageTime(
            stage=name,
            episodes=len(known),
            seconds=spread(values),
            share=sum(values) / everything if everything else 0.0,
        )
        for name, values in taken.items()
        if any(values)
    )
