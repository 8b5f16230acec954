"""The assignment of an episode to an agent, which the dispatcher chooses."""

from datetime import datetime, timedelta
from typing import Literal

import msgspec

from dgym.api import AgentAssignment, ConditionType, EpisodeStatus, PodRef, ProgressReason, Stages
from dgym.wire.assignments import AssignmentMode
from dgym_operator.controllers.conditions import EPOCH, fit, set_condition
from dgym_operator.controllers.episode.clocks import attempt_seconds
from dgym_operator.controllers.episode.ending import find_ending, heard_since_end, recovery_failed
from dgym_operator.controllers.episode.pods import AttemptEnd, created, start_failure
from dgym_operator.controllers.episode.poison import poisoned_steps
from dgym_operator.controllers.inputs import EpisodeInput, backoff
from dgym_operator.controllers.plan import Emit
from dgym_operator.objects import Pod

RequestCause = Literal["SandboxReady", "AgentLost", "ModelError", "Recover"]


class AgentRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The request of an episode for an agent that begins it, resumes it or recovers its verdict.

    Attributes:
        epoch: Of the assignment to make; higher than all before it.
        cause: Why: the sandbox is ready, the agent was lost, its model failed, or a verdict may be in the store. The
            last one takes no slot.
    """

    epoch: int
    cause: RequestCause = "SandboxReady"


def agent_request(view: EpisodeInput, now: datetime) -> AgentRequest | None:
    """The request for an agent, if one is due. ``retry_at`` gives the end of a back-off."""
    episode, pod = view.episode, view.pod
    if episode.metadata.deletion_timestamp is not None or episode.is_finished:
        return None
    if view.ending is not None:
        return AgentRequest(epoch=view.next_epoch, cause="Recover") if _recovery_is_due(view, now) else None
    if pod is None or not _is_alive(pod) or episode.spec.suspend:
        return None
    if episode.status.pod_name is None:
        starts = pod.ready and view.is_bound and not episode.spec.cancel and start_failure(pod) is None
        return AgentRequest(epoch=view.next_epoch) if starts else None
    assignment = view.assignment
    if assignment is None:
        return None
    due = retry_at(view)
    if due is not None and now < due:
        return None
    if assignment.failed_time is not None:
        return AgentRequest(epoch=view.next_epoch, cause="ModelError")
    if _is_lost(view) and assignment.losses < view.policy.agent_losses:
        return AgentRequest(epoch=view.next_epoch, cause="AgentLost")
    return None


def _recovery_is_due(view: EpisodeInput, now: datetime) -> bool:
    """Whether an agent must look for a stored verdict now: the pod has left none, and the last agent has not looked."""
    found, deadline = find_ending(view, now), recovery_deadline(view)
    if view.assignment is None or deadline is None or now >= deadline:
        return False
    if not isinstance(found, AttemptEnd) or found.settled:
        return False
    if not view.is_recovering:
        # An agent that answers may hold a verdict that its next report shows.
        since = (view.ending.since if view.ending is not None else None) or EPOCH
        late = now >= since + timedelta(seconds=view.policy.report_seconds)
        return view.report is None or late or heard_since_end(view, since)
    due = retry_at(view)
    return due is not None and now >= due


def recovery_deadline(view: EpisodeInput) -> datetime | None:
    """Until when agents may look for a stored verdict of an attempt that ends; None: of one that does not."""
    if view.ending is None:
        return None
    return (view.ending.since or EPOCH) + timedelta(seconds=view.policy.recover_seconds)


def _is_lost(view: EpisodeInput) -> bool:
    return view.agent is not None and view.agent.lost_since is not None


def retry_at(view: EpisodeInput) -> datetime | None:
    """When the episode may be assigned again after its model failed or its agents were lost; None: no back-off.

    A failed recovery is repeated after a while.

    The first loss of an agent is followed by another agent at once, later ones after a growing back-off: repeated
    losses are probably no fault of the agents.
    """
    assignment, policy = view.assignment, view.policy
    if assignment is None:
        return None
    if view.is_recovering:
        return _recovery_failed_at(view)
    if assignment.failed_time is not None:
        since, failures = assignment.failed_time, assignment.failures + assignment.outages
    elif view.agent is not None and view.agent.lost_since is not None and assignment.losses:
        since, failures = view.agent.lost_since, assignment.losses
    else:
        return None
    return since + timedelta(seconds=backoff(policy.backoff_seconds, policy.backoff_limit_seconds, failures))


def _recovery_failed_at(view: EpisodeInput) -> datetime | None:
    agent = view.agent
    failed = agent is not None and (agent.lost_since is not None or recovery_failed(view))
    if agent is None or not failed:
        return None
    return (agent.lost_since or agent.since or EPOCH) + timedelta(seconds=view.policy.backoff_seconds)


def assigned_status(view: EpisodeInput, request: AgentRequest, agent_pod_uid: str, now: datetime) -> EpisodeStatus:
    """The status that assigns the episode to this agent, for the single write of an assignment."""
    status, pod = view.episode.status, view.pod
    assignment = _assignment(view, request, agent_pod_uid)
    if request.cause == "Recover":
        # What the pod has left may be gone with it by the time that the agent has looked.
        return view.status_with(
            assignment=assignment,
            epoch=request.epoch,
            attempt_seconds=attempt_seconds(view),
            poisoned_steps=poisoned_steps(view),
        )
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
        pod_ref=PodRef(name=pod.metadata.name, uid=pod.metadata.uid),
        task_uid=status.task_uid or view.task.uid,
        assignment=assignment,
        epoch=request.epoch,
        attempt_seconds=0 if first else attempt_seconds(view),
        start_time=status.start_time or now,
        stages=_stages(pod, now) if first else status.stages,
    )


def assigned_events(view: EpisodeInput, request: AgentRequest, agent_name: str) -> tuple[Emit, ...]:
    """The Events of an assignment. A lost agent that was replaced before its loss was shown has its own Event."""
    does = "looks for a stored verdict of" if request.cause == "Recover" else "serves"
    message = f"agent {agent_name} {does} attempt {view.attempt} (epoch {request.epoch})"
    if request.cause == "SandboxReady":
        return (Emit(type="Normal", reason="Assigned", message=message),)
    lost = view.agent.lost if view.agent is not None else ""
    causes = {
        "AgentLost": lost,
        "ModelError": view.episode.status.message or "its model failed",
        "Recover": view.ending.message if view.ending is not None else "",
    }
    cause = causes[request.cause]
    reassigned = Emit(type="Normal", reason="Reassigned", message=fit(f"{message}: {cause}" if cause else message))
    if request.cause == "AgentLost" and view.episode.status.reason != "AgentLost":
        return (Emit(type="Warning", reason="AgentLost", message=fit(lost)), reassigned)
    return (reassigned,)


def _assignment(view: EpisodeInput, request: AgentRequest, agent_pod_uid: str) -> AgentAssignment:
    before = view.assignment
    mode = AssignmentMode.RUN if view.episode.spec.agent is not None else AssignmentMode.PREPARE
    return AgentAssignment(
        agent_pod_uid=agent_pod_uid,
        epoch=request.epoch,
        attempt=view.attempt,
        mode=(AssignmentMode.RECOVER if request.cause == "Recover" else mode).value,
        failures=before.failures if before is not None else 0,
        outages=before.outages if before is not None else 0,
        losses=(before.losses if before is not None else 0) + (request.cause == "AgentLost"),
    )


def _is_alive(pod: Pod) -> bool:
    return not pod.is_over and pod.metadata.deletion_timestamp is None and bool(pod.status.pod_ip)


def _time(pod: Pod, condition: str) -> datetime | None:
    """When the condition came true; for a pod that had waited in a pool, when the episode took it."""
    found = pod.condition(condition)
    since = found.last_transition_time if found is not None and found.status == "True" else None
    return max(since, created(pod)) if since is not None else None


def _stages(pod: Pod, now: datetime) -> Stages:
    return Stages(
        pod_created=created(pod),
        scheduled=_time(pod, "PodScheduled"),
        sandbox_ready=_time(pod, "Ready"),
        assigned=now,
    )
