"""The steps of an earlier attempt, from its record in the results store, for the pod that goes on with the episode."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import msgspec

from dgym.agents import Exchange
from dgym.results import TimedStep, UnansweredStep
from dgym.session import RecordedHistory, death_observation
from dgym.wire import Observation, Step, ToolCall, read_cost, write_cost
from dgym.wire.assignments import PoisonedStep
from dgym.wire.http import REPLAY_LIMIT, Usage

_log = logging.getLogger("dgym.episodes.episode")

_MOST_STEPS = 10_000
"""``maxSteps`` allows no more: no step has a higher number."""
_UNRECORDED = ToolCall.mistake("The call was not recorded.")
_LOST = Observation(text="The record of this step is lost, and what it did was not done again.", ok=False)


class Past(msgspec.Struct, frozen=True, kw_only=True):
    """What was done and said in earlier attempts; ``steps`` begin with the reset, empty where it was not recorded.

    ``said`` are exchanges that led to no recorded step: the model is asked again.
    """

    steps: tuple[TimedStep, ...]
    poisoned: tuple[int, ...] = ()
    said: tuple[Any, ...] = ()

    @property
    def history(self) -> RecordedHistory:
        """The steps as the new pod replays them."""
        steps = (Step(seq=step.seq, call=step.call, observation=step.observation) for step in self.steps)
        return RecordedHistory(steps=tuple(steps), poisoned=self.poisoned)

    @property
    def copied(self) -> tuple[TimedStep, ...]:
        """The steps that the record of the new attempt begins with: all but the last, where the reset was recorded.

        The last is recorded as the session answers the reset with it, since it may end the episode there.
        """
        return self.steps[:-1] if self.steps[0].observation.text else ()

    @property
    def unrecorded(self) -> dict[int, tuple[Any, ...]]:
        """The exchanges by the number of the step that they led to, for those that are not ``copied``."""
        following = self.steps[len(self.copied) :]
        return {step.seq: tuple(step.exchanges or ()) for step in following} | {len(self.steps): self.said}

    @property
    def usage(self) -> Usage:
        """The tokens that the model has used, and their price."""
        exchanges = [each for step in self.steps for each in step.exchanges or ()]
        used = [msgspec.convert(each, Exchange).usage for each in (*exchanges, *self.said)]
        prices = [usage.price for usage in used if usage.price is not None]
        return Usage(
            input_tokens=sum(usage.input_tokens for usage in used),
            output_tokens=sum(usage.output_tokens for usage in used),
            price=write_cost(sum(map(read_cost, prices), Decimal(0))) if prices else None,
        )


def make_past(
    steps: Sequence[TimedStep], in_flight: UnansweredStep | None, poisoned: Iterable[PoisonedStep]
) -> Past | None:
    """The past of the new attempt; None where the episode begins afresh.

    A poisoned step is observed as the death of its sandbox, also where its call was not recorded. Steps before it whose
    record is lost keep their numbers, so that no later step has the number of a poisoned one. A step in flight that did
    not kill its sandbox is left to the agent to repeat.
    """
    reasons = {each.step: each.reason or "it died" for each in poisoned if each.step <= _MOST_STEPS}
    past = _past(steps, in_flight, reasons)
    size = sum(len(msgspec.json.encode(step)) + 1 for step in past.history.steps) if past is not None else 0
    if size <= REPLAY_LIMIT:
        return past
    _log.error("the recorded steps have %d bytes; at most %d are replayed", size, REPLAY_LIMIT)
    return _past((), None, reasons)


def _past(steps: Sequence[TimedStep], in_flight: UnansweredStep | None, reasons: Mapping[int, str]) -> Past | None:
    if not steps and not reasons:
        return None
    known = [_poisoned(step, reasons[step.seq]) if step.seq in reasons else step for step in steps]
    if not known:
        known = [TimedStep(seq=0, call=None, observation=Observation(text="", tool="reset"), elapsed_seconds=0.0)]
    said = tuple(in_flight.exchanges) if in_flight is not None else ()
    elapsed = known[-1].elapsed_seconds
    for seq in range(len(known), max(reasons, default=0) + 1):
        sent = in_flight if in_flight is not None and in_flight.seq == seq else None
        call = sent.call if sent is not None else _UNRECORDED
        observation = death_observation(call, reasons[seq]) if seq in reasons else _LOST
        exchanges = tuple(sent.exchanges) if sent is not None else ()
        known.append(
            TimedStep(seq=seq, call=call, observation=observation, elapsed_seconds=elapsed, exchanges=exchanges)
        )
        said = () if sent is not None else said
    return Past(steps=tuple(known), poisoned=tuple(sorted(reasons)), said=said)


def _poisoned(step: TimedStep, reason: str) -> TimedStep:
    if step.call is None:
        return step
    return msgspec.structs.replace(step, observation=death_observation(step.call, reason))
