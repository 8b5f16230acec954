"""The table of calls of sidecars: method, path, roles, parameters, body, answer and errors of each. Pure.

The sidecar serves the calls of this table. ``dgym.wire.client`` makes them: ``await client.call(calls.STEP, body,
seq=3)``. ``docs/openapi.json`` is generated from the table. ``dgym.wire.assignments`` has the calls of agent pods.
"""

import re
from enum import StrEnum
from typing import Final, Generic, Literal, TypeVar

import msgspec

from dgym.wire.http import (
    BODY_LIMIT,
    IDEMPOTENCY_HEADER,
    PREPARE_LIMIT,
    REPLAY_LIMIT,
    WORKSPACE_LIMIT,
    Accepted,
    AttemptState,
    BindRequest,
    CallError,
    ErrorCode,
    FinishRequest,
    FinishResponse,
    PatchResponse,
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
    TerminatedResponse,
    ToolsResponse,
    UploadResponse,
)

Request = TypeVar("Request")
Response = TypeVar("Response")

HEALTH: Final = "/healthz"
READY: Final = "/readyz"
"""The probes of the kubelet. They do not need a token."""

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
"""Errors that every signed call may return."""


class CallParameter(msgspec.Struct, frozen=True, kw_only=True):
    """A value outside of the body of a request.

    Attributes:
        keyword: Its name in Python.
        name: Its name on the wire.
        place: The part of the request that contains it.
        kind: Its type in Python.
        pattern: A regular expression that the whole text must match.
        valid: Description of valid values, for messages.
        description: Description for ``docs/openapi.json``.
        default: The value if the parameter is absent. None: the parameter is required.
    """

    keyword: str
    name: str
    place: Literal["path", "query", "header"]
    kind: type[int] | type[str] = str
    pattern: str = ".+"
    valid: str = "a text"
    description: str = ""
    default: int | str | None = None

    def read(self, text: str | None) -> int | str:
        """Convert ``text`` to the value. ``text`` is None if the parameter is absent.

        Raises:
            CallError: INVALID_ARGUMENT.
        """
        if text is None and self.default is not None:
            return self.default
        if text is None or not re.fullmatch(self.pattern, text):
            message = f"{self.name} must be {self.valid}, not {(text or '')[:40]!r}"
            raise CallError(ErrorCode.INVALID_ARGUMENT, message)
        return self.kind(text)


class Call(msgspec.Struct, Generic[Request, Response], frozen=True, kw_only=True, eq=False):
    """One call.

    Attributes:
        method: The HTTP method.
        path: The path, with parameters in braces.
        roles: The roles that may make the call. Tokens of a sidecar's roles sign requests and answers. Tokens of an
            agent pod's roles are sent as bearer tokens.
        summary: A description in one line.
        request: The type of the JSON body, which may be left out if every field has a default. None: the call has no
            body, or a body of bytes.
        content_type: The media type of a body of bytes. Empty: the call has no such body.
        limit: Maximum number of bytes of the body.
        parameters: Values outside of the body.
        response: The type of the answer. ``bytes``: the answer is not JSON.
        repeated: Whether the status of an answer may be 202. The client then repeats the request.
        errors: Errors in addition to those of every call.
    """

    method: Literal["GET", "POST", "PUT", "DELETE"]
    path: str
    roles: tuple[StrEnum, ...]
    summary: str
    request: type[Request] | None = None
    content_type: str = ""
    limit: int = BODY_LIMIT
    parameters: tuple[CallParameter, ...] = ()
    response: type[Response]
    repeated: bool = False
    errors: tuple[ErrorCode, ...] = ()

    @property
    def signed(self) -> bool:
        """Whether request and answer are signed."""
        return isinstance(self.roles[0], Role)


def _step_number(
    name: str, place: Literal["path", "query"], description: str, default: int | None = None
) -> CallParameter:
    return CallParameter(
        keyword=name,
        name=name,
        place=place,
        kind=int,
        pattern="[0-9]{1,9}",
        valid="a whole number",
        description=description,
        default=default,
    )


_SEQ: Final = _step_number("seq", "path", "The step's number, from 1.")
_START: Final = _step_number("start", "query", "The number of the first step; 0 is the reset.", 0)
_KEY: Final = CallParameter(
    keyword="key",
    name=IDEMPOTENCY_HEADER,
    place="header",
    pattern="[!-~]([ -~]{0,198}[!-~])?",
    valid="1 to 200 visible characters",
    description="The same key resumes the episode. Another key is a conflict.",
)

BIND: Final = Call(
    method="POST",
    path="/v1/bind",
    roles=_OPERATE,
    summary="Bind a pooled sidecar to the attempt that it serves, once. The call is signed with the pod's own token",
    request=BindRequest,
    response=Accepted,
    errors=_ORDER,
)
WORKSPACE: Final = Call[None, UploadResponse](
    method="PUT",
    path="/v1/workspace",
    roles=_PREPARE,
    summary="Upload the repository, an uncompressed tar",
    content_type="application/x-tar",
    limit=WORKSPACE_LIMIT,
    response=UploadResponse,
    errors=_ORDER,
)
TRAJECTORY: Final = Call[None, UploadResponse](
    method="PUT",
    path="/v1/trajectory",
    roles=_PREPARE,
    summary="Upload the steps of an earlier attempt, as one line of JSON for each step",
    content_type="application/jsonl",
    limit=REPLAY_LIMIT,
    response=UploadResponse,
    errors=_ORDER,
)
PREPARE: Final = Call(
    method="POST",
    path="/v1/prepare",
    roles=_PREPARE,
    summary="Send the episode's task and limits",
    request=PrepareRequest,
    limit=PREPARE_LIMIT,
    response=PrepareResponse,
    errors=_ORDER,
)
APPLY_SOLUTION: Final = Call[None, PeekResponse](
    method="POST",
    path="/v1/apply-solution",
    roles=_PREPARE,
    summary="Apply the task's own solution",
    response=PeekResponse,
    repeated=True,
    errors=(*_ORDER, *_FAILED),
)
RESULT: Final = Call[None, FinishResponse](
    method="GET",
    path="/v1/result",
    roles=_PREPARE,
    summary="Wait for the result of the episode",
    response=FinishResponse,
    repeated=True,
    errors=_FAILED,
)
SPANS: Final = Call[None, SpansResponse](
    method="GET",
    path="/v1/spans",
    roles=_PREPARE,
    summary="Get the spans of traced calls",
    response=SpansResponse,
)
RELEASE: Final = Call(
    method="POST",
    path="/v1/release",
    roles=_PREPARE,
    summary="Release the pod: the result is stored",
    request=ReleaseRequest,
    response=Accepted,
)
RESET: Final = Call(
    method="POST",
    path="/v1/reset",
    roles=_DRIVE,
    summary="Begin the episode, or resume it under the same key",
    request=ResetRequest,
    parameters=(_KEY,),
    response=StepResponse,
    repeated=True,
    errors=(*_ORDER, *_FAILED),
)
STEP: Final = Call(
    method="POST",
    path="/v1/steps/{seq}",
    roles=_DRIVE,
    summary="Execute one call, once",
    request=StepRequest,
    parameters=(_SEQ,),
    response=StepResponse,
    repeated=True,
    errors=(*_ORDER, ErrorCode.GAP, ErrorCode.LIMIT_REACHED, *_FAILED),
)
STEPS: Final = Call[None, StepsResponse](
    method="GET",
    path="/v1/steps",
    roles=_PREPARE + _DRIVE,
    summary="Get recorded steps",
    parameters=(_START,),
    response=StepsResponse,
    errors=(*_ORDER, *_FAILED),
)
PEEK: Final = Call(
    method="POST",
    path="/v1/peek",
    roles=_DRIVE,
    summary="Execute a call of a tool that does not change anything, without a step",
    request=StepRequest,
    response=PeekResponse,
    repeated=True,
    errors=(*_ORDER, *_FAILED),
)
TOOLS: Final = Call[None, ToolsResponse](
    method="GET",
    path="/v1/tools",
    roles=_DRIVE,
    summary="Get the task's instructions and the tools",
    response=ToolsResponse,
    errors=_ORDER,
)
PATCH: Final = Call[None, PatchResponse](
    method="GET",
    path="/v1/patch",
    roles=_DRIVE,
    summary="Get the agent's changes as a patch",
    response=PatchResponse,
    repeated=True,
    errors=(*_ORDER, *_FAILED),
)
FINISH: Final = Call(
    method="POST",
    path="/v1/finish",
    roles=_DRIVE,
    summary="End the episode and wait for its result",
    request=FinishRequest,
    response=FinishResponse,
    repeated=True,
    errors=(*_ORDER, *_FAILED),
)
TERMINATED: Final = Call[None, TerminatedResponse](
    method="POST",
    path="/v1/terminated",
    roles=_OPERATE,
    summary="Report that the sandbox's container has terminated",
    response=TerminatedResponse,
)
RUNNING: Final = Call(
    method="POST",
    path="/v1/running",
    roles=_OPERATE,
    summary="Report that the sandbox's container runs",
    request=RunningRequest,
    response=Accepted,
    repeated=True,
)
PAUSE: Final = Call(
    method="POST",
    path="/v1/pause",
    roles=_OPERATE,
    summary="Stop the deadline until a driver calls again",
    request=PauseRequest,
    response=Accepted,
)
CANCEL: Final = Call[None, Accepted](
    method="POST",
    path="/v1/cancel",
    roles=_OPERATE,
    summary="End the episode as cancelled",
    response=Accepted,
    repeated=True,
    errors=(ErrorCode.ATTEMPT_OVER,),
)
STATE: Final = Call[None, AttemptState](
    method="GET",
    path="/v1/state",
    roles=_OPERATE,
    summary="Get the clocks of the attempt",
    response=AttemptState,
)
