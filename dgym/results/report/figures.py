"""Reports: figures over the episodes of one run, and the comparison of two runs over the same tasks.

Rates are over episodes with a verdict. An infrastructure failure says nothing about an agent, so failed episodes are
counted and shown but enter no rate and no average.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median
from typing import Any, TypeVar

import msgspec

from dgym.results.report.reading import EpisodeRow, Run, Stages
from dgym.results.report.statistics import Interval, Spread, mcnemar, percentile, spread, wilson

Key = TypeVar("Key", bound=Any)

CONFIDENCE = 0.95


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """The price of a million tokens of a model, in any one currency."""

    input: float
    output: float


class Group(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Figures over some episodes. ``cost`` is None unless it is known of every episode that used tokens.

    ``pass_at_1`` is the mean over tasks of the share of a task's samples that resolved it: the chance that one episode
    resolves a task drawn at random. With as many samples of each task it equals ``rate``. ``clean`` are resolved with a
    clean label of integrity, None where no verdict has a label; ``signs`` are the episodes by what was seen of them.
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
    clean: int | None = None
    signs: dict[str, int] = {}


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
    """The use of one tool. ``refused`` calls are those that failed for any reason."""

    tool: str
    calls: int
    refused: int
    episodes: int
    share_of_calls: float
    median_milliseconds: float
    p95_milliseconds: float
    total_seconds: float


class StageTime(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The time of one stage: preparation of the sandbox, the model, its queue, tools, the agent itself, scoring."""

    stage: str
    episodes: int
    seconds: Spread
    share: float


class Report(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """All figures of one run."""

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

    def figures(records: Sequence[EpisodeRow]) -> Group:
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


def grouped(records: Sequence[EpisodeRow], key: Callable[[EpisodeRow], Key]) -> dict[Key, list[EpisodeRow]]:
    """The records by ``key``, in the order of the keys."""
    groups: defaultdict[Key, list[EpisodeRow]] = defaultdict(list)
    for record in records:
        groups[key(record)].append(record)
    return {name: groups[name] for name in sorted(groups)}


def resolve_rate(records: Sequence[EpisodeRow]) -> float | None:
    """The share of episodes with a verdict that are resolved; None without any."""
    verdicts = [record.resolved for record in records if record.reason.is_verdict]
    return fmean(verdicts) if verdicts else None


def cost_of(records: Sequence[EpisodeRow], prices: Mapping[str, Price]) -> float | None:
    """The cost of the tokens of ``records``: as stored with each, else by ``prices``.

    None when it is not known of an episode that used tokens, or when none did.
    """
    used = [record for record in records if record.input_tokens or record.output_tokens]
    costs = [_cost(record, prices) for record in used]
    return sum(cost for cost in costs if cost is not None) if costs and None not in costs else None


def _cost(record: EpisodeRow, prices: Mapping[str, Price]) -> float | None:
    if record.price is not None:
        return record.price
    price = prices.get(record.model)
    if price is None:
        return None
    return (price.input * record.input_tokens + price.output * record.output_tokens) / 1e6


def _figures(records: Sequence[EpisodeRow], confidence: float, prices: Mapping[str, Price]) -> Group:
    verdicts = [record for record in records if record.reason.is_verdict]
    resolved = sum(record.resolved for record in verdicts)
    rates = [resolve_rate(same) for same in grouped(verdicts, lambda record: record.task).values()]
    reasons = Counter(str(record.reason) for record in records)
    labelled = [record for record in verdicts if record.clean is not None]
    return Group(
        episodes=len(records),
        verdicts=len(verdicts),
        resolved=resolved,
        failed=len(records) - len(verdicts),
        rate=resolved / len(verdicts) if verdicts else 0.0,
        interval=wilson(resolved, len(verdicts), confidence),
        pass_at_1=fmean(rate for rate in rates if rate is not None) if rates else 0.0,
        reasons=_by_number(reasons),
        steps=spread([record.steps for record in verdicts]),
        rewrites=spread([record.rewrites for record in verdicts]),
        seconds=spread([record.seconds for record in verdicts]),
        input_tokens=spread([record.input_tokens for record in verdicts]),
        output_tokens=spread([record.output_tokens for record in verdicts]),
        cost=cost_of(records, prices),
        clean=sum(record.resolved for record in labelled if record.clean) if labelled else None,
        signs=_by_number(Counter(sign for record in verdicts for sign in record.signs)),
    )


def _by_number(counts: Counter[str]) -> dict[str, int]:
    """The counts, the greatest first."""
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _tools(records: Sequence[EpisodeRow]) -> tuple[ToolUse, ...]:
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


def _stages(records: Sequence[EpisodeRow]) -> tuple[StageTime, ...]:
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


class TaskPair(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One task in both runs: shares of its samples that are resolved, and means; ``difference`` is B's minus A's."""

    task: str
    rate_a: float
    rate_b: float
    difference: float
    steps_a: float
    steps_b: float
    seconds_a: float
    seconds_b: float


class Difference(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One quantity: its means over the tasks in common, each task counted once."""

    quantity: str
    a: float
    b: float
    difference: float


class Comparison(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The comparison of run A with run B.

    ``better`` and ``worse`` are the tasks that B resolves more and less often than A; ``p_value`` is of McNemar's exact
    test on them.
    """

    pairs: tuple[TaskPair, ...]
    differences: tuple[Difference, ...]
    better: int
    worse: int
    equal: int
    p_value: float
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]


def compare(a: Run, b: Run) -> Comparison:
    """Compare by task. Tasks that have no verdict on one side are named and left out.

    A task is one observation however many samples it has, because samples of a task resemble each other: B is better
    at it, worse, or equal. With one sample of each task that is McNemar's test; with more it is the sign test, of which
    McNemar's is a case.
    """
    tasks_a, tasks_b = _verdicts(a), _verdicts(b)
    pairs = tuple(_pair(task, tasks_a[task], tasks_b[task]) for task in tasks_a if task in tasks_b)
    better = sum(pair.difference > 0 for pair in pairs)
    worse = sum(pair.difference < 0 for pair in pairs)
    common = [(tasks_a[pair.task], tasks_b[pair.task]) for pair in pairs]
    return Comparison(
        pairs=pairs,
        differences=tuple(_difference(name, common) for name in _QUANTITIES) if common else (),
        better=better,
        worse=worse,
        equal=len(pairs) - better - worse,
        p_value=mcnemar(better, worse),
        only_a=tuple(task for task in tasks_a if task not in tasks_b),
        only_b=tuple(task for task in tasks_b if task not in tasks_a),
    )


_QUANTITIES = ("resolved", "steps", "rewrites", "input_tokens", "output_tokens", "seconds")


def _verdicts(run: Run) -> dict[str, list[EpisodeRow]]:
    records = [record for record in run.records if record.reason.is_verdict]
    return grouped(records, lambda record: record.task)


def _pair(task: str, a: Sequence[EpisodeRow], b: Sequence[EpisodeRow]) -> TaskPair:
    rate_a, rate_b = resolve_rate(a) or 0.0, resolve_rate(b) or 0.0
    return TaskPair(
        task=task,
        rate_a=rate_a,
        rate_b=rate_b,
        difference=rate_b - rate_a,
        steps_a=_mean("steps", a),
        steps_b=_mean("steps", b),
        seconds_a=_mean("seconds", a),
        seconds_b=_mean("seconds", b),
    )


def _difference(quantity: str, common: Sequence[tuple[Sequence[EpisodeRow], Sequence[EpisodeRow]]]) -> Difference:
    a = fmean(_mean(quantity, records) for records, _ in common)
    b = fmean(_mean(quantity, records) for _, records in common)
    return Difference(quantity=quantity, a=a, b=b, difference=b - a)


def _mean(quantity: str, records: Sequence[EpisodeRow]) -> float:
    return fmean(getattr(record, quantity) for record in records)
