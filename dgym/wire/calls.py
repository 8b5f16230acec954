"""The calls of a sidecar: method, path, roles, body, answer and errors of each. Pure.

The sidecar takes its routes from this table, and ``docs/openapi.json`` is written from it.
"""

from typing import Final, Generic, Literal, TypeVar

import msgspec

from dgym.wire.http import (
    BODY_LIMIT,
    PREPARE_LIMIT,
    REPLAY_LIMIT,
    WORKSPACE_LIMIT,
    Accepted,
    AttemptState,
    BindRequest,
    CloseRequest,
    CloseResponse,
    DiffResponse,
    ErrorCode,
    Path,
    PauseRequest,
    PeekResponse,
    PrepareRequest,
    PrepareResponse,
    ReleaseRequest,
    ResetRequest,
    Role,
    RunningRequest,
    SpansResponse,
    StepRequest,
    StepResponse,
    StepsResponse,
    ToolsResponse,
    UploadResponse,
    VerifyResponse,
)

Request = TypeVar("Request")
Response = TypeVar("Response")

_PREPARE, _DRIVE, _OPERATE = (Role.PREPARE,), (Role.DRIVE,), (Role.OPERATE,)
_ORDER = (ErrorCode.CONFLICT, ErrorCode.ATTEMPT_OVER)
_FAILED = (ErrorCode.SETUP_FAILED, ErrorCode.SANDBOX_LOST, ErrorCode.VERIFIER_FAILED)

EVERYWHERE: Final = (
    ErrorCode.INVALID_ARGUMENT,
    ErrorCode.UNAUTHENTICATED,
    ErrorCode.FORBIDDEN,
    ErrorCode.SUPERSEDED,
    ErrorCode.INTERNAL,
    ErrorCode.BUSY,
)
"""Errors of every call that is signed."""


class Call(msgspec.Struct, Generic[Request, Response], frozen=True, kw_only=True):
    """One call.

    Attributes:
        method: Of HTTP.
        path: The path; ``{seq}`` stands for a step's number.
        roles: Whose tokens may sign it.
        summary: What it does, in one line.
        request: The type of its JSON body, which may be left out where every field has a default; None: it has none,
            or bytes.
        content_type: Of a body that is bytes; empty: there is none.
        limit: Bytes of the body.
        response: The type of the answer.
        repeated: Whether an answer may be 202, after which the client repeats the request.
        errors: Its errors beside those of every call.
    """

    method: Literal["GET", "POST", "PUT"]
    path: str
    roles: tuple[Role, ...]
    summary: str
    request: type[Request] | None = None
    content_type: str = ""
    limit: int = BODY_LIMIT
    response: type[Response]
    repeated: bool = False
    errors: tuple[ErrorCode, ...] = ()


BIND: Final = Call(
    method="POST",
    path=Path.BIND,
    roles=_OPERATE,
    summary="Bind a pooled sidecar to the attempt that it serves, once; signed with the pod's own token",
    request=BindRequest,
    response=Accepted,
    errors=_ORDER,
)
WORKSPACE: Final = Call[None, UploadResponse](
    method="PUT",
    path=Path.WORKSPACE,
    roles=_PREPARE,
    summary="Upload the repository, an uncompressed tar",
    content_type="application/x-tar",
    limit=WORKSPACE_LIMIT,
    response=UploadResponse,
    errors=_ORDER,
)
HISTORY: Final = Call[None, UploadResponse](
    method="PUT",
    path=Path.HISTORY,
    roles=_PREPARE,
    summary="Upload the steps of an earlier attempt, a line of JSON each",
    content_type="application/jsonl",
    limit=REPLAY_LIMIT,
    response=UploadResponse,
    errors=_ORDER,
)
PREPARE: Final = Call(
    method="POST",
    path=Path.PREPARE,
    roles=_PREPARE,
    summary="Send the episode's task and limits",
    request=PrepareRequest,
    limit=PREPARE_LIMIT,
    response=PrepareResponse,
    errors=_ORDER,
)
SOLUTION: Final = Call[None, PeekResponse](
    method="POST",
    path=Path.SOLUTION,
    roles=_PREPARE,
    summary="Apply the task's own solution",
    response=PeekResponse,
    repeated=True,
    errors=(*_ORDER, *_FAILED),
)
RESULT: Final = Call[None, CloseResponse](
    method="GET",
    path=Path.RESULT,
    roles=_PREPARE,
    summary="Wait for the verdict",
    response=CloseResponse,
    repeated=True,
    errors=_FAILED,
)
SPANS: Final = Call[None, SpansResponse](
    method="GET",
    path=Path.SPANS,
    roles=_PREPARE,
    summary="Get the spans of traced calls",
    response=SpansResponse,
)
RELEASE: Final = Call(
    method="POST",
    path=Path.RELEASE,
    roles=_PREPARE,
    summary="Release the pod: the result is stored",
    request=ReleaseRequest,
    response=Accepted,
)
RESET: Final = Call(
    method="POST",
    path=Path.RESET,
    roles=_DRIVE,
    summary="Begin the episode, or resume it under the same key",
    request=ResetRequest,
    response=StepResponse,
    repeated=True,
    errors=(*_ORDER, *_FAILED),
)
STEP: Final = Call(
    method="POST",
    path=Path.STEPS + "/{seq}",
    roles=_DRIVE,
    summary="Execute one call, once",
    request=StepRequest,
    response=StepResponse,
    repeated=True,
    errors=(*_ORDER, ErrorCode.GAP, ErrorCode.LIMIT_REACHED, *_FAILED),
)
STEPS: Final = Call[None, StepsResponse](
    method="GET",
    path=Path.STEPS,
    roles=_PREPARE + _DRIVE,
    summary="Get recorded steps",
    response=StepsResponse,
    errors=(*_ORDER, *_FAILED),
)
PEEK: Final = Call(
    method="POST",
    path=Path.PEEK,
    roles=_DRIVE,
    summary="Execute a call that changes nothing, without a step",
    request=StepRequest,
    response=PeekResponse,
    repeated=True,
    errors=(*_ORDER, *_FAILED),
)
TOOLS: Final = Call[None, ToolsResponse](
    method="GET",
    path=Path.TOOLS,
    roles=_DRIVE,
    summary="Get the task's instructions and the tools",
    response=ToolsResponse,
    errors=_ORDER,
)
DIFF: Final = Call[None, DiffResponse](
    method="GET",
    path=Path.DIFF,
    roles=_DRIVE,
    summary="Get the agent's changes as a patch",
    response=DiffResponse,
    repeated=True,
    errors=(*_ORDER, *_FAILED),
)
CLOSE: Final = Call(
    method="POST",
    path=Path.CLOSE,
    roles=_DRIVE,
    summary="End the episode and wait for its verdict",
    request=CloseRequest,
    response=CloseResponse,
    repeated=True,
    errors=(*_ORDER, *_FAILED),
)
VERIFY: Final = Call[None, VerifyResponse](
    method="POST",
    path=Path.VERIFY,
    roles=_OPERATE,
    summary="Report that the sandbox's container has terminated",
    response=VerifyResponse,
)
RUNNING: Final = Call(
    method="POST",
    path=Path.RUNNING,
    roles=_OPERATE,
    summary="Report that the sandbox's container runs",
    request=RunningRequest,
    response=Accepted,
    repeated=True,
)
PAUSE: Final = Call(
    method="POST",
    path=Path.PAUSE,
    roles=_OPERATE,
    summary="Stop the deadline until a driver calls again",
    request=PauseRequest,
    response=Accepted,
)
CANCEL: Final = Call[None, Accepted](
    method="POST",
    path=Path.CANCEL,
    roles=_OPERATE,
    summary="End the episode as cancelled",
    response=Accepted,
    repeated=True,
    errors=(ErrorCode.ATTEMPT_OVER,),
)
STATE: Final = Call[None, AttemptState](
    method="GET",
    path=Path.STATE,
    roles=_OPERATE,
    summary="Get the clocks of the attempt",
    response=AttemptState,
)
