"""Tests of signatures: a change of any signed field makes a signature invalid."""

import hashlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgym.wire import AttemptOutcome, EndReason, Result
from dgym.wire.http import Role, make_token, token_digest
from dgym.wire.signing import (
    answer_is_signed,
    content_digest,
    outcome_is_signed,
    patch_is_signed,
    read_request,
    sign_answer,
    sign_outcome,
    sign_request,
)

CLUSTER_KEY = b"k" * 32
COUNTS = ("score", "max_score", "steps", "rewrites", "input_tokens", "output_tokens")
numbers = st.integers(0, 2**53)
results = st.builds(
    Result,
    resolved=st.booleans(),
    reason=st.sampled_from(EndReason),
    patch=st.text(),
    message=st.text(),
    **dict.fromkeys(COUNTS, numbers),
)


def operate_key(uid, attempt, cluster_key=CLUSTER_KEY):
    return token_digest(make_token(cluster_key, episode_uid=uid, attempt=attempt, role=Role.OPERATE))


def reported(result, signature):
    """Return the outcome as an agent pod reports it: without the patch, with a URI and a message of the agent pod."""
    return AttemptOutcome.of(result, signature=signature, result_uri="file:///results", message="of the agent")


@pytest.mark.attack("tokens")
@given(results, st.text(max_size=40), st.integers(1, 99), st.data())
def test_every_field_of_an_outcome_is_signed(result, uid, attempt, data):
    signature = sign_outcome(operate_key(uid, attempt), result, episode_uid=uid, attempt=attempt)
    outcome = reported(result, signature)

    def believed(outcome=outcome, uid=uid, attempt=attempt, cluster_key=CLUSTER_KEY):
        return outcome_is_signed(cluster_key, outcome, episode_uid=uid, attempt=attempt)

    assert believed()
    for name in COUNTS:
        other = data.draw(numbers.filter(lambda number, name=name: number != getattr(outcome, name)))
        assert not believed(msgspec.structs.replace(outcome, **{name: other}))
    assert not believed(msgspec.structs.replace(outcome, resolved=not outcome.resolved))
    other = data.draw(st.sampled_from(EndReason).filter(lambda other: other is not outcome.reason))
    assert not believed(msgspec.structs.replace(outcome, reason=other))
    assert not believed(uid=data.draw(st.text(max_size=40).filter(lambda other: other != uid)))
    assert not believed(attempt=attempt + data.draw(st.integers(1, 9)))
    assert not believed(cluster_key=b"other" * 7)
    where = data.draw(st.integers(0, len(signature) - 1))
    other = data.draw(st.characters().filter(lambda character: character != signature[where]))
    assert not believed(msgspec.structs.replace(outcome, signature=signature[:where] + other + signature[where + 1 :]))
    assert not believed(msgspec.structs.replace(outcome, signature=""))


@given(results, st.text(), st.binary())
def test_a_signature_names_the_patch(result, uid, other):
    signature = sign_outcome(operate_key(uid, 1), result, episode_uid=uid, attempt=1)
    outcome, patch = reported(result, signature), result.patch.encode("utf-8", "surrogateescape")
    assert signature.startswith(hashlib.sha256(patch).hexdigest())
    assert patch_is_signed(patch, outcome)
    assert patch_is_signed(other, outcome) == (other == patch)
    assert not patch_is_signed(patch, msgspec.structs.replace(outcome, signature=""))
    # The signature of another patch does not fit the other fields.
    elsewhere = msgspec.structs.replace(outcome, signature=f"{content_digest(other)}.{signature.partition('.')[2]}")
    believed = outcome_is_signed(CLUSTER_KEY, elsewhere, episode_uid=uid, attempt=1)
    assert believed == (other == patch)


@given(st.text(), st.integers(100, 999), st.binary(), st.data())
def test_every_part_of_an_answer_is_signed(token, status, body, data):
    authorization = sign_request(token, "POST", "/v1/terminated", content=content_digest(b""))
    signature = sign_answer(token_digest(token), authorization, status, body)
    assert answer_is_signed(token, authorization, status, body, signature)
    again = sign_request(token, "POST", "/v1/terminated", content=content_digest(b""))
    assert not answer_is_signed(token, again, status, body, signature)
    other = data.draw(st.binary().filter(lambda value: value != body))
    assert not answer_is_signed(token, authorization, status, other, signature)
    assert not answer_is_signed(token, authorization, status + 1, body, signature)
    assert not answer_is_signed(f"{token}0", authorization, status, body, signature)
    assert not answer_is_signed(token, authorization, status, body, data.draw(st.text()))
    assert not answer_is_signed(token, authorization, status, body, "")


PARTS = ("method", "target", "epoch", "reset_key")
words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"), max_size=30)


@given(words, st.lists(words, min_size=4, max_size=4), words, st.sampled_from(PARTS))
def test_every_part_of_a_request_is_signed(token, values, other, changed):
    parts = dict(zip(PARTS, values, strict=True))
    digests = {role: token_digest(f"{role} {token}") for role in Role}
    authorization = sign_request(f"drive {token}", **parts, content=content_digest(b"body"))

    def read(authorization=authorization, **parts):
        method, target = parts.pop("method"), parts.pop("target")
        return read_request(digests, authorization, method, target, **parts)

    signed = read(**parts)
    assert (signed.role, signed.content) == (Role.DRIVE, content_digest(b"body"))
    found = read(**parts | {changed: other})
    assert (found is not None) == (other == parts[changed])
    for index, part in enumerate(authorization.removeprefix("Dgym ").split(".")):
        pieces = authorization.removeprefix("Dgym ").split(".")
        pieces[index] = ("1" if part[0] != "1" else "2") + part[1:]
        assert read(f"Dgym {'.'.join(pieces)}", **parts) is None


@pytest.mark.parametrize("authorization", ["", "Dgym", "Bearer token", "Dgym 1.2.3.4.5"])
def test_a_malformed_signature_is_refused(authorization):
    assert read_request({Role.DRIVE: token_digest("token")}, authorization, "GET", "/v1/tools") is None
