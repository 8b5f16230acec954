"""Errors that a call answers with, and which of them every exception of dgym means."""

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
from dgym.wire.http import ErrorBody, ErrorCode, error_body


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
    """The body that answers a call which ended in ``error``; what nobody foresaw is not spelled out to callers."""
    if isinstance(error, CallError):
        return error_body(error.code, str(error))
    for kind, code in _CODES:
        if isinstance(error, kind):
            return error_body(code, str(error))
    return error_body(ErrorCode.INTERNAL, f"the sidecar failed ({type(error).__name__}); its log says more")
