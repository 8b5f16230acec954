"""Tests of the uploaded trajectory of an earlier attempt: any input is read as steps or refused."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgym.sidecar._preparation import read_steps
from dgym.wire import Observation, Step, ToolCall
from dgym.wire.http import CallError

texts = st.text(st.characters(exclude_categories=["Cs"]))
calls = st.builds(ToolCall, tool=texts, arguments=st.dictionaries(texts, texts | st.integers(-(2**40), 2**40)))
observations = st.builds(Observation, text=texts, tool=texts, ok=st.booleans())
trajectories = st.lists(st.tuples(calls, observations), min_size=1).map(
    lambda pairs: [
        Step(seq=seq, call=call if seq else None, observation=observation)
        for seq, (call, observation) in enumerate(pairs)
    ]
)


def lines(steps):
    return [msgspec.json.encode(step) + b"\n" for step in steps]


@given(trajectories)
def test_recorded_steps_are_read_unchanged(steps):
    assert list(read_steps(lines(steps))) == steps


@given(trajectories, st.data())
def test_a_line_that_is_missing_doubled_or_torn_is_refused(steps, data):
    whole = lines(steps)
    number = data.draw(st.integers(0, len(whole) - 1))
    torn = data.draw(st.integers(1, len(whole[number]) - 2))
    for wrong in (
        [*whole[: number + 1], *whole[number:]],
        [*whole[:number], whole[number][:torn], *whole[number + 1 :]],
        [*whole[:number], *whole[number + 1 :]] if number < len(whole) - 1 or not number else [],
    ):
        with pytest.raises(CallError):
            read_steps(wrong)


@given(st.lists(st.binary()))
def test_other_bytes_are_refused(data):
    with pytest.raises(CallError):
        read_steps(data)
