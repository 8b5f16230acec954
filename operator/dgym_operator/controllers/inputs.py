"""The observed state that decisions are made from, and the constants they are made with."""

from datetime import datetime
from typing import Literal

import msgspec

from dgym.api import Assignment, Stages
from dgym.api.labels import TASK_UID
from dgym.wire.assignments import AssignmentState, AssignmentStatus
from dgym_operator.controllers.plan import CreateFailure
from dgym_operator.objects import EpisodeSetView, EpisodeView, Pod, TaskView

SIDECAR_PORT = 8080


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """The same for all episodes; tests use shorter ones.

    Attributes:
        backoff_seconds: Before the second attempt; doubles with every failure of the sandbox.
        backoff_limit_seconds: What the back-off grows to.
        shown_after_seconds: How long something must last before it is worth a write of progress.
        steps_seconds: Between two records of how many steps an attempt has taken.
        repeat_seconds: Between two tellings of a sidecar that must hear something.
        report_seconds: How long a fresh report of an agent may take to arrive.
        ending_seconds: How long a pod may take from its agent's "finished" to its own end.
        terminating_seconds: How long a pod may be there past the end of its grace; then its node is lost.
        preparation_seconds: From the assignment to the first reset, and around the tests at the end.
        backstop_seconds: Above all clocks of the sidecar, before the operator ends what should have ended.
        slow_start_seconds: After so long from its scheduling a pod that is not ready keeps no slot any more.
        create_retry_seconds: What the back-off of creating one pod grows to; room in a quota comes at any time.
        agent_losses: How many lost agents one pod outlives.
        agent_failures: How often a model may fail in one pod and be tried again.
        settle_seconds: How old the newest task must be before a selector's choice is frozen.
        creates_per_round: Children a set makes in one round.
    """

    backoff_seconds: float = 10.0
    backoff_limit_seconds: float = 360.0
    shown_after_seconds: float = 5.0
    steps_seconds: float = 30.0
    repeat_seconds: float = 5.0
    report_seconds: float = 10.0
    ending_seconds: float = 30.0
    terminating_seconds: float = 30.0
    preparation_seconds: float = 600.0
    backstop_seconds: float = 60.0
    slow_start_seconds: float = 120.0
    create_retry_seconds: float = 60.0
    agent_losses: int = 10
    agent_failures: int = 3
    settle_seconds: float = 5.0
    creates_per_round: int = 50


def backoff(base: float, limit: float, failures: int) -> float:
    """Seconds to wait after that many failures: doubling, and bounded."""
    return min(limit, base * 2.0 ** min(max(failures, 1) - 1, 32))


class TaskState(msgspec.Struct, frozen=True, kw_only=True):
    """The episode's task: ``missing`` from the cluster, ``found`` there, or ``inline`` in the Episode."""

    state: Literal["missing", "found", "inline"]
    uid: str | None = None
    entrypoint_timeout_seconds: int = 300


class AgentView(msgspec.Struct, frozen=True, kw_only=True):
    """What the operator remembers of the agent that ``status.assignment`` names.

    Attributes:
        status: What it last said of this episode; None: it was asked and does not know of it, or was not asked yet.
        since: When ``status.state`` was first heard.
        lost_since: Since when it is silent for too long or its pod is gone; None: it answers.
        lost: Which agent pod is lost, and by what evidence, for people.
        stages: First and last step, as heard.
        active_seconds: How long the episode's deadline has run under this assignment, as last reported.
    """

    status: AssignmentStatus | None = None
    since: datetime | None = None
    lost_since: datetime | None = None
    lost: str = ""
    stages: Stages = Stages()
    active_seconds: int = 0


class EpisodeInput(msgspec.Struct, frozen=True, kw_only=True):
    """One Episode and all that bears on it.

    Attributes:
        episode: The Episode.
        pods: All pods whose controller is this Episode (by its UID).
        task: Whether there is a task.
        may_create: Whether the agents' free slots and the head start allow one more sandbox.
        held_by: Why its request for an agent or a pod is not granted, for people; empty: not known yet.
        create_failure: Why the next attempt's pod could not be made, if it was tried.
        agent: The assigned agent; None while nothing is known of it, as after a start of the operator.
        cancelled: Whether the sidecar has acknowledged that the attempt has ended, after it was asked to cancel it.
        absent: Names of pods that the API server itself said are not there.
        disrupted_attempt: The attempt whose pod a watch showed to be disrupted, whether or not the pod is still there.
        owned_by_set: Whether an EpisodeSet controls it.
        counted: Whether that set has written it into its completed indexes.
        key_id: Names the cluster's key; a pod made with another one refuses the operator's tokens. Empty: not known.
        policy: Constants.
    """

    episode: EpisodeView
    pods: tuple[Pod, ...] = ()
    task: TaskState
    may_create: bool = True
    held_by: str = ""
    create_failure: CreateFailure | None = None
    agent: AgentView | None = None
    cancelled: bool = False
    absent: frozenset[str] = frozenset()
    disrupted_attempt: int = 0
    owned_by_set: bool = False
    counted: bool = False
    key_id: str = ""
    policy: Policy = Policy()

    @property
    def attempt(self) -> int:
        """The attempt that runs, or else the next one."""
        status = self.episode.status
        return status.attempt if status.pod_name is not None else status.attempt + 1

    @property
    def pod_name(self) -> str:
        """What the pod of ``attempt`` is called."""
        return self.episode.status.pod_name or pod_name(self.episode.metadata.name, self.attempt)

    @property
    def pod(self) -> Pod | None:
        """The pod of ``attempt``."""
        return next((pod for pod in self.pods if attempt_of(pod) == self.attempt), None)

    @property
    def assignment(self) -> Assignment | None:
        """Who serves the attempt."""
        return self.episode.status.assignment

    @property
    def report(self) -> AssignmentStatus | None:
        """What the assigned agent says of this very assignment; what it says of older ones does not count."""
        if self.agent is None or self.agent.lost_since is not None or self.assignment is None:
            return None
        said = self.agent.status
        current = said is not None and (said.attempt, said.epoch) == (self.attempt, self.assignment.epoch)
        return said if current else None

    @property
    def is_closed(self) -> bool:
        """Whether the agent is at the verdict or has it: that is waited for, whatever clock has run out."""
        return self.report is not None and self.report.state in _CLOSED

    @property
    def unheard(self) -> bool:
        """Whether the assigned agent has yet to say where it is: it may have the verdict, so that nothing is ended.

        It passes: an agent that stays silent is lost.
        """
        return self.assignment is not None and self.agent is None

    @property
    def expected_task_uid(self) -> str | None:
        """The task the episode began with, or was made for by its set."""
        return self.episode.status.task_uid or self.episode.metadata.labels.get(TASK_UID)


_CLOSED = frozenset({AssignmentState.CLOSING, AssignmentState.STORING, AssignmentState.STORE_UNAVAILABLE})


def pod_name(episode: str, attempt: int) -> str:
    """``<episode>-<attempt>``."""
    return f"{episode}-{attempt}"


def attempt_of(pod: Pod) -> int:
    """Which attempt a pod is of; 0: of none, so that nothing is decided by it but its deletion."""
    text = pod.metadata.labels.attempt
    return int(text) if text.isdecimal() else 0


def sidecar_url(pod: Pod) -> str:
    """Where the sidecar of a pod that has an address listens."""
    return pod.url(SIDECAR_PORT)


FrozenTasks = tuple[tuple[str, str], ...]
"""Names and UIDs, in the order that gives every index its task."""


class EpisodeSetInput(msgspec.Struct, frozen=True, kw_only=True):
    """One EpisodeSet and all that bears on it.

    Attributes:
        episode_set: The set.
        frozen: Its list of tasks, once it is frozen (``frozen.decode_tasks`` of the ConfigMap that the set controls).
        list_absent: Whether the API server itself said that the set's list of tasks is not there.
        tasks: The DebugTasks of its namespace; all, or at least those that it names or selects. Unused once frozen.
        children: All Episodes whose controller is this set (by its UID).
        refused: Why the API server refused the last child, until one is made.
        creating: Indexes of children that were asked for and are not among ``children`` yet.
        policy: Constants.
    """

    episode_set: EpisodeSetView
    frozen: FrozenTasks | None = None
    list_absent: bool = False
    tasks: tuple[TaskView, ...] = ()
    children: tuple[EpisodeView, ...] = ()
    refused: str = ""
    creating: frozenset[int] = frozenset()
    policy: Policy = Policy()
