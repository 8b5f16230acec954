"""The protocol between the operator and the agent pods: assignments and their status. Pure.

``PUT`` and ``DELETE`` are idempotent and ``GET`` reports every assignment, so either side may restart at any time, and
lost messages are repeated.
"""

import hashlib
import hmac
from enum import StrEnum
from typing import Annotated, Any, Final, Literal

import msgspec

from dgym.wire.calls import Call, CallParameter
from dgym.wire.http import Accepted, Epochs, ErrorCode, ToolWithOptions, WireMessage
from dgym.wire.outcome import AttemptOutcome, Count, EndReason

RESULTS_PATH = "/v1/results"
"""Prefix of the paths of results: ``/<namespace>/<episode>/<uid>/<attempt>/<file>``, or ``/<namespace>/<episode>`` for
the list. Agent pods serve them to the results token, the operator to the tokens of users."""
RESULTS_AUDIENCE = "results.dgym.dev"
"""Audience of tokens for reading results from the operator. The API server does not accept these tokens."""
ASSIGNMENT_LIMIT = 8 * 1024**2
"""Maximum number of bytes of one assignment, which contains the task with its files."""


class AgentPodRole(StrEnum):
    """The caller's role: the operator, or a reader of results."""

    ASSIGN = "assign"
    RESULTS = "results"


class AssignmentMode(StrEnum):
    """The task of the agent pod.

    ``run``: run the episode; ``prepare``: prepare the pod for an external driver and watch it, without a slot;
    ``recover``: report the stored result. A ``recover`` that failed with a reason other than SandboxLost leaves open
    whether there is a result.
    """

    RUN = "run"
    PREPARE = "prepare"
    RECOVER = "recover"


class AssignmentState(StrEnum):
    """The phase of an assignment.

    ``storeUnavailable``: the results store does not accept the result yet; ``finished``: stored and released, or only
    reported where both store and pod are gone; ``failed``: another try may help, and the pod is kept.
    """

    PREPARING = "preparing"
    RUNNING = "running"
    CLOSING = "closing"
    STORING = "storing"
    STORE_UNAVAILABLE = "storeUnavailable"
    FINISHED = "finished"
    FAILED = "failed"


class OmittedStep(WireMessage, frozen=True, kw_only=True):
    """A step during which the agent's sandbox or its sidecar died. A replay omits it. ``reason`` is the cause."""

    step: Count
    reason: str = ""


class Assignment(WireMessage, frozen=True, kw_only=True):
    """One attempt of one episode for one agent pod.

    Attributes:
        namespace: Namespace of the episode.
        episode: Name of the episode.
        episode_uid: UID of the episode, which identifies the assignment.
        attempt: The number of the attempt, from 1.
        epoch: The number of this assignment. The sidecar refuses numbers below the highest that it has received.
        epochs: This number with the operator's proof, for the header ``Dgym-Epoch`` of calls to the sidecar.
        sidecar_url: Address of the sidecar, such as ``http://10.0.0.7:8080``.
        prepare_token: Token of the role "prepare".
        drive_token: Token of the role "drive".
        task: A DebugTask; a ``configMapRef`` is already read into ``files``.
        agent: The Episode's ``spec.agent``; None with mode "prepare".
        tools: The Episode's ``spec.tools``; empty: the agent's default tools.
        sample: Number of the sample in its set; shifts the seed.
        arm: Name of the arm of its set; empty in a set without arms.
        remaining_seconds: Rest of the episode's deadline, which begins to run at the first reset.
        driver_idle_seconds: How long the pod waits for a call of its external driver; only with mode "prepare".
        mode: The task of the agent pod.
        replay_attempt: The attempt whose recorded steps are replayed first; 0: the episode starts from the beginning.
        poisoned_steps: The steps of the episode that are not replayed.
        earlier_price: Price of the model's tokens in all attempts before this assignment.
        image_digest: Digest of the image of the pod's sandbox, as the kubelet reports it; empty if unknown.
        traceparent: The root span of the episode's trace (W3C Trace Context); empty: the operator has no tracer.
    """

    namespace: str
    episode: str
    episode_uid: str
    attempt: Annotated[int, msgspec.Meta(ge=1)]
    epoch: Count
    epochs: Epochs
    pod_name: str = ""
    sidecar_url: str
    prepare_token: str
    drive_token: str
    task: dict[str, Any]
    agent: dict[str, Any] | None = None
    tools: tuple[str | ToolWithOptions, ...] = ()
    sample: Count = 0
    arm: str = ""
    remaining_seconds: float = 3600.0
    driver_idle_seconds: float = 3600.0
    mode: AssignmentMode = AssignmentMode.RUN
    replay_attempt: Count = 0
    poisoned_steps: tuple[OmittedStep, ...] = ()
    earlier_price: str | None = None
    image_digest: str = ""
    traceparent: str = ""

    def __repr__(self) -> str:
        """Leave out tokens, solutions and hidden files, because a log may contain the text."""
        return f"Assignment({self.namespace}/{self.episode}, attempt {self.attempt}, epoch {self.epoch})"


class AssignmentStatus(WireMessage, frozen=True, kw_only=True):
    """The status of one assignment.

    ``outcome`` is set once the assignment is finished or failed, ``message`` while its agent waits for the model, or
    its result for the store. ``outage``: it failed because the provider of its model is unavailable.
    ``active_seconds`` is how long the episode's deadline has run under this assignment: from the first reset to the end
    of the last step, without preparation and scoring. ``price`` is the price of the model's tokens in all
    attempts.
    """

    episode_uid: str
    attempt: int
    epoch: int
    state: AssignmentState
    steps: Count = 0
    active_seconds: Count = 0
    outcome: AttemptOutcome | None = None
    message: str = ""
    outage: bool = False
    price: str | None = None

    @property
    def reason(self) -> EndReason | None:
        """Why the assignment finished or failed."""
        return None if self.outcome is None else self.outcome.reason

    @property
    def cause(self) -> str:
        """What the assignment waits for, or why it finished or failed, for people."""
        return self.message or ("" if self.outcome is None else self.outcome.message)


class ModelOutage(WireMessage, frozen=True, kw_only=True):
    """A model whose circuit breaker in the agent pod is open.

    Attributes:
        model: Name of the model, as in ``llm.yaml``.
        message: The last failure.
        probe: Whether one episode may start with it now, as a probe.
    """

    model: str
    message: str = ""
    probe: bool = False


class AgentPodReport(WireMessage, frozen=True, kw_only=True):
    """The assignments of an agent pod. Each process has its own ``incarnation``.

    A draining agent pod does not accept other assignments.

    A finished or failed assignment stays in the report until the operator deletes it. ``outages`` are the models
    that only a probe may use. ``store_problem`` is why the results store does not answer; empty if it answers.
    """

    incarnation: str
    slots: Count
    draining: bool = False
    assignments: tuple[AssignmentStatus, ...] = ()
    outages: tuple[ModelOutage, ...] = ()
    store_problem: str = ""


class StoredFile(WireMessage, frozen=True, kw_only=True):
    """A file in the results store; ``path`` is the part of its path after ``RESULTS_PATH`` and a slash."""

    path: str
    bytes: Count


class ResultsList(WireMessage, frozen=True, kw_only=True):
    """All stored files of all attempts at the episodes of one name."""

    files: tuple[StoredFile, ...]
    kind: Literal["results"] = "results"


def _path(*names: str) -> tuple[CallParameter, ...]:
    return tuple(CallParameter(keyword=name, name=name, place="path") for name in names)


REPORT: Final = Call[None, AgentPodReport](
    method="GET",
    path="/v1/assignments",
    roles=(AgentPodRole.ASSIGN,),
    summary="Get the report: all assignments of the agent pod",
    response=AgentPodReport,
)
ASSIGN: Final = Call(
    method="PUT",
    path="/v1/assignments/{uid}",
    roles=(AgentPodRole.ASSIGN,),
    summary="Assign an episode to the agent pod",
    request=Assignment,
    limit=ASSIGNMENT_LIMIT,
    parameters=_path("uid"),
    response=Accepted,
    errors=(ErrorCode.SUPERSEDED, ErrorCode.BUSY),
)
WITHDRAW: Final = Call[None, Accepted](
    method="DELETE",
    path="/v1/assignments/{uid}",
    roles=(AgentPodRole.ASSIGN,),
    summary="Withdraw an episode that runs or has ended; an unknown episode counts as withdrawn",
    parameters=_path("uid"),
    response=Accepted,
)
LIST_RESULTS: Final = Call[None, ResultsList](
    method="GET",
    path=RESULTS_PATH + "/{namespace}/{episode}",
    roles=(AgentPodRole.RESULTS,),
    summary="List the stored files of all attempts at episodes of that name",
    parameters=_path("namespace", "episode"),
    response=ResultsList,
    errors=(ErrorCode.FORBIDDEN, ErrorCode.BUSY),
)
READ_RESULT: Final = Call[None, bytes](
    method="GET",
    path=RESULTS_PATH + "/{namespace}/{episode}/{uid}/{attempt}/{file}",
    roles=(AgentPodRole.RESULTS,),
    summary="Read result.json, trajectory.jsonl, patch.diff or episode.log, as it is stored",
    parameters=_path("namespace", "episode", "uid", "attempt", "file"),
    response=bytes,
    errors=(ErrorCode.FORBIDDEN, ErrorCode.NOT_FOUND, ErrorCode.BUSY),
)


POOL_KEY, RESULTS_DIGEST = "pool-key", "results-token-sha256"
"""Fields of the Secret of an agent pool. The digest is also a file of each of its agent pods."""


def pool_secret(name: str, pool: str) -> str:
    """The name of the Secret of an agent pool; ``name`` for the pool ``""``, which serves all namespaces."""
    return f"{name}-{pool}" if pool else name


HOUR_SECONDS = 3600
"""How long the operator uses a token. Agent pods also accept the tokens of the hours before and after."""


def make_pool_key(key: bytes, pool: str) -> str:
    """The key of an agent pool, by HMAC of the cluster's key. In an agent pod, only the init container has it."""
    return _derive(key, "agent pool", pool)


def make_agent_pod_key(pool_key: str, pod_uid: str) -> str:
    """The key of one agent pod, by HMAC of its pool's key."""
    return _derive(pool_key.encode(), "agent", pod_uid)


def make_assign_token(agent_pod_key: str, hour: int) -> str:
    """The operator's bearer token for one agent pod in one hour since 1970."""
    return _derive(agent_pod_key.encode(), "assign", str(hour))


def make_results_token(key: bytes, pool: str = "") -> str:
    """The bearer token for the results of a pool's agent pods, which have only its SHA-256."""
    return _derive(key, "agent", AgentPodRole.RESULTS.value, *([pool] if pool else []))


def _derive(key: bytes, *parts: str) -> str:
    return hmac.new(key, "\0".join(parts).encode(), hashlib.sha256).hexdigest()
