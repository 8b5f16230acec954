"""The errors of the HTTP protocol: a closed set of codes, the status each travels with, and the body. Pure."""

from enum import StrEnum

import msgspec


class ErrorCode(StrEnum):
    """What went wrong."""

    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    INVALID_ARGUMENT = "invalid_argument"
    CONFLICT = "conflict"
    GAP = "gap"
    SUPERSEDED = "superseded"
    ATTEMPT_OVER = "attempt_over"
    TOO_LARGE = "too_large"
    LIMIT_REACHED = "limit_reached"
    BUSY = "busy"
    SANDBOX_LOST = "sandbox_lost"
    SETUP_FAILED = "setup_failed"
    VERIFIER_FAILED = "verifier_failed"
    INTERNAL = "internal"

    @property
    def status(self) -> int:
        """The HTTP status it travels with."""
        return _STATUS[self]

    @property
    def retryable(self) -> bool:
        """Whether repeating the request may help; the other errors end the call, and often the attempt."""
        return self is ErrorCode.BUSY


_STATUS = {
    ErrorCode.UNAUTHENTICATED: 401,
    ErrorCode.FORBIDDEN: 403,
    ErrorCode.NOT_FOUND: 404,
    ErrorCode.INVALID_ARGUMENT: 400,
    ErrorCode.CONFLICT: 409,
    ErrorCode.GAP: 409,
    ErrorCode.SUPERSEDED: 409,
    ErrorCode.ATTEMPT_OVER: 410,
    ErrorCode.TOO_LARGE: 413,
    ErrorCode.LIMIT_REACHED: 409,
    ErrorCode.BUSY: 503,
    ErrorCode.SANDBOX_LOST: 502,
    ErrorCode.SETUP_FAILED: 422,
    ErrorCode.VERIFIER_FAILED: 500,
    ErrorCode.INTERNAL: 500,
}


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of every answer whose status is 400 or above."""

    code: ErrorCode
    message: str
    retryable: bool = False


def error_body(code: ErrorCode, message: str) -> ErrorBody:
    """The body of an error of that code."""
    return ErrorBody(code=code, message=message, retryable=code.retryable)
