"""Answers of calls: a page of the history, text that is UTF-8, and the error that an exception means. Pure."""

import msgspec

from dgym.errors import (
    ConflictError,
    DgymError,
    EpisodeOver,
    InfrastructureError,
    ManifestError,
    PluginError,
    SandboxLost,
    SandboxStartFailed,
    SetupFailed,
    VerifierFailed,
)
from dgym.session import Session
from dgym.wire import Step
from dgym.wire.http import (
    HISTORY_LIMIT,
    ErrorBody,
    ErrorCode,
    StepsResponse,
    error_body,
)


def history_page(session: Session, start: int) -> StepsResponse:
    """Steps from number ``start`` on, at least one, as long as they fit into one answer."""
    steps = session.history(start=start)
    page: list[Step] = []
    size = 0
    for step in steps:
        size += len(msgspec.json.encode(step))
        if page and size > HISTORY_LIMIT:
            break
        page.append(step)
    return StepsResponse(steps=tuple(page), next=start + len(page) if len(page) < len(steps) else None)


def utf8(text: str) -> str:
    """``text`` without what UTF-8 cannot encode."""
    return text.encode("utf-8", "replace").decode()


class CallError(DgymError):
    """A call is refused."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


_CODES: tuple[tuple[type[DgymError], ErrorCode], ...] = (
    (ConflictError, ErrorCode.CONFLICT),
    (EpisodeOver, ErrorCode.ATTEMPT_OVER),
    (ManifestError, ErrorCode.INVALID_ARGUMENT),
    (PluginError, ErrorCode.INVALID_ARGUMENT),
    (SetupFailed, ErrorCode.SETUP_FAILED),
    (SandboxLost, ErrorCode.SANDBOX_LOST),
    (SandboxStartFailed, ErrorCode.SANDBOX_LOST),
    (VerifierFailed, ErrorCode.VERIFIER_FAILED),
    (InfrastructureError, ErrorCode.INTERNAL),
)


def describe(error: BaseException) -> ErrorBody:
    """The body of the answer to a call that raised ``error``; an unexpected error's text stays in the log."""
    if isinstance(error, CallError):
        return error_body(error.code, str(error))
    for kind, code in _CODES:
        if isinstance(error, kind):
            return error_body(code, str(error))
    return error_body(ErrorCode.INTERNAL, f"the sidecar failed ({type(error).__name__}); its log says more")
