"""The protocol between the operator and the agents: assignments and their status. Pure.

``PUT`` and ``DELETE`` are idempotent and ``GET`` reports every assignment, so either side may restart at any time and
a lost message loses nothing.
"""

import hashlib
import hmac
from enum import StrEnum
from typing import Annotated, Any, Literal

import msgspec

from dgym.wire.http import Count, Epochs, Message, NamedTool
from dgym.wire.messages import EndReason, Outcome

ASSIGNMENTS_PATH = "/v1/assignments"
"""``GET`` the report; ``PUT`` and ``DELETE`` below it, followed by a slash and the episode's UID."""
RESULTS_PATH = "/v1/results"
"""``GET`` below it, of agent pods with their token and of the operator with a user's:
``/<namespace>/<episode>/<uid>/<attempt>/<file>``, or ``/<namespace>/<episode>`` for the list."""
RESULTS_AUDIENCE = "results.dgym.dev"
"""Audience of tokens with which results are read from the operator; the API server accepts none of them."""
ASSIGNMENT_LIMIT = 8 * 1024**2
"""Bytes of one assignment, which holds the task with its files."""


class AgentRole(StrEnum):
    """The caller's role: the operator, or a reader of results."""

    ASSIGN = "assign"
    RESULTS = "results"


class AssignmentMode(StrEnum):
    """The agent's task: run the episode, prepare it for an external driver, or recover its stored result."""

    RUN = "run"
    PREPARE = "prepare"
    RECOVER = "recover"


class AssignmentState(StrEnum):
    """The phase of an assignment.

    ``finished``: stored and released, or only reported where both store and pod are gone; ``failed``: another try may
    help.
    """

    PREPARING = "preparing"
    RUNNING = "running"
    CLOSING = "closing"
    STORING = "storing"
    STORE_UNAVAILABLE = "storeUnavailable"
    FINISHED = "finished"
    FAILED = "failed"


class PoisonedStep(Message, frozen=True, kw_only=True):
    """A step under which the agent's sandbox, or its sidecar, died; a replay leaves it out. ``reason`` is the cause."""

    step: Count
    reason: str = ""


class Assignment(Message, frozen=True, kw_only=True):
    """One attempt of one episode for one agent.

    Attributes:
        namespace: Of the episode.
        episode: Its name.
        episode_uid: Its UID; names the assignment.
        attempt: The number of the attempt, from 1.
        epoch: The number of this assignment; the sidecar refuses lower ones than it has seen.
        epochs: That number with the operator's proof, as calls to the sidecar carry it.
        sidecar_url: Where the pod's sidecar listens, such as ``http://10.0.0.7:8080``.
        prepare_token: For the calls of the role "prepare".
        drive_token: For the calls of the role "drive".
        task: A DebugTask; a ``configMapRef`` is already read into ``files``.
        agent: The Episode's ``spec.agent``; None with mode "prepare".
        tools: The Episode's ``spec.tools``; empty: the agent's default ones.
        sample: Number of the sample in its set; shifts the seed.
        arm: Name of the arm of its set; empty in a set without arms.
        remaining_seconds: What is left of the episode's deadline, which begins to run at the first reset.
        driver_idle_seconds: How long the pod waits for a call of its external driver; with mode "prepare" alone.
        mode: What the agent is to do.
        replay_attempt: The attempt whose recorded steps are replayed into this pod first; 0: the episode begins afresh.
        poisoned_steps: The episode's steps that no replay runs again.
        earlier_price: Price of the model's tokens in all attempts before this assignment.
        image_digest: Digest of the image of the pod's sandbox, as the kubelet reports it; empty: it is not known.
        traceparent: The root span of the episode's trace, as the W3C's header names it; empty: the operator has none.
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
    tools: tuple[str | NamedTool, ...] = ()
    sample: Count = 0
    arm: str = ""
    remaining_seconds: float = 3600.0
    driver_idle_seconds: float = 3600.0
    mode: AssignmentMode = AssignmentMode.RUN
    replay_attempt: Count = 0
    poisoned_steps: tuple[PoisonedStep, ...] = ()
    earlier_price: str | None = None
    image_digest: str = ""
    traceparent: str = ""

    def __repr__(self) -> str:
        """Leave out tokens, solutions and hidden files, because a log may hold the text."""
        return f"Assignment({self.namespace}/{self.episode}, attempt {self.attempt}, epoch {self.epoch})"


class AssignmentStatus(Message, frozen=True, kw_only=True):
    """The status of one assignment.

    ``reason`` and ``outcome`` are set once the assignment is finished or failed, ``message`` also while its agent waits
    for the model, or its result for the store. ``outage``: it failed because the provider of its model is out.
    ``active_seconds`` is how long the episode's deadline has run under this assignment: from the first reset to the end
    of the last step, without preparation and scoring. ``price`` is that of the model's tokens in all attempts.
    """

    episode_uid: str
    attempt: int
    epoch: int
    state: AssignmentState
    steps: Count = 0
    active_seconds: Count = 0
    reason: EndReason | None = None
    outcome: Outcome | None = None
    message: str = ""
    outage: bool = False
    price: str | None = None


class ModelOutage(Message, frozen=True, kw_only=True):
    """A model that is out: its circuit breaker in the agent pod is open.

    Attributes:
        model: Name of the model, as in ``llm.yaml``.
        message: The last failure.
        probe: Whether one episode may begin with it now, as a probe.
    """

    model: str
    message: str = ""
    probe: bool = False


class AgentReport(Message, frozen=True, kw_only=True):
    """An agent's assignments. Each process has its own ``incarnation``; a draining agent accepts no new assignment.

    A finished or failed assignment stays in the report until the operator deletes it. ``outages`` are the models with
    which no episode begins but a probe. ``store_problem`` is why the results store does not answer; empty: it does.
    """

    incarnation: str
    slots: Count
    draining: bool = False
    assignments: tuple[AssignmentStatus, ...] = ()
    outages: tuple[ModelOutage, ...] = ()
    store_problem: str = ""


class StoredFile(Message, frozen=True, kw_only=True):
    """A file in the results store; ``path`` is what stands behind ``RESULTS_PATH`` and a slash."""

    path: str
    bytes: Count


class ResultsList(Message, frozen=True, kw_only=True):
    """Every stored file of every attempt of the episodes of one name."""

    files: tuple[StoredFile, ...]
    kind: Literal["results"] = "results"


POOL_KEY, RESULTS_DIGEST = "pool-key", "results-token-sha256"
"""Fields of the Secret of an agent pool; the digest is also a file of each of its agents."""


def pool_secret(name: str, pool: str) -> str:
    """The name of a pool's Secret; that of the one pool that serves all namespaces is ``name``."""
    return f"{name}-{pool}" if pool else name


HOUR_SECONDS = 3600
"""For so long one token of the operator's is sent; an agent takes those of the hours before and after as well."""


def make_pool_key(key: bytes, pool: str) -> str:
    """The key of an agent pool, by HMAC of the cluster's key. No agent's process has it, only what starts its pods."""
    return _derive(key, "agent pool", pool)


def make_agent_key(pool_key: str, pod_uid: str) -> str:
    """The key of one agent pod, by HMAC of its pool's key."""
    return _derive(pool_key.encode(), "agent", pod_uid)


def make_assign_token(agent_key: str, hour: int) -> str:
    """The operator's bearer token for one agent pod in one hour since 1970."""
    return _derive(agent_key.encode(), "assign", str(hour))


def make_results_token(key: bytes, pool: str = "") -> str:
    """The bearer token that reads the results of a pool's agents, which know its SHA-256 alone."""
    return _derive(key, "agent", AgentRole.RESULTS.value, *([pool] if pool else []))


def _derive(key: bytes, *parts: str) -> str:
    return hmac.new(key, "\0".join(parts).encode(), hashlib.sha256).hexdigest()
