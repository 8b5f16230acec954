"""The inputs of decisions: observed state, and the constants of the policy."""

from datetime import datetime
from typing import Any, Literal

import msgspec

from dgym.api import TASK_UID_LABEL, AgentAssignment, AttemptEnding, EndCause, EpisodeStatus, Stages
from dgym.wire.assignments import AssignmentMode, AssignmentState, AssignmentStatus
from dgym.wire.http import AttemptState, VerifyResponse
from dgym_operator.controllers.children import Children
from dgym_operator.controllers.conditions import observed_generation
from dgym_operator.controllers.plan import CreateFailure
from dgym_operator.objects import EpisodeSetView, EpisodeView, Pod, SandboxPoolView, TaskView

SIDECAR_PORT = 8080
_CLOSING = frozenset({AssignmentState.CLOSING, AssignmentState.STORING, AssignmentState.STORE_UNAVAILABLE})

FrozenTasks = tuple[tuple[str, str], ...]
"""Names and UIDs of tasks, in the order that gives every index its task."""


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """Constants of all decisions; tests use shorter ones.

    Attributes:
        backoff_seconds: Before the second attempt; doubles with every failure of the sandbox.
        backoff_limit_seconds: Longest back-off.
        shown_after_seconds: How long a state must last before it is worth a write of progress.
        child_shown_after_seconds: How long a child of a set must wait for a slot before that is worth one.
        steps_seconds: Between two writes of an attempt's number of steps.
        repeat_seconds: Between two requests to a sidecar, and between two checks of a report that is awaited.
        ask_seconds: How long a sidecar may take to answer before its pod is deleted.
        report_seconds: How long a fresh report of an agent may take to arrive.
        ending_seconds: How long a pod may take from its agent's state ``finished`` to its own end.
        release_seconds: How long an agent may take to notice that its episode was cancelled, and to begin to store it.
        recover_seconds: How long agents may take to look for a stored verdict of an attempt that was lost.
        terminating_seconds: How long a pod may exist past its grace period; then its node is lost.
        preparation_seconds: From the assignment to the first reset, and around the tests at the end.
        backstop_seconds: Above all clocks of the sidecar, before the operator ends the attempt itself.
        slow_start_seconds: How long after its scheduling a pod that is not ready keeps a slot reserved.
        create_retry_seconds: Longest back-off of creating one pod; room in a quota comes at any time.
        agent_losses: How many lost agents one pod outlives.
        agent_failures: How often a model may fail in one pod and be tried again.
        model_outages: How often in a row an episode's own tries may find it out, back-offs and outages in between.
        settle_seconds: How old the newest task must be before a selector's choice is frozen.
        creates_per_round: Children that a set creates in one round.
        pool_creates_per_round: Pods that a pool creates in one round.
        pool_start_timeout_seconds: How long a pod of a pool may take until it is ready.
    """

    backoff_seconds: float = 10.0
    backoff_limit_seconds: float = 360.0
    shown_after_seconds: float = 5.0
    child_shown_after_seconds: float = 30.0
    steps_seconds: float = 30.0
    repeat_seconds: float = 5.0
    ask_seconds: float = 10.0
    report_seconds: float = 10.0
    ending_seconds: float = 30.0
    release_seconds: float = 120.0
    recover_seconds: float = 900.0
    terminating_seconds: float = 30.0
    preparation_seconds: float = 600.0
    backstop_seconds: float = 60.0
    slow_start_seconds: float = 120.0
    create_retry_seconds: float = 60.0
    agent_losses: int = 10
    agent_failures: int = 3
    model_outages: int = 240
    settle_seconds: float = 5.0
    creates_per_round: int = 200
    pool_creates_per_round: int = 10
    pool_start_timeout_seconds: float = 900.0


def backoff(base: float, limit: float, failures: int) -> float:
    """Seconds to wait after that many failures: doubling, and bounded."""
    return min(limit, base * 2.0 ** min(max(failures, 1) - 1, 32))


class TaskState(msgspec.Struct, frozen=True, kw_only=True):
    """The episode's task: ``missing`` from the cluster, ``found`` there, or ``inline`` in the Episode."""

    state: Literal["missing", "found", "inline"]
    uid: str | None = None
    entrypoint_timeout_seconds: int = 300


class AgentView(msgspec.Struct, frozen=True, kw_only=True):
    """The observed state of the agent that ``status.assignment`` names.

    Attributes:
        status: The episode's status in the agent's last report; None: not in it, or there was no report yet.
        since: When ``status.state`` was first observed.
        asked: When the last report was requested.
        lost_since: Since when the agent is silent for too long or its pod is gone; None: the agent is not lost.
        lost: Which agent pod is lost, and by what evidence, for people.
        stages: Times of the first and the last step, as observed.
        active_seconds: How long the episode's deadline has run under this assignment, as the agent last reported; for
            when its sidecar cannot be asked any more.
    """

    status: AssignmentStatus | None = None
    since: datetime | None = None
    asked: datetime | None = None
    lost_since: datetime | None = None
    lost: str = ""
    stages: Stages = Stages()
    active_seconds: int = 0


class SidecarView(msgspec.Struct, frozen=True, kw_only=True):
    """What the sidecar of the attempt has answered; it signs its answers.

    Attributes:
        verified: Why the sandbox's container has ended; None: it was not asked, or did not know yet.
        cancelled_since: When the episode, which was cancelled, was first observed to have ended.
        state: Its clocks, as they were ``asked``.
        asked: When ``state`` was requested.
        expired_since: Since when nothing is left of its deadline, or the tests run.
        idle_since: Since when the deadline stands still, though it has begun to run.
        bound: Whether it has answered the call that binds the sidecar of a claimed pod to its attempt.
    """

    verified: VerifyResponse | None = None
    cancelled_since: datetime | None = None
    state: AttemptState | None = None
    asked: datetime | None = None
    expired_since: datetime | None = None
    idle_since: datetime | None = None
    bound: bool = False

    @property
    def has_lost_sandbox(self) -> bool:
        """Whether its sandbox has ended by itself, so that it will never have a verdict."""
        return self.verified is not None and not self.verified.expected

    @property
    def poisoned_step(self) -> int | None:
        """The step under which its sandbox has ended."""
        return self.verified.poisoned_step if self.verified is not None else None

    def after_bind(self) -> "SidecarView":
        """With the answer to the call that binds it."""
        return msgspec.structs.replace(self, bound=True)

    def after_cancel(self, asked: datetime) -> "SidecarView":
        """With the answer that the cancelled episode has ended."""
        return msgspec.structs.replace(self, cancelled_since=self.cancelled_since or asked)

    def after_verify(self, answer: VerifyResponse) -> "SidecarView":
        """With an answer about the sandbox's end."""
        known = answer.expected or answer.known or answer.poisoned_step is not None
        return msgspec.structs.replace(self, verified=answer) if known else self

    def after_state(self, answer: AttemptState, asked: datetime) -> "SidecarView":
        """With the clocks."""
        over = answer.ending or (answer.remaining_seconds is not None and answer.remaining_seconds <= 0)
        idles = bool(answer.elapsed_seconds) and not answer.running and not over
        return msgspec.structs.replace(
            self,
            state=answer,
            asked=asked,
            expired_since=(self.expired_since or asked) if over and not answer.ended else None,
            idle_since=(self.idle_since or asked) if idles else None,
        )


class EpisodeInput(msgspec.Struct, frozen=True, kw_only=True):
    """One Episode and all observed state that bears on it.

    Attributes:
        episode: The Episode.
        pods: All pods that the operator has made for this Episode.
        unusable_pods: Pods of this Episode with a key and no proof of it; they are deleted, and nothing else is
            believed of them.
        task: Whether there is a task.
        may_create: Whether the agents' free slots and the head start allow one more sandbox.
        held_by: Why the request for an agent or a pod is not granted, for people; empty: not known yet.
        quota_full: Whether ``held_by`` names the namespace's ResourceQuota.
        quota_room_at: When a quota that is full has last had room for a pod of the namespace.
        create_failure: Why the next attempt's pod could not be created, if that was tried.
        agent: The assigned agent; None before its first report, as after a start of the operator.
        sidecar: What the sidecar of the attempt has answered.
        absent: Names of pods that the API server has answered 404 for.
        disrupted_attempt: The attempt whose pod a watch showed to be disrupted, whether or not that pod still exists.
        owned_by_set: Whether an EpisodeSet controls the Episode.
        counted: Whether that set has written the Episode into its completed indexes.
        key_id: Name of the cluster's key, empty if unknown; a pod made with another key refuses the operator's tokens.
        policy: Constants.
    """

    episode: EpisodeView
    pods: tuple[Pod, ...] = ()
    unusable_pods: tuple[Pod, ...] = ()
    task: TaskState
    may_create: bool = True
    held_by: str = ""
    quota_full: bool = False
    quota_room_at: datetime | None = None
    create_failure: CreateFailure | None = None
    agent: AgentView | None = None
    sidecar: SidecarView = SidecarView()
    absent: frozenset[str] = frozenset()
    disrupted_attempt: int = 0
    owned_by_set: bool = False
    counted: bool = False
    key_id: str = ""
    policy: Policy = Policy()

    @property
    def attempt(self) -> int:
        """The current attempt, or else the next one."""
        return current_attempt(self.episode.status)

    @property
    def pod_name(self) -> str:
        """Name of the pod of ``attempt``."""
        return self.episode.status.pod_name or f"{self.episode.metadata.name}-{self.attempt}"

    @property
    def pod(self) -> Pod | None:
        """The pod of ``attempt``; once that is assigned, exactly the pod in status."""
        reference = self.episode.status.pod_ref
        return next(
            (
                pod
                for pod in self.pods
                if attempt_of(pod) == self.attempt and (reference is None or pod.metadata.uid == reference.uid)
            ),
            None,
        )

    @property
    def is_bound(self) -> bool:
        """Whether the pod's sidecar serves this attempt; that of a claimed pod does once it has answered ``bind``."""
        return self.pod is None or not self.pod.metadata.annotations.claimed or self.sidecar.bound

    @property
    def assignment(self) -> AgentAssignment | None:
        """The assignment of the current attempt to an agent."""
        return self.episode.status.assignment

    @property
    def ending(self) -> AttemptEnding | None:
        """How the attempt ends, once that is decided or observed; what an older operator has decided included."""
        status = self.episode.status
        if status.ending is not None or status.termination is None:
            return status.ending
        decided = status.termination
        return AttemptEnding(cause=EndCause.INFRASTRUCTURE.value, reason=decided.reason, message=decided.message)

    @property
    def is_recovering(self) -> bool:
        """Whether the assigned agent is to look for a stored verdict, and no more."""
        return self.assignment is not None and self.assignment.mode == AssignmentMode.RECOVER.value

    @property
    def next_epoch(self) -> int:
        """The epoch of the next assignment; it grows over all attempts."""
        status = self.episode.status
        return max(status.epoch, status.assignment.epoch if status.assignment is not None else 0) + 1

    @property
    def report(self) -> AssignmentStatus | None:
        """The assigned agent's report of this very assignment; reports of older ones do not count."""
        if self.agent is None or self.agent.lost_since is not None or self.assignment is None:
            return None
        status = self.agent.status
        current = status is not None and (status.attempt, status.epoch) == (self.attempt, self.assignment.epoch)
        return status if current else None

    @property
    def is_closing(self) -> bool:
        """Whether the agent is closing the episode or storing its verdict, which is awaited past every clock."""
        return self.report is not None and self.report.state in _CLOSING

    @property
    def awaits_report(self) -> bool:
        """Whether the assigned agent has not reported yet: the verdict may be there, so nothing may be ended.

        The state passes: an agent that stays silent is lost.
        """
        return self.assignment is not None and self.agent is None

    @property
    def expected_task_uid(self) -> str | None:
        """UID of the task that the episode began with, or that its set made it for."""
        return self.episode.status.task_uid or self.episode.metadata.labels.get(TASK_UID_LABEL)

    def status_with(self, **changes: Any) -> EpisodeStatus:
        """The Episode's status with these fields changed, for the generation that was observed."""
        status = self.episode.status
        generation = observed_generation(status.observed_generation, self.episode.metadata.generation)
        return msgspec.structs.replace(status, **changes, observed_generation=generation)


def current_attempt(status: EpisodeStatus) -> int:
    """The current attempt, or else the next one."""
    return status.attempt if status.pod_name is not None else status.attempt + 1


def attempt_of(pod: Pod) -> int:
    """Number of the pod's attempt; 0: of none, so that nothing is decided by the pod but its deletion."""
    text = pod.metadata.labels.attempt
    return int(text) if text.isdecimal() else 0


def sidecar_url(pod: Pod) -> str:
    """URL of the pod's sidecar; empty while the pod has no address."""
    return pod.url(SIDECAR_PORT)


class SandboxPoolInput(msgspec.Struct, frozen=True, kw_only=True):
    """One SandboxPool and all observed state that bears on it.

    Attributes:
        pool: The pool.
        pods: Its unclaimed pods that the operator has made.
        unusable_pods: Pods that name the pool as their owner and have a key without its proof; they are deleted.
        template_hash: The hash that its pods must have; empty: no pod can be rendered.
        refused: Why a pod cannot be rendered, or why the last creation was refused; empty: neither is so.
        claims: Times of the last claims.
        misses: When attempts that could have claimed a pod found none.
        claimed: Claims that are known to this leader: its own, and those that the pool's status had before the first.
        failures: How many of its pods in a row have failed before they were ready.
        failed_at: When the last of them did.
        policy: Constants.
    """

    pool: SandboxPoolView
    pods: tuple[Pod, ...] = ()
    unusable_pods: tuple[Pod, ...] = ()
    template_hash: str = ""
    refused: str = ""
    claims: tuple[datetime, ...] = ()
    misses: tuple[datetime, ...] = ()
    claimed: int = 0
    failures: int = 0
    failed_at: datetime | None = None
    policy: Policy = Policy()


MODEL, STORE = "model", "store"
"""What episodes wait for during an outage of the model, or of the results store."""


class Waits(msgspec.Struct, frozen=True, kw_only=True):
    """How the unfinished children of a set stand that are not suspended.

    Attributes:
        active: How many have a pod.
        total: How many no agent pod has yet.
        counts: How many of these wait for what.
        message: Why, for people.
    """

    active: int = 0
    total: int = 0
    counts: tuple[tuple[str, int], ...] = ()
    message: str = ""


class EpisodeSetInput(msgspec.Struct, frozen=True, kw_only=True):
    """One EpisodeSet and all observed state that bears on it.

    Attributes:
        episode_set: The set.
        frozen: The set's list of tasks, once frozen (``decode_tasks`` of the ConfigMap that the set controls).
        list_absent: Whether the API server has answered 404 for the list of tasks.
        tasks: The DebugTasks of the namespace, at least those that the set names or selects; unused once frozen.
        children: All Episodes whose controller is this set (by its UID).
        waits: How many of the children have a pod, and what the others wait for.
        refused: Why the API server refused the last child, until one is created.
        creating: Indexes of children whose creation was requested and that are not among ``children`` yet.
        pool: The SandboxPool whose controller is this set.
        pool_changed_at: When this leader has last changed it.
        policy: Constants.
    """

    episode_set: EpisodeSetView
    frozen: FrozenTasks | None = None
    list_absent: bool = False
    tasks: tuple[TaskView, ...] = ()
    children: Children = msgspec.field(default_factory=Children)
    waits: Waits = Waits()
    refused: str = ""
    creating: frozenset[int] = frozenset()
    pool: SandboxPoolView | None = None
    pool_changed_at: datetime | None = None
    policy: Policy = Policy()
