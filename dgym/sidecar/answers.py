"""Answers of calls: the state of a session, and the error that an exception means. Pure."""

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
from dgym.session import Session, bounded
from dgym.wire import Score, Step
from dgym.wire.http import (
    HISTORY_LIMIT,
    EpisodeState,
    ErrorBody,
    ErrorCode,
    StepsResponse,
    ToolDescription,
    ToolsResponse,
    Usage,
    error_body,
)


def episode_state(session: Session, usage: Usage) -> EpisodeState:
    """Where the episode stands."""
    result = session.result
    return EpisodeState(
        steps=session.steps,
        rewrites=session.rewrites,
        tools=tuple(session.tools),
        evaluation=bounded(session.evaluation)[0] if session.evaluation is not None else None,
        breakpoints=session.breakpoints,
        focus_file=session.focus_file,
        end_reason=result.reason if result is not None else None,
        score=Score(score=result.score, max_score=result.max_score) if result is not None else None,
        usage=usage if usage.input_tokens or usage.output_tokens else None,
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


def tool_descriptions(session: Session) -> ToolsResponse:
    """The task's instructions and the tools that are there now."""
    return ToolsResponse(
        instructions=session.task.spec.instructions,
        tools=tuple(
            ToolDescription(
                name=tool.name,
                description=tool.description,
                parameters=tool.parameters,
                instructions=tool.instructions,
            )
            for tool in session.tools.values()
        ),
        notices=tuple(session.notices),
    )


def utf8(text: str) -> str:
    """``text`` without what UTF-8 cannot say."""
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
    """The body that answers a call which ended in ``error``; what nobody foresaw is not spelled out to callers."""
    if isinstance(error, CallError):
        return error_body(error.code, str(error))
    for kind, code in _CODES:
        if isinstance(error, kind):
            return error_body(code, str(error))
    return error_body(ErrorCode.INTERNAL, f"the sidecar failed ({type(error).__name__}); its log says more")
