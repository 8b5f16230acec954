"""Tests of the steps with which a new attempt begins, made from the record of the previous attempt."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgym.episodes.agent_pod import _session as module
from dgym.episodes.agent_pod._session import make_past
from dgym.results import TimedStep, UnansweredStep
from dgym.wire import Observation, ToolCall
from dgym.wire.assignments import OmittedStep

CALL = ToolCall(tool="bash", arguments={"command": "true"})


def exchange_of(text, tokens):
    return {"text": text, "usage": {"inputTokens": tokens, "outputTokens": 1}, "sent": []}


def recorded(count):
    return tuple(
        TimedStep(
            seq=seq,
            call=CALL if seq else None,
            observation=Observation(text=f"observed {seq}"),
            elapsed_seconds=float(seq),
            exchanges=(exchange_of(f"said {seq}", seq),) if seq else msgspec.UNSET,
        )
        for seq in range(count)
    )


def in_flight(seq):
    return UnansweredStep(seq=seq, call=CALL, exchanges=(exchange_of(f"said {seq}", seq),))


def test_without_a_record_there_is_no_past():
    assert make_past((), None, ()) is None


def test_steps_whose_record_is_lost_keep_their_numbers():
    past = make_past(recorded(3), in_flight(3), [OmittedStep(step=5, reason="OOMKilled")])
    assert past.steps[:3] == recorded(3)
    assert [step.call for step in past.steps[3:]] == [CALL, module._UNRECORDED, module._UNRECORDED]
    assert [step.observation.ok for step in past.steps[3:]] == [False] * 3
    assert "is missing in the trajectory" in past.steps[4].observation.text
    assert past.steps[5].observation.text.startswith("The sandbox was killed (OOMKilled)")
    assert past.steps[3].exchanges == in_flight(3).exchanges
    assert past.unrecorded == {5: (), 6: ()}


@pytest.mark.parametrize("numbers", [(3,), (3, 5)])
def test_without_a_record_only_the_reset_is_made_again(numbers):
    past = make_past((), None, [OmittedStep(step=step) for step in numbers])
    assert (past.trajectory.steps[0].call, past.trajectory.steps[0].observation.text) == (None, "")
    assert (len(past.steps), past.poisoned, past.copied) == (numbers[-1] + 1, numbers, ())
    assert past.unrecorded == dict.fromkeys(range(len(past.steps) + 1), ())


def test_a_huge_step_number_is_ignored():
    assert make_past((), None, [OmittedStep(step=2**53)]) is None


def test_a_poisoned_step_in_flight_is_observed_as_a_death():
    past = make_past(recorded(3), in_flight(3), [OmittedStep(step=3, reason="OOMKilled")])
    assert past.steps[:3] == past.copied == recorded(3)
    assert (past.steps[3].call, past.steps[3].exchanges) == (CALL, in_flight(3).exchanges)
    assert past.steps[3].observation.text.startswith("The sandbox was killed (OOMKilled)")
    assert past.unrecorded == {3: in_flight(3).exchanges, 4: ()}
    assert (past.usage.input_tokens, past.usage.output_tokens) == (1 + 2 + 3, 3)


def test_a_step_in_flight_that_killed_nothing_is_left_to_the_agent():
    past = make_past(recorded(3), in_flight(3), ())
    assert past.steps == recorded(3)
    assert past.unrecorded == {2: recorded(3)[2].exchanges, 3: in_flight(3).exchanges}
    assert past.usage.input_tokens == 1 + 2 + 3


def test_a_recorded_step_that_killed_its_replay_is_observed_as_a_death():
    past = make_past(recorded(3), None, [OmittedStep(step=1, reason="exit status 143")])
    assert "exit status 143" in past.steps[1].observation.text
    assert past.steps[1].exchanges == recorded(3)[1].exchanges
    assert past.steps[2] == recorded(3)[2]


def test_more_than_is_taken_counts_as_lost(monkeypatch):
    monkeypatch.setattr(module, "REPLAY_LIMIT", 100)
    assert make_past(recorded(3), None, ()) is None
    past = make_past(recorded(3), None, [OmittedStep(step=2)])
    assert [step.call for step in past.steps] == [None, module._UNRECORDED, module._UNRECORDED]


@given(st.integers(0, 6), st.none() | st.integers(0, 7), st.sets(st.integers(0, 9)))
def test_the_steps_are_always_a_trajectory(count, seq, poisoned):
    unanswered = in_flight(seq) if seq is not None and seq == count else None
    past = make_past(recorded(count), unanswered, [OmittedStep(step=step) for step in poisoned])
    if past is None:
        assert count == len(poisoned) == 0
        return
    assert [step.seq for step in past.trajectory.steps] == list(range(max(count, max(poisoned, default=0) + 1)))
    assert [step.call is None for step in past.steps] == [not seq for seq in range(len(past.steps))]
    assert past.poisoned == tuple(sorted(poisoned))
    for step in past.steps[1:]:
        assert step.observation.text.startswith("The sandbox was killed (") == (step.seq in poisoned)
    assert sum(len(exchanges) for exchanges in past.unrecorded.values()) + sum(
        len(step.exchanges or ()) for step in past.copied
    ) == max(0, count - 1) + (unanswered is not None)
