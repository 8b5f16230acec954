"""One episode as a row of lists and reports: the fields of its result, and data from its trajectory."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from dgym.results._attempts import Attempt, StoredResult, parse_trajectory, trajectory_lines
from dgym.wire import EndReason
from dgym.wire.outcome import Provenance

DISTRIBUTIONS = "distributions"
Facts = Mapping[str, str]
"""Recorded values by name, such as ``interpreter``. The value of ``DISTRIBUTIONS`` has one line for each package."""

UNREADABLE = "(not a call)"
"""The tool name in reports for actions that are not calls."""


class TimedCall(msgspec.Struct, frozen=True):
    """One call of a tool, whether it succeeded, and its duration in seconds."""

    tool: str
    ok: bool
    seconds: float


class StageDurations(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The duration of each stage of an attempt, in seconds.

    ``prepare`` is the preparation of the sandbox, ``model`` the time of the model's replies, and ``queue`` the wait
    before them. ``agent`` is the rest of the episode's duration.
    """

    prepare: float
    model: float
    queue: float
    tools: float
    agent: float
    score: float


class AttemptFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The fields of an attempt that are known without a result.

    ``arm`` is empty if the episode does not belong to a set with arms.
    """

    namespace: str
    episode: str
    task: str
    agent: str
    model: str
    sample: int
    arm: str = ""
    steps: int
    start_time: str


class EpisodeRow(AttemptFields, frozen=True, kw_only=True, rename="camel"):
    """One episode: the fields of its newest result, and the calls of its trajectory.

    ``clean`` and ``signs`` come from the integrity label. Without a label they are None and empty. ``price`` is the
    price of the tokens, None if the configuration of the model has no prices. ``facts`` are the values of the
    provenance.
    """

    task_labels: dict[str, str] = {}
    attempt: int
    digest: str
    reason: EndReason
    resolved: bool
    score: int
    max_score: int
    rewrites: int
    input_tokens: int
    output_tokens: int
    seconds: float
    path: str
    clean: bool | None = None
    signs: tuple[str, ...] = ()
    price: float | None = None
    facts: Facts | None = None
    calls: tuple[TimedCall, ...] = ()
    stages: StageDurations | None = None

    @property
    def is_scored(self) -> bool:
        """True if rates include the episode: it counts for the agent, and its tests ran.

        A submission that is never scored and an episode that was cancelled before its tests ran are excluded.
        """
        if self.reason is EndReason.CANCELLED:
            return self.max_score > 0
        return self.reason.is_counted and self.reason is not EndReason.SUBMITTED


def run_of(path: str) -> str:
    """The results directory of an episode's path: the part before namespace, episode and digest."""
    return "/".join(path.split("/")[:-3])


def read_row(attempt: Attempt, result: StoredResult) -> EpisodeRow:
    """The row of an attempt's result, with the calls and stages of its trajectory."""
    steps = parse_trajectory(trajectory_lines(attempt.trajectory), _Step).steps
    calls = tuple(
        TimedCall(step.call.tool or UNREADABLE, step.observation.ok, step.observation.duration_seconds)
        for step in steps
        if step.call is not None
    )
    row = row_of(result, attempt=attempt.number, path=str(attempt.path))
    return msgspec.structs.replace(row, calls=calls, stages=_stages(result, steps, calls))


_SHARED = (set(EpisodeRow.__struct_fields__) & set(StoredResult.__struct_fields__)) - {"attempt", "price"}


def row_of(result: StoredResult, *, attempt: int, path: str) -> EpisodeRow:
    """The row of a result without calls and stages, which require the trajectory."""
    integrity = result.integrity
    return EpisodeRow(
        **{name: getattr(result, name) for name in _SHARED},
        attempt=attempt,
        seconds=result.duration_seconds,
        path=path,
        clean=None if integrity is None else integrity.clean,
        signs=() if integrity is None else tuple(sorted({seen.sign for seen in integrity.seen})),
        price=_number(result.price),
        facts=facts_of(result),
    )


def _number(text: str | None) -> float | None:
    """A stored price, or None if it is not a number."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


class _Call(msgspec.Struct, frozen=True):
    tool: str


class _Observation(msgspec.Struct, frozen=True, rename="camel"):
    ok: bool = True
    duration_seconds: float = 0.0


class _Exchange(msgspec.Struct, frozen=True, rename="camel"):
    seconds_model: float = 0.0
    seconds_queue: float = 0.0


class _Step(msgspec.Struct, frozen=True, rename="camel"):
    """The fields of a trajectory line that a report needs. Texts, the largest part of a line, are not decoded."""

    observation: _Observation
    call: _Call | None = None
    elapsed_seconds: float = 0.0
    exchanges: tuple[_Exchange, ...] = ()


def _stages(result: StoredResult, steps: Sequence[_Step], calls: Sequence[TimedCall]) -> StageDurations | None:
    """The stages of an episode, or None if it failed or no process measured the whole attempt."""
    if not result.reason.is_counted or result.wall_seconds is None or not steps:
        return None
    prepare, tools = steps[0].elapsed_seconds, sum(call.seconds for call in calls)
    model = sum(exchange.seconds_model for step in steps for exchange in step.exchanges)
    queue = sum(exchange.seconds_queue for step in steps for exchange in step.exchanges)
    return StageDurations(
        prepare=prepare,
        model=model,
        queue=queue,
        tools=tools,
        agent=max(0.0, result.duration_seconds - tools - model - queue),
        score=max(0.0, result.wall_seconds - prepare - result.duration_seconds),
    )


def facts_of(result: StoredResult) -> Facts | None:
    """The recorded values of a result, or None without provenance."""
    found = result.provenance
    if found is None:
        return None
    facts = {"agent": result.agent, **dict(_facts(found))}
    # Interned because thousands of episodes have the same few texts.
    return {sys.intern(name): sys.intern(value) for name, value in facts.items() if value}


def _facts(found: Provenance) -> Iterator[tuple[str, str]]:
    yield "dgym", found.dgym_version
    yield "commit of dgym", found.dgym_commit
    yield "sandbox", found.sandbox
    yield "image", found.image
    if (reported := found.reported_by_sandbox) is not None:
        yield "interpreter", reported.interpreter
        lines = [f"{name} {version}" for name, version in reported.distributions.items()]
        # The digest makes a difference visible if the list has been shortened.
        yield (
            DISTRIBUTIONS,
            "\n".join([*lines, *([f"others {reported.distributions_digest}"] * bool(reported.left_out))]),
        )
    yield "task digest", found.task_digest
    yield from (("parameter " + name, _text(value)) for name, value in found.parameters.items())
    yield from (("prompt " + name, value) for name, value in found.prompts.items())
    if (model := found.model) is not None:
        yield "model", model.requested
        yield from (("sampling " + name, _text(value)) for name, value in model.sampling.items())
        yield from (("price " + name, value) for name, value in model.prices.items())
        yield "served model", ", ".join(model.served)
        yield "system fingerprint", ", ".join(model.system_fingerprints)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
