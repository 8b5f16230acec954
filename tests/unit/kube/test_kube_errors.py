import json

import pytest

from dgym.kube import (
    AlreadyExists,
    ApiError,
    BadRequest,
    Conflict,
    Expired,
    Forbidden,
    Invalid,
    NotFound,
    ServerUnavailable,
    TooManyRequests,
    Unauthorized,
)
from dgym.kube._resources import error_from_answer, error_from_event


def status(code: int, reason: str = "", message: str = "", **details: object) -> bytes:
    return json.dumps(
        {"kind": "Status", "code": code, "reason": reason, "message": message, "details": details}
    ).encode()


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (400, "BadRequest", BadRequest),
        (401, "Unauthorized", Unauthorized),
        (403, "Forbidden", Forbidden),
        (404, "NotFound", NotFound),
        (409, "AlreadyExists", AlreadyExists),
        (409, "Conflict", Conflict),
        (410, "Expired", Expired),
        (410, "Gone", Expired),
        (422, "Invalid", Invalid),
        (429, "TooManyRequests", TooManyRequests),
        (500, "InternalError", ServerUnavailable),
        (503, "ServiceUnavailable", ServerUnavailable),
        (504, "Timeout", ServerUnavailable),
        (415, "UnsupportedMediaType", ApiError),
    ],
)
def test_every_status_has_its_exception(code: int, reason: str, kind: type[ApiError]) -> None:
    error = error_from_answer(code, status(code, reason, "why"), {})
    assert type(error) is kind
    assert (error.status, error.reason, error.message) == (code, reason, "why")
    assert str(error) == f"{code} {reason}: why"


def test_already_exists_is_not_a_conflict() -> None:
    assert not isinstance(error_from_answer(409, status(409, "AlreadyExists"), {}), Conflict)


def test_a_page_of_a_proxy_becomes_an_exception_with_its_beginning() -> None:
    error = error_from_answer(502, b"<html>bad gateway" + b"x" * 100_000, {})
    assert isinstance(error, ServerUnavailable)
    assert error.message.startswith("<html>bad gateway")
    assert len(error.message) < 5000


@pytest.mark.parametrize("body", [b"", b"null", b"[]", b'{"details": 3}', b"\xff\xfe", b'{"code": "409"}'])
def test_any_body_makes_an_exception(body: bytes) -> None:
    assert isinstance(error_from_answer(409, body, {}), Conflict)


def test_retry_after_is_read_from_the_header_or_else_from_the_status() -> None:
    body = status(429, "TooManyRequests", retryAfterSeconds=7)
    assert error_from_answer(429, body, {"Retry-After": "3"}).retry_after == 3.0
    assert error_from_answer(429, body, {}).retry_after == 7.0
    assert error_from_answer(429, status(429), {"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}).retry_after is None


def test_refusals_by_quota_policy_and_namespace_deletion_are_distinguished() -> None:
    quota = error_from_answer(403, status(403, "Forbidden", 'pods "a" is forbidden: exceeded quota: q, requested'), {})
    policy = error_from_answer(403, status(403, "Forbidden", 'pods "a" is forbidden: violates PodSecurity "x"'), {})
    going = error_from_answer(403, status(403, "Forbidden", "no", causes=[{"reason": "NamespaceTerminating"}]), {})
    plain = error_from_answer(403, status(403, "Forbidden", 'User "u" cannot create resource "pods"'), {})
    refusals = [(e.quota, e.namespace_terminating) for e in (quota, policy, going, plain)]  # type: ignore[attr-defined]
    assert refusals == [(True, False), (False, False), (False, True), (False, False)]


def test_the_status_of_an_error_event_decides_the_exception() -> None:
    assert isinstance(error_from_event(status(410, "Expired", "too old resource version")), Expired)
    assert isinstance(error_from_event(b"{}"), ServerUnavailable)
