"""The inputs of decisions: observed state, and the constants of the policy."""

from datetime import datetime
from typing import Any, Literal

import msgspec

from dgym.api import TASK_UID_LABEL, AgentPodAssignment, AttemptEnding, EpisodeStatus, Stages
from dgym.wire.assignments import AssignmentMode, AssignmentState, AssignmentStatus
from dgym.wire.http import AttemptState, TerminatedResponse
from dgym_operator.controllers._children import Children
from dgym_operator.controllers._conditions import observed_generation
from dgym_operator.controllers._plan import CreateFailure
from dgym_operator.objects import EpisodeSetView, EpisodeView, Pod, SandboxPoolView, TaskView

SIDECAR_PORT = 8080
_CLOSING = frozenset({AssignmentState.CLOSING, AssignmentState.STORING, AssignmentState.STORE_UNAVAILABLE})

FrozenTasks = tuple[tuple[str, str], ...]
"""Name and UID of each task, in the order in which indexes are mapped to tasks."""


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """Constants of the operator. Tests use shorter times.

    Attributes:
        lease_seconds: Time without a renewal of the leader's Lease after which another replica takes over.
        lease_renew_seconds: Time without a successful renewal after which the leader stops writing.
        lease_retry_seconds: Interval between two attempts to acquire or renew the Lease.
        namespace_lease_seconds: Time without a renewal of a namespace's Lease ``dgym-owner`` after which another
            installation may take the namespace.
        workers: Number of objects that are reconciled at the same time.
        agent_pod_report_seconds: Interval between two polls of an agent pod.
        agent_pod_silence_seconds: Time without an answer after which an agent pod is lost. Its episodes are reassigned.
        backoff_seconds: Back-off before the second attempt. It doubles with every failure of the sandbox.
        backoff_limit_seconds: Longest back-off.
        shown_after_seconds: How long a state must last before it is written to status as progress.
        child_shown_after_seconds: How long a child of a set must wait for a slot before that is written to status.
        steps_seconds: Interval between two writes of an attempt's number of steps.
        repeat_seconds: Interval between two requests to a sidecar, and between two checks for an awaited report.
        ask_seconds: How long a sidecar may take to answer before its pod is deleted.
        report_seconds: How long a new report of an agent pod may take to arrive.
        ending_seconds: How long a sandbox pod may take to terminate after its agent pod reported ``finished``.
        release_seconds: How long an agent pod may take to observe that its episode was cancelled and start to store it.
        recover_seconds: How long agent pods may take to look for a stored outcome of a lost attempt.
        terminating_seconds: How long a pod may exist past its grace period before its node counts as lost.
        preparation_seconds: Time allowed from the assignment to the first reset, and around the tests at the end.
        backstop_seconds: Margin on top of all clocks of the sidecar before the operator ends the attempt itself.
        slow_start_seconds: How long a scheduled pod that is not ready keeps its slot reserved.
        create_retry_seconds: Longest back-off between two tries to create a pod. It is short because a quota may get
            room at any time.
        agent_pod_losses: Number of agent pods that may be lost during one attempt without ending it.
        model_failures: Number of failures of the model in one attempt after which it is tried again.
        model_outages: Number of consecutive tries of one episode that may fail because of an outage of the model.
        settle_seconds: Minimum age of the newest task before the tasks that a selector matches are frozen.
        creates_per_round: Maximum number of children that a set creates in one round.
        pool_creates_per_round: Maximum number of pods that a sandbox pool creates in one round.
        pool_start_timeout_seconds: How long a pod of a sandbox pool may take to become ready.
    """

    lease_seconds: float = 15.0
    lease_renew_seconds: float = 10.0
    lease_retry_seconds: float = 2.0
    namespace_lease_seconds: float = 120.0
    workers: int = 32
    agent_pod_report_seconds: float = 5.0
    agent_pod_silence_seconds: float = 30.0
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
    agent_pod_losses: int = 10
    model_failures: int = 3
    model_outages: int = 240
    settle_seconds: float = 5.0
    creates_per_round: int = 200
    pool_creates_per_round: int = 10
    pool_start_timeout_seconds: float = 900.0


def backoff(base: float, limit: float, failures: int) -> float:
    """Return the seconds to wait after this number of failures: exponential, at most ``limit``."""
    return min(limit, base * 2.0 ** min(max(failures, 1) - 1, 32))


class TaskState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the episode's task: ``missing`` in the cluster, ``found`` in it, or ``inline`` in the Episode."""

    state: Literal["missing", "found", "inline"]
    uid: str | None = None
    entrypoint_timeout_seconds: int = 300


class AgentPodView(msgspec.Struct, frozen=True, kw_only=True):
    """The observed state of the agent pod that ``status.assignment`` names.

    Attributes:
        status: The episode's status in the last report of the agent pod. None if the report does not contain the
            episode or no report has arrived yet.
        since: When ``status.state`` was first observed.
        requested: When the last report was requested.
        lost_since: When the agent pod was lost: it was silent for too long, or it is gone. None if it is not lost.
        lost: A message for users with the name of the lost agent pod and the evidence of its loss.
        stages: Observed times of the first and the last step.
        active_seconds: How long the episode's deadline clock has run under this assignment, as last reported. Used
            when the sidecar can no longer be reached.
    """

    status: AssignmentStatus | None = None
    since: datetime | None = None
    requested: datetime | None = None
    lost_since: datetime | None = None
    lost: str = ""
    stages: Stages = Stages()
    active_seconds: int = 0


class SidecarView(msgspec.Struct, frozen=True, kw_only=True):
    """The answers of the attempt's sidecar. The sidecar signs its answers.

    Attributes:
        terminated: Why the sandbox container terminated. None if the sidecar was not called or has not observed it yet.
        cancelled_since: When the cancelled episode was first observed to have ended.
        state: The sidecar's clocks at the time ``requested``.
        requested: When ``state`` was requested.
        expired_since: When the deadline was first observed to be used up, or the tests to be running.
        idle_since: When the deadline clock was first observed to be paused, after it had started.
        bound: True if the sidecar of a claimed pod has answered the call that binds it to its attempt.
    """

    terminated: TerminatedResponse | None = None
    cancelled_since: datetime | None = None
    state: AttemptState | None = None
    requested: datetime | None = None
    expired_since: datetime | None = None
    idle_since: datetime | None = None
    bound: bool = False

    @property
    def has_lost_sandbox(self) -> bool:
        """True if the sandbox terminated unexpectedly, so that the attempt cannot be scored."""
        return self.terminated is not None and not self.terminated.expected

    @property
    def poisoned_step(self) -> int | None:
        """Number of the step during which the sandbox terminated."""
        return self.terminated.poisoned_step if self.terminated is not None else None

    def after_bind(self) -> "SidecarView":
        """Return a copy that includes the answer to ``bind``."""
        return msgspec.structs.replace(self, bound=True)

    def after_cancel(self, requested: datetime) -> "SidecarView":
        """Return a copy that includes the answer to ``cancel``: the episode has ended."""
        return msgspec.structs.replace(self, cancelled_since=self.cancelled_since or requested)

    def after_terminated(self, answer: TerminatedResponse) -> "SidecarView":
        """Return a copy that includes the answer to ``terminated``, unless the sidecar has not observed the end yet."""
        known = answer.expected or answer.known or answer.poisoned_step is not None
        return msgspec.structs.replace(self, terminated=answer) if known else self

    def after_state(self, answer: AttemptState, requested: datetime) -> "SidecarView":
        """Return a copy that includes the answer to ``state``: the clocks."""
        over = answer.ending or (answer.remaining_seconds is not None and answer.remaining_seconds <= 0)
        idles = bool(answer.elapsed_seconds) and not answer.running and not over
        return msgspec.structs.replace(
            self,
            state=answer,
            requested=requested,
            expired_since=(self.expired_since or requested) if over and not answer.ended else None,
            idle_since=(self.idle_since or requested) if idles else None,
        )


class EpisodeInput(msgspec.Struct, frozen=True, kw_only=True):
    """One Episode and the observed state that its decision reads.

    Attributes:
        episode: The Episode.
        pods: All pods that the operator created for this Episode.
        unusable_pods: Pods of this Episode that have a key without a valid proof. They are deleted, and the rest of
            their state is ignored.
        task: The state of the task.
        may_create: True if the dispatcher has granted the pod of the next attempt.
        held_by: A message for users: why the request for an agent pod or a sandbox pod is not granted. Empty if not
            known yet.
        quota_full: True if ``held_by`` names the namespace's ResourceQuota.
        quota_room_at: When a full quota last had room for a pod of the namespace.
        create_failure: Why the pod of the next attempt could not be created. None if creation has not failed.
        agent_pod: The assigned agent pod. None before its first report, for instance after the operator has started.
        sidecar: The answers of the attempt's sidecar.
        absent: Names of pods for which the API server answered 404.
        disrupted_attempt: The attempt whose pod was observed to be disrupted. The pod may be gone since.
        owned_by_set: True if an EpisodeSet controls the Episode.
        counted: True if that set has added the Episode to its completed indexes.
        key_id: Name of the cluster's key, empty if unknown. The sidecar of a pod that was created with another key
            refuses the operator's tokens.
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
    agent_pod: AgentPodView | None = None
    sidecar: SidecarView = SidecarView()
    absent: frozenset[str] = frozenset()
    disrupted_attempt: int = 0
    owned_by_set: bool = False
    counted: bool = False
    key_id: str = ""
    policy: Policy = Policy()

    @property
    def attempt(self) -> int:
        """Number of the current attempt, or of the next one if no attempt is running."""
        return current_attempt(self.episode.status)

    @property
    def pod_name(self) -> str:
        """Name of the pod of ``attempt``."""
        return self.episode.status.pod_name or f"{self.episode.metadata.name}-{self.attempt}"

    @property
    def pod(self) -> Pod | None:
        """The pod of ``attempt``. Once the attempt is assigned, only the pod with the UID in status."""
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
        """True if the pod's sidecar serves this attempt. The sidecar of a claimed pod must first answer ``bind``."""
        return self.pod is None or not self.pod.metadata.annotations.claimed or self.sidecar.bound

    @property
    def assignment(self) -> AgentPodAssignment | None:
        """The assignment of the current attempt to an agent pod."""
        return self.episode.status.assignment

    @property
    def ending(self) -> AttemptEnding | None:
        """Why the attempt is ending. None until that is decided or observed."""
        return self.episode.status.ending

    @property
    def is_recovering(self) -> bool:
        """True if the assigned agent pod only looks for a stored outcome."""
        return self.assignment is not None and self.assignment.mode == AssignmentMode.RECOVER.value

    @property
    def next_epoch(self) -> int:
        """The epoch of the next assignment. It increases over all attempts."""
        return self.episode.status.epoch + 1

    @property
    def report(self) -> AssignmentStatus | None:
        """The agent pod's report about the current assignment. Reports about earlier assignments are ignored."""
        if self.agent_pod is None or self.agent_pod.lost_since is not None or self.assignment is None:
            return None
        status = self.agent_pod.status
        current = status is not None and (status.attempt, status.epoch) == (self.attempt, self.assignment.epoch)
        return status if current else None

    @property
    def is_closing(self) -> bool:
        """True if the agent pod is closing the episode or storing its outcome. No deadline applies to that."""
        return self.report is not None and self.report.state in _CLOSING

    @property
    def awaits_report(self) -> bool:
        """True if the assigned agent pod has not reported yet.

        The attempt must not be ended meanwhile, because the agent pod may hold its outcome. The state is temporary: an
        agent pod that stays silent is lost.
        """
        return self.assignment is not None and self.agent_pod is None

    @property
    def expected_task_uid(self) -> str | None:
        """UID of the task that the episode started with, or for which its set created it."""
        return self.episode.status.task_uid or self.episode.metadata.labels.get(TASK_UID_LABEL)

    def status_with(self, **changes: Any) -> EpisodeStatus:
        """Return the Episode's status with these changes and the observed generation."""
        status = self.episode.status
        generation = observed_generation(status.observed_generation, self.episode.metadata.generation)
        return msgspec.structs.replace(status, **changes, observed_generation=generation)


def current_attempt(status: EpisodeStatus) -> int:
    """Return the number of the current attempt, or of the next one if no attempt is running."""
    return status.attempt if status.pod_name is not None else status.attempt + 1


def attempt_of(pod: Pod) -> int:
    """Return the number of the pod's attempt, or 0 if it has none. A pod without attempt is only ever deleted."""
    text = pod.metadata.labels.attempt
    return int(text) if text.isdecimal() else 0


def sidecar_url(pod: Pod) -> str:
    """Return the URL of the pod's sidecar. Empty while the pod has no address."""
    return pod.url(SIDECAR_PORT)


class SandboxPoolInput(msgspec.Struct, frozen=True, kw_only=True):
    """One SandboxPool and the observed state that its decision reads.

    Attributes:
        pool: The sandbox pool.
        pods: Its unclaimed pods that the operator created.
        unusable_pods: Pods that have the pool as their owner and a key without a valid proof. They are deleted.
        template_hash: The template hash that its pods must have. Empty if a pod cannot be rendered.
        refused: Why a pod cannot be rendered, or why the API server refused the last creation. Otherwise empty.
        claims: Times of the last claims.
        misses: Times at which an attempt that could have claimed a pod found none.
        claimed: Number of claims: those of this leader, plus the number in the pool's status before its first claim.
        failures: Number of consecutive pods that failed before they were ready.
        failed_at: When the last of these pods failed.
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
"""Keys of ``Waits.counts`` for episodes that wait for the end of an outage of the model or of the results store."""


class Waits(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of a set's children that are neither finished nor suspended.

    Attributes:
        active: Number of children that have a pod.
        total: Number of children that are not assigned to an agent pod.
        counts: Causes of waiting, each with the number of these children.
        message: A message for users that explains the wait.
    """

    active: int = 0
    total: int = 0
    counts: tuple[tuple[str, int], ...] = ()
    message: str = ""


class EpisodeSetInput(msgspec.Struct, frozen=True, kw_only=True):
    """One EpisodeSet and the observed state that its decision reads.

    Attributes:
        episode_set: The set.
        frozen: The set's list of tasks (``decode_tasks`` of the ConfigMap that the set controls). None until frozen.
        list_absent: True if the API server answered 404 for the list of tasks.
        tasks: The DebugTasks of the namespace, at least those that the set names or selects. Not used once frozen.
        children: All Episodes whose controller is this set (by its UID).
        waits: Number of children that have a pod, and the causes for which the others wait.
        refused: Why the API server refused the last child. Cleared when a child is created.
        creating: Indexes of children whose creation was requested and that are not in ``children`` yet.
        pool: The SandboxPool whose controller is this set.
        pool_changed_at: When this leader last changed the pool.
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
