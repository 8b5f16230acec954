"""What a new attempt begins with, from the record of the one before."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from dgym.episodes.pod import past as module
from dgym.episodes.pod.past import make_past
from dgym.results import TimedStep, UnansweredStep
from dgym.wire import Observation, ToolCall
from dgym.wire.assignments import PoisonedStep

CALL = ToolCall(tool="bash", arguments={"command": "true"})


def said(text, tokens):
    return {"text": text, "usage": {"inputTokens": tokens, "outputTokens": 1}, "sent": []}


def recorded(count):
    return tuple(
        TimedStep(
            seq=seq,
            call=CALL if seq else None,
            observation=Observation(text=f"observed {seq}"),
            elapsed_seconds=float(seq),
            exchanges=(said(f"said {seq}", seq),) if seq else msgspec.UNSET,
        )
        for seq in range(count)
    )


def in_flight(seq):
    return UnansweredStep(seq=seq, call=CALL, exchanges=(said(f"said {seq}", seq),))


def test_without_a_record_the_episode_begins_afresh():
    assert make_past((), None, ()) is None
    assert make_past((), None, [PoisonedStep(step=3)]) is None


def test_without_a_record_two_poisoned_steps_still_end_it():
    past = make_past((), None, [PoisonedStep(step=3), PoisonedStep(step=5)])
    assert ([step.call for step in past.steps], past.poisoned) == ([None], (3, 5))


def test_a_poisoned_step_in_flight_is_observed_as_a_death():
    past = make_past(recorded(3), in_flight(3), [PoisonedStep(step=3, reason="OOMKilled")])
    assert past.steps[:3] == past.copied == recorded(3)
    assert (past.steps[3].call, past.steps[3].exchanges) == (CALL, in_flight(3).exchanges)
    assert past.steps[3].observation.text.startswith("sandbox killed (OOMKilled)")
    assert past.unrecorded == {3: in_flight(3).exchanges, 4: ()}
    assert (past.usage.input_tokens, past.usage.output_tokens) == (1 + 2 + 3, 3)


def test_a_step_in_flight_that_killed_nothing_is_left_to_the_agent():
    past = make_past(recorded(3), in_flight(3), ())
    assert past.steps == recorded(3)
    assert past.unrecorded == {2: recorded(3)[2].exchanges, 3: in_flight(3).exchanges}
    assert past.usage.input_tokens == 1 + 2 + 3


def test_a_recorded_step_that_killed_its_replay_is_observed_as_a_death():
    past = make_past(recorded(3), None, [PoisonedStep(step=1, reason="exit status 143")])
    assert "exit status 143" in past.steps[1].observation.text
    assert past.steps[1].exchanges == recorded(3)[1].exchanges
    assert past.steps[2] == recorded(3)[2]


def test_more_than_is_taken_begins_afresh(monkeypatch):
    monkeypatch.setattr(module, "REPLAY_LIMIT", 100)
    assert make_past(recorded(3), None, ()) is None


@given(st.integers(0, 6), st.none() | st.integers(0, 7), st.sets(st.integers(0, 9)))
def test_the_steps_are_always_a_history(count, seq, poisoned):
    unanswered = in_flight(seq) if seq is not None and seq == count else None
    past = make_past(recorded(count), unanswered, [PoisonedStep(step=step) for step in poisoned])
    if past is None:
        assert count == 0
        assert len(poisoned) < 2
        return
    assert [step.seq for step in past.history.steps] == list(range(len(past.steps)))
    assert [step.call is None for step in past.steps] == [not seq for seq in range(len(past.steps))]
    assert past.poisoned == tuple(sorted(poisoned))
    for step in past.steps[1:]:
        assert step.observation.text.startswith("sandbox killed (") == (step.seq in poisoned)
    assert sum(len(exchanges) for exchanges in past.unrecorded.values()) + sum(
        len(step.exchanges or ()) for step in past.copied
    ) == max(0, count - 1) + (unanswered is not None)
