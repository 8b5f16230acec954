"""The assignment of an episode to an agent, which the dispatcher chooses, and the clocks that run under it."""

from datetime import datetime, timedelta
from typing import Literal

import msgspec

from dgym.api import AgentAssignment, ConditionType, EpisodeStatus, ProgressReason, Stages
from dgym_operator.controllers.conditions import EPOCH, set_condition, since
from dgym_operator.controllers.episode.pods import created, start_failure
from dgym_operator.controllers.inputs import EpisodeInput, Policy, TaskState, backoff
from dgym_operator.objects import EpisodeView, Pod

RequestCause = Literal["SandboxReady", "AgentLost", "ModelError"]


class AgentRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The request of an episode for an agent that begins it or resumes it.

    Attributes:
        epoch: Of the assignment to make; higher than all before it in this attempt.
        cause: Why: the sandbox is ready, the agent was lost, or its model failed.
    """

    epoch: int
    cause: RequestCause = "SandboxReady"


def agent_request(view: EpisodeInput, now: datetime) -> AgentRequest | None:
    """The request for an agent, if one is due. ``retry_at`` gives the end of a back-off."""
    episode, pod = view.episode, view.pod
    if pod is None or episode.metadata.deletion_timestamp is not None or not _is_alive(pod):
        return None
    if episode.is_finished or episode.spec.suspend or episode.status.termination is not None:
        return None
    if episode.status.pod_name is None:
        starts = pod.ready and not episode.spec.cancel and start_failure(pod) is None
        return AgentRequest(epoch=1) if starts else None
    assignment = view.assignment
    if assignment is None:
        return None
    due = retry_at(view)
    if due is not None and now < due:
        return None
    if assignment.failed_time is not None:
        return AgentRequest(epoch=assignment.epoch + 1, cause="ModelError")
    lost = view.agent is not None and view.agent.lost_since is not None
    if lost and losses(assignment) < view.policy.agent_losses:
        return AgentRequest(epoch=assignment.epoch + 1, cause="AgentLost")
    return None


def retry_at(view: EpisodeInput) -> datetime | None:
    """When the episode may be assigned again after its model failed or its agents were lost; None: no back-off.

    The first loss of an agent is followed by another agent at once, later ones after a growing back-off: repeated
    losses are probably no fault of the agents.
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


def assigned_status(view: EpisodeInput, request: AgentRequest, agent_pod_uid: str, now: datetime) -> EpisodeStatus:
    """The status that assigns the episode to this agent, for the single write of an assignment."""
    status, pod = view.episode.status, view.pod
    assert pod is not None
    first = status.pod_name is None
    return view.status_with(
        conditions=set_condition(
            status.conditions, ConditionType.SANDBOX_READY, "True", reason="PodReady", at=_time(pod, "Ready") or now
        ),
        reason=ProgressReason.RUNNING.value,
        message="",
        attempt=view.attempt,
        pod_name=pod.metadata.name,
        task_uid=status.task_uid or view.task.uid,
        assignment=AgentAssignment(
            agent_pod_uid=agent_pod_uid,
            epoch=request.epoch,
            failures=status.assignment.failures if status.assignment is not None else 0,
        ),
        attempt_seconds=0 if first else attempt_seconds(view),
        start_time=status.start_time or now,
        stages=_stages(pod, now) if first else status.stages,
    )


def losses(assignment: AgentAssignment) -> int:
    """Number of agents lost before the assigned one: all earlier epochs that no model's failure ended."""
    ended_by_failure = assignment.failures - (assignment.failed_time is not None)
    return max(0, assignment.epoch - 1 - ended_by_failure)


def _is_alive(pod: Pod) -> bool:
    return not pod.is_over and pod.metadata.deletion_timestamp is None and bool(pod.status.pod_ip)


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


_DAY = 86400


def requested_since(episode: EpisodeView) -> datetime:
    """When the next attempt was requested: by the creation, the resumption or the end of the attempt before."""
    conditions = episode.status.conditions
    times = (
        episode.metadata.creation_timestamp,
        since(conditions, ConditionType.SUSPENDED, "False"),
        since(conditions, ConditionType.SANDBOX_READY, "False"),
    )
    return max((time for time in times if time is not None), default=EPOCH)


def start_deadline(view: EpisodeInput, pod: Pod) -> datetime:
    """When a pod that is not ready is given up.

    The time counts from the pod's creation, or from the last transition of ``SandboxReady`` to False: a pod that a
    scheduling gate held for hours has all its time once the gate is gone.
    """
    waiting = since(view.episode.status.conditions, ConditionType.SANDBOX_READY, "False")
    begun = max(created(pod), waiting or EPOCH)
    return begun + timedelta(seconds=view.episode.spec.start_timeout_seconds)


def served_seconds(view: EpisodeInput) -> int:
    """Used part of ``activeDeadlineSeconds`` over all attempts: from each first reset to the end of the steps.

    Agents report it. Preparation, scoring and the absence of agents are not in it.
    """
    return view.episode.status.active_seconds + attempt_seconds(view)


def attempt_seconds(view: EpisodeInput) -> int:
    """The part that the current attempt has used, under all its agents."""
    return view.episode.status.attempt_seconds + (view.agent.active_seconds if view.agent is not None else 0)


def remaining_seconds(episode: EpisodeView) -> float:
    """What is left of ``activeDeadlineSeconds`` when the attempt begins; its sidecar counts down from there."""
    return float(max(0, episode.spec.active_deadline_seconds - episode.status.active_seconds))


def backstop(view: EpisodeInput, now: datetime) -> datetime | None:
    """When the operator ends an attempt that its sidecar should have ended; None: the pod's own deadline does.

    The sidecar's deadline runs from the first reset. Once an agent has reported time since then, what is left counts
    from now, or from the loss of the agent; before, all of it counts from the assignment. With an external driver the
    time of the first reset is not bounded.
    """
    episode, agent = view.episode, view.agent
    assigned = episode.status.stages.assigned
    if episode.status.pod_name is None or assigned is None or (agent is None and episode.spec.agent is None):
        return None
    used = attempt_seconds(view)
    if not used and episode.spec.agent is None:
        return None
    left = remaining_seconds(episode) - used + _around(view.task, view.policy) + view.policy.backstop_seconds
    reported = agent.since if agent is not None else None
    begun = now if used else max(assigned, reported or assigned)
    if agent is not None and agent.lost_since is not None:
        begun = max(assigned, agent.lost_since)
    return begun + timedelta(seconds=left)


def pod_deadline_seconds(episode: EpisodeView, task: TaskState, policy: Policy) -> int:
    """The pod's own ``activeDeadlineSeconds``, for when no operator is there to end the pod: above all other clocks.

    A day is added, since a pod may also wait for an agent, and a verdict for its store.
    """
    seconds = remaining_seconds(episode) + _around(task, policy) + policy.backstop_seconds
    return int(episode.spec.start_timeout_seconds + seconds) + _DAY


def _around(task: TaskState, policy: Policy) -> float:
    return policy.preparation_seconds + task.entrypoint_timeout_seconds
