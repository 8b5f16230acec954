"""Which episodes want an agent, and the status that gives them one. Dispatch chooses the agent."""

from datetime import datetime, timedelta
from typing import Literal

import msgspec

from dgym.api import Assignment, ConditionType, EpisodeStatus, ProgressReason, Stages
from dgym.wire.assignments import AssignmentMode
from dgym_operator.controllers.conditions import is_true, observed, set_condition
from dgym_operator.controllers.episode.deadlines import attempt_seconds, remaining_seconds
from dgym_operator.controllers.episode.pods import start_failure
from dgym_operator.controllers.inputs import EpisodeInput, backoff
from dgym_operator.objects import Pod


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """An episode that an agent can begin or go on with.

    Attributes:
        pod: Its pod.
        attempt: The pod's attempt.
        epoch: Of the assignment to make; higher than all before it in this attempt.
        mode: What the agent is to do.
        takes_slot: Whether it counts against the agent's slots; those that only observe do not.
        remaining_seconds: What is left of the episode's deadline.
        cause: Why it wants an agent: its sandbox is ready, or its agent was lost or gave up.
    """

    pod: Pod
    attempt: int
    epoch: int
    mode: AssignmentMode = AssignmentMode.RUN
    takes_slot: bool = True
    remaining_seconds: float
    cause: Literal["SandboxReady", "AgentLost", "ModelError"] = "SandboxReady"


def needs_agent(view: EpisodeInput, now: datetime) -> Ready | None:
    """What to assign, if anything is to be assigned now. ``retry_at`` says when a back-off ends."""
    episode, pod = view.episode, view.pod
    if pod is None or episode.metadata.deletion_timestamp is not None or not _is_alive(pod):
        return None
    if is_true(episode.status.conditions, ConditionType.FINISHED):
        return None
    if episode.spec.suspend or episode.status.termination is not None:
        return None
    assignment = view.assignment if episode.status.pod_name is not None else None
    if assignment is not None:
        return _again(view, pod, assignment, now)
    first = episode.status.pod_name is None
    if not pod.ready or episode.spec.cancel or not first or start_failure(pod) is not None:
        return None
    return _ready(view, pod, epoch=1, cause="SandboxReady")


def retry_at(view: EpisodeInput) -> datetime | None:
    """When an agent may go on after a model failed, or after agents were lost; None: nothing waits for that.

    The first loss of an agent is followed by another agent at once, later ones after a growing back-off: what loses
    one agent after the other is no fault of the agents.
    """
    assignment, policy = view.assignment, view.policy
    if assignment is None:
        return None
    if assignment.failed_time is not None:
        since, failures = assignment.failed_time, assignment.failures
    elif view.agent is not None and view.agent.lost_since is not None and losses(assignment):
        since, failures = view.agent.lost_since, losses(assignment)
    else:
        return None
    return since + timedelta(seconds=backoff(policy.backoff_seconds, policy.backoff_limit_seconds, failures))


def assigned_status(view: EpisodeInput, ready: Ready, agent_pod_uid: str, now: datetime) -> EpisodeStatus:
    """The status that gives the episode to this agent, in the one write there is for it."""
    status = view.episode.status
    first = status.pod_name is None
    return msgspec.structs.replace(
        status,
        conditions=set_condition(
            status.conditions,
            ConditionType.SANDBOX_READY,
            "True",
            reason="PodReady",
            at=_time(ready.pod, "Ready") or now,
        ),
        reason=ProgressReason.RUNNING.value,
        message="",
        attempt=ready.attempt,
        pod_name=ready.pod.metadata.name,
        task_uid=status.task_uid or view.task.uid,
        assignment=Assignment(
            agent_pod_uid=agent_pod_uid,
            epoch=ready.epoch,
            failures=status.assignment.failures if status.assignment is not None else 0,
        ),
        attempt_seconds=0 if first else attempt_seconds(view),
        start_time=status.start_time or now,
        stages=_stages(ready.pod, now) if first else status.stages,
        observed_generation=observed(status, view.episode.metadata.generation),
    )


def losses(assignment: Assignment) -> int:
    """How many agents were lost before the one assigned: all earlier epochs that no model's failure ended."""
    ended_by_failure = assignment.failures - (assignment.failed_time is not None)
    return max(0, assignment.epoch - 1 - ended_by_failure)


def _again(view: EpisodeInput, pod: Pod, assignment: Assignment, now: datetime) -> Ready | None:
    epoch = assignment.epoch + 1
    due = retry_at(view)
    if due is not None and now < due:
        return None
    if assignment.failed_time is not None:
        return _ready(view, pod, epoch=epoch, cause="ModelError")
    lost = view.agent is not None and view.agent.lost_since is not None
    if lost and losses(assignment) < view.policy.agent_losses:
        return _ready(view, pod, epoch=epoch, cause="AgentLost")
    return None


def _ready(
    view: EpisodeInput, pod: Pod, *, epoch: int, cause: Literal["SandboxReady", "AgentLost", "ModelError"]
) -> Ready:
    driven = view.episode.spec.agent is not None
    return Ready(
        pod=pod,
        attempt=view.attempt,
        epoch=epoch,
        mode=AssignmentMode.RUN if driven else AssignmentMode.PREPARE,
        takes_slot=driven,
        remaining_seconds=remaining_seconds(view.episode),
        cause=cause,
    )


def _is_alive(pod: Pod) -> bool:
    sidecar = pod.container("sidecar")
    ended = sidecar is not None and sidecar.state.terminated is not None
    over = ended or pod.status.phase in ("Failed", "Succeeded")
    return not over and pod.metadata.deletion_timestamp is None and bool(pod.status.pod_ip)


def _time(pod: Pod, condition: str) -> datetime | None:
    found = pod.condition(condition)
    return found.last_transition_time if found is not None and found.status == "True" else None


def _stages(pod: Pod, now: datetime) -> Stages:
    return Stages(
        pod_created=pod.metadata.creation_timestamp,
        scheduled=_time(pod, "PodScheduled"),
        sandbox_ready=_time(pod, "Ready"),
        assigned=now,
    )
