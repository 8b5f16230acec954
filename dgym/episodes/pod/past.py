"""The steps of an earlier attempt, from its record in the results store, for the pod that goes on with the episode."""

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from dgym.agents import Exchange
from dgym.results import TimedStep, UnansweredStep
from dgym.session import RecordedHistory, death_observation
from dgym.wire import Observation, Step, ToolCall
from dgym.wire.assignments import PoisonedStep
from dgym.wire.http import REPLAY_LIMIT, Usage

_log = logging.getLogger("dgym.episodes.episode")

_UNRECORDED = ToolCall.mistake("The call was not recorded.")


class Past(msgspec.Struct, frozen=True, kw_only=True):
    """What was done and said in earlier attempts; ``steps`` begin with the reset.

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
        """The steps that the record of the new attempt begins with: all but the last.

        The last is recorded as the session answers the reset with it, since it may end the episode there.
        """
        return self.steps[:-1]

    @property
    def unrecorded(self) -> dict[int, tuple[Any, ...]]:
        """The exchanges by the number of the step that they led to, for those that are not ``copied``."""
        last = self.steps[-1]
        return {last.seq: tuple(last.exchanges or ()), last.seq + 1: self.said}

    @property
    def usage(self) -> Usage:
        """The tokens that the model has used."""
        exchanges = [each for step in self.steps for each in step.exchanges or ()]
        used = [msgspec.convert(each, Exchange).usage for each in (*exchanges, *self.said)]
        return Usage(
            input_tokens=sum(usage.input_tokens for usage in used),
            output_tokens=sum(usage.output_tokens for usage in used),
        )


def make_past(
    steps: Sequence[TimedStep], in_flight: UnansweredStep | None, poisoned: Iterable[PoisonedStep]
) -> Past | None:
    """The past of the new attempt; None where the episode begins afresh.

    A poisoned step is observed as the death of its sandbox, also where its call was not recorded. A step in flight that
    did not kill its sandbox is left to the agent to repeat. Without a record the second poisoned step still ends the
    episode, whose workspace is then the untouched one.
    """
    reasons = {step.step: step.reason or "it died" for step in poisoned}
    known = [_poisoned(step, reasons[step.seq]) if step.seq in reasons else step for step in steps]
    if not known:
        if len(reasons) < 2:
            return None
        lost = Observation(text="The record of this episode is lost.", tool="reset")
        known = [TimedStep(seq=0, call=None, observation=lost, elapsed_seconds=0.0)]
    following = len(known)
    said = tuple(in_flight.exchanges) if in_flight is not None else ()
    if following in reasons:
        call = in_flight.call if in_flight is not None else _UNRECORDED
        observation = death_observation(call, reasons[following])
        elapsed = known[-1].elapsed_seconds
        known.append(
            TimedStep(seq=following, call=call, observation=observation, elapsed_seconds=elapsed, exchanges=said)
        )
        said = ()
    past = Past(steps=tuple(known), poisoned=tuple(sorted(reasons)), said=said)
    size = sum(len(msgspec.json.encode(step)) + 1 for step in past.history.steps)
    if size > REPLAY_LIMIT:
        _log.error("the recorded steps have %d bytes; at most %d are replayed", size, REPLAY_LIMIT)
        return None
    return past


def _poisoned(step: TimedStep, reason: str) -> TimedStep:
    if step.call is None:
        return step
    return msgspec.structs.replace(step, observation=death_observation(step.call, reason))
