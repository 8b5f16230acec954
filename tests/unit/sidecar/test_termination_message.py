"""Tests of the sidecar's termination message: it is always short, and it is read only if it is complete."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgym.wire import AttemptOutcome, EndReason, Result
from dgym.wire.outcome import (
    TERMINATION_LIMIT,
    TerminationMessage,
    decode_termination,
    encode_termination,
)


def ended(reason=EndReason.UNRESOLVED, **fields):
    return AttemptOutcome(resolved=reason is EndReason.RESOLVED, reason=reason, **fields)


@given(
    st.sampled_from(EndReason),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=2048),
    st.text(st.sampled_from('\\"\x00é😀a'), max_size=3000),
    st.integers(0, 2**53),
)
def test_every_message_fits_the_limit_and_can_be_decoded(reason, uri, message, number):
    outcome = ended(reason, steps=number, score=number, result_uri=uri, message=message, signature="s" * 129)
    data = encode_termination(TerminationMessage(episode_uid="0" * 36, attempt=number, outcome=outcome))
    assert len(data) <= TERMINATION_LIMIT
    attempt = decode_termination(data).attempt
    received = decode_termination(data).outcome
    assert (received.reason, attempt, received.steps) == (reason, number, number)
    head, _, tail = received.message.partition(" … ") if received.message != message else (message, "", "")
    assert message.startswith(head)
    assert message.endswith(tail)
    assert received.result_uri in (uri, "")


@given(st.integers(0, 200), st.integers(0, 255))
def test_a_cut_or_changed_message_is_ignored(position, byte):
    data = encode_termination(TerminationMessage(outcome=ended(message="x" * 200, steps=3)))
    assert decode_termination(data[: -1 - position]) is None
    changed = data[:position] + bytes([byte]) + data[position + 1 :]
    received = decode_termination(changed)
    assert received is None or received == decode_termination(data)


@pytest.mark.attack("tokens")
def test_an_outcome_with_a_wrong_checksum_is_ignored():
    forged = msgspec.json.encode(TerminationMessage(outcome=ended(EndReason.RESOLVED), checksum="0" * 16))
    assert decode_termination(forged) is None
    assert decode_termination(b"Killed") is None
    assert decode_termination(b"") is None


def test_spaces_behind_it_change_nothing():
    """A shorter message overwrites a longer message."""
    data = encode_termination(TerminationMessage(attempt=1, step_in_flight=7, elapsed_seconds=12.5))
    received = decode_termination(data + b"   ")
    assert (received.outcome, received.step_in_flight, received.elapsed_seconds) == (None, 7, 12.5)


def test_the_message_has_the_fields_of_the_result():
    result = Result(
        resolved=True, score=3, max_score=3, steps=7, rewrites=2, input_tokens=10, output_tokens=5,
        reason=EndReason.RESOLVED, message="all passed", patch="x" * 10_000,
    )  # fmt: skip
    outcome = AttemptOutcome.of(result, result_uri="s3://bucket/1")
    decoded = decode_termination(encode_termination(TerminationMessage(episode_uid="uid", attempt=2, outcome=outcome)))
    assert decoded.outcome == outcome
    for name in ("resolved", "score", "max_score", "steps", "rewrites", "input_tokens", "output_tokens", "reason"):
        assert getattr(decoded.outcome, name) == getattr(result, name)
    assert (decoded.episode_uid, decoded.attempt, decoded.outcome.message) == ("uid", 2, "all passed")
