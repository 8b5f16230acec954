"""The exceptions of requests to the API server, built from the ``Status`` that it answers with.

A request that may have taken effect is never repeated blindly: the caller reads the object first.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from dgym.decoding import DECODE_ERRORS


class StatusCause(msgspec.Struct, frozen=True):
    """One fault: of a field, or of the namespace."""

    reason: str = ""
    message: str = ""
    field: str = ""


class StatusDetails(msgspec.Struct, frozen=True, rename="camel"):
    """The object that the request was about."""

    name: str = ""
    kind: str = ""
    uid: str = ""
    causes: tuple[StatusCause, ...] = ()
    retry_after_seconds: int = 0


class Status(msgspec.Struct, frozen=True):
    """The API's own description of an outcome."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: StatusDetails | None = None


class ApiError(Exception):
    """A request (``method``, ``path``) failed. ``status`` is HTTP's, 0 if there was no answer."""

    def __init__(
        self,
        message: str = "",
        *,
        status: int = 0,
        reason: str = "",
        details: StatusDetails | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.reason = reason
        self.details = details or StatusDetails()
        self.retry_after = retry_after
        self.method = ""
        self.path = ""

    def __str__(self) -> str:
        label = f"{self.status} {self.reason}".strip() if self.status else type(self).__name__
        return f"{label}: {self.message}" if self.message else label

    @property
    def causes(self) -> tuple[StatusCause, ...]:
        """The single faults, if the server names them."""
        return self.details.causes


class BadRequest(ApiError):
    """400: the request makes no sense to this server."""


class Unauthorized(ApiError):
    """401: the credentials are not valid, or not any more."""


class Forbidden(ApiError):
    """403: not allowed by RBAC, or by an admission plugin, which only the message names."""

    @property
    def quota(self) -> bool:
        """A ResourceQuota of the namespace is used up: others finish, and it passes."""
        return "exceeded quota:" in self.message or "failed quota:" in self.message

    @property
    def namespace_terminating(self) -> bool:
        """The namespace is being deleted: nothing can be made in it any more."""
        return any(cause.reason == "NamespaceTerminating" for cause in self.causes)


class NotFound(ApiError):
    """404: the object is not there; on create, its namespace is not."""


class AlreadyExists(ApiError):
    """409 on create: the name is taken."""


class Conflict(ApiError):
    """409: the object is not what the request presumed (resourceVersion, uid); nothing was changed. Read it again."""


class Expired(ApiError):
    """410: the resourceVersion or continue token is older than what the server remembers. List again."""


class Invalid(ApiError):
    """422: the object breaks its schema or a rule of it; ``causes`` name the fields."""


class TooManyRequests(ApiError):
    """429: the server did nothing; the request may be repeated after ``retry_after``."""


class ServerUnavailable(ApiError):
    """5xx: the server, or a webhook that it calls, cannot answer now. The request may have taken effect."""


class ConnectionLost(ApiError):
    """No complete answer: refused, reset, cut off, or not within the deadline. The request may have taken effect."""


class UnreadableAnswer(ApiError):
    """2xx: the request took effect, and the body does not decode: a CRD of another version, or a proxy's answer."""


class PortUnreachable(ApiError):
    """The kubelet cannot connect to the port of a pod."""


_BY_STATUS: Mapping[int, type[ApiError]] = {
    400: BadRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Expired,
    422: Invalid,
    429: TooManyRequests,
}
_TEXT_LIMIT = 4096
"""Characters kept of an answer that is no Status: proxies send whole pages."""


def error_from_answer(status: int, body: bytes, headers: Mapping[str, str]) -> ApiError:
    """The exception for an answer with this HTTP status; the body need not be a ``Status``."""
    answer = _decode_status(body)
    message = answer.message or body[:_TEXT_LIMIT].decode(errors="replace").strip()
    return _make(status, answer, message, _seconds(headers.get("Retry-After")))


def error_from_event(raw: bytes) -> ApiError:
    """The exception for the object of a watch event of type ERROR."""
    answer = _decode_status(raw)
    return _make(answer.code or 500, answer, answer.message, None)


def _make(status: int, answer: Status, message: str, retry_after: float | None) -> ApiError:
    kind = _BY_STATUS.get(status, ServerUnavailable if status >= 500 else ApiError)
    if answer.reason == "AlreadyExists":
        kind = AlreadyExists
    if retry_after is None and answer.details is not None and answer.details.retry_after_seconds:
        retry_after = float(answer.details.retry_after_seconds)
    return kind(message, status=status, reason=answer.reason, details=answer.details, retry_after=retry_after)


def _decode_status(body: bytes) -> Status:
    try:
        return msgspec.json.decode(body, type=Status)
    except DECODE_ERRORS:
        return Status()


def _seconds(value: Any) -> float | None:
    try:
        return max(0.0, float(value))
    except (TypeError, ValueError):
        return None
