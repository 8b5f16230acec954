"""The assignment of an episode to an agent pod. The dispatcher chooses the agent pod."""

from datetime import datetime, timedelta
from typing import Literal

import msgspec

from dgym.api import AgentPodAssignment, ConditionType, EpisodeStatus, PodRef, ProgressReason, Stages
from dgym.wire.assignments import AssignmentMode
from dgym_operator.controllers._conditions import EPOCH, fit, set_condition
from dgym_operator.controllers._inputs import EpisodeInput, backoff
from dgym_operator.controllers._plan import Emit
from dgym_operator.controllers.episode._clocks import attempt_seconds
from dgym_operator.controllers.episode._pod_status import (
    AttemptEnd,
    created,
    find_ending,
    observed_since_end,
    poisoned_steps,
    recovery_failed,
    start_failure,
)
from dgym_operator.objects import Pod

RequestCause = Literal["SandboxReady", "AgentPodLost", "ModelError", "Recover"]


class AgentPodRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The request of an episode for an agent pod that starts it, resumes it or recovers its outcome.

    Attributes:
        epoch: Epoch of the new assignment. It is higher than all earlier epochs.
        cause: Why the request is made: the sandbox is ready, the agent pod was lost, its model failed, or the store may
            have an outcome (``Recover``, which does not use a slot).
    """

    epoch: int
    cause: RequestCause = "SandboxReady"


def agent_pod_request(view: EpisodeInput, now: datetime) -> AgentPodRequest | None:
    """Return the request for an agent pod, or None if none is due. ``retry_at`` returns the end of a back-off."""
    episode, pod = view.episode, view.pod
    if episode.metadata.deletion_timestamp is not None or episode.is_finished:
        return None
    if view.ending is not None:
        return AgentPodRequest(epoch=view.next_epoch, cause="Recover") if _recovery_is_due(view, now) else None
    if pod is None or not _is_alive(pod) or episode.spec.suspend:
        return None
    if episode.status.pod_name is None:
        starts = pod.ready and view.is_bound and not episode.spec.cancel and start_failure(pod) is None
        return AgentPodRequest(epoch=view.next_epoch) if starts else None
    assignment = view.assignment
    if assignment is None:
        return None
    due = retry_at(view)
    if due is not None and now < due:
        return None
    if assignment.failed_time is not None:
        return AgentPodRequest(epoch=view.next_epoch, cause="ModelError")
    if _is_lost(view) and assignment.losses < view.policy.agent_pod_losses:
        return AgentPodRequest(epoch=view.next_epoch, cause="AgentPodLost")
    return None


def _recovery_is_due(view: EpisodeInput, now: datetime) -> bool:
    """True if an agent pod must look for a stored outcome now.

    The sandbox pod has not left an outcome, and the last agent pod has not searched or could not finish its search.
    """
    found, deadline = find_ending(view, now), recovery_deadline(view)
    if view.assignment is None or deadline is None or now >= deadline:
        return False
    if not isinstance(found, AttemptEnd) or found.settled:
        return False
    if not view.is_recovering:
        # An agent pod that still answers may have an outcome that is only in its next report.
        since = (view.ending.since if view.ending is not None else None) or EPOCH
        late = now >= since + timedelta(seconds=view.policy.report_seconds)
        return view.report is None or late or observed_since_end(view, since)
    due = retry_at(view)
    return due is not None and now >= due


def recovery_deadline(view: EpisodeInput) -> datetime | None:
    """Return until when agent pods may look for a stored outcome, or None if the attempt is not ending."""
    if view.ending is None:
        return None
    return (view.ending.since or EPOCH) + timedelta(seconds=view.policy.recover_seconds)


def _is_lost(view: EpisodeInput) -> bool:
    return view.agent_pod is not None and view.agent_pod.lost_since is not None


def retry_at(view: EpisodeInput) -> datetime | None:
    """Return when the episode may be assigned again, or None if there is no back-off.

    There is a back-off after a failure of the model, after a failed recovery, and after the loss of an agent pod. The
    first loss has no back-off. Later ones have a growing back-off, because the episode itself may be their cause.
    """
    assignment, policy = view.assignment, view.policy
    if assignment is None:
        return None
    if view.is_recovering:
        return _recovery_failed_at(view)
    if assignment.failed_time is not None:
        since, failures = assignment.failed_time, assignment.failures + assignment.outages
    elif view.agent_pod is not None and view.agent_pod.lost_since is not None and assignment.losses:
        since, failures = view.agent_pod.lost_since, assignment.losses
    else:
        return None
    return since + timedelta(seconds=backoff(policy.backoff_seconds, policy.backoff_limit_seconds, failures))


def _recovery_failed_at(view: EpisodeInput) -> datetime | None:
    agent_pod = view.agent_pod
    failed = agent_pod is not None and (agent_pod.lost_since is not None or recovery_failed(view))
    if agent_pod is None or not failed:
        return None
    return (agent_pod.lost_since or agent_pod.since or EPOCH) + timedelta(seconds=view.policy.backoff_seconds)


def assigned_status(view: EpisodeInput, request: AgentPodRequest, agent_pod_uid: str, now: datetime) -> EpisodeStatus:
    """Return the status that assigns the episode to this agent pod. It is written in a single request."""
    status, pod = view.episode.status, view.pod
    assignment = _assignment(view, request, agent_pod_uid)
    if request.cause == "Recover":
        # Record what the sandbox pod shows now: it may be gone when the agent pod has finished its search.
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


def assigned_events(view: EpisodeInput, request: AgentPodRequest, agent_pod_name: str) -> tuple[Emit, ...]:
    """Return the Events of an assignment.

    They include the loss of the previous agent pod if that was not written to status before.
    """
    does = "looks for a stored result of" if request.cause == "Recover" else "serves"
    message = f"agent pod {agent_pod_name} {does} attempt {view.attempt} (epoch {request.epoch})"
    if request.cause == "SandboxReady":
        return (Emit(type="Normal", reason="Assigned", message=message),)
    lost = view.agent_pod.lost if view.agent_pod is not None else ""
    causes = {
        "AgentPodLost": lost,
        "ModelError": view.episode.status.message or "its model failed",
        "Recover": view.ending.message if view.ending is not None else "",
    }
    cause = causes[request.cause]
    reassigned = Emit(type="Normal", reason="Reassigned", message=fit(f"{message}: {cause}" if cause else message))
    if request.cause == "AgentPodLost" and view.episode.status.reason != "AgentPodLost":
        return (Emit(type="Warning", reason="AgentPodLost", message=fit(lost)), reassigned)
    return (reassigned,)


def _assignment(view: EpisodeInput, request: AgentPodRequest, agent_pod_uid: str) -> AgentPodAssignment:
    before = view.assignment
    mode = AssignmentMode.RUN if view.episode.spec.agent is not None else AssignmentMode.PREPARE
    return AgentPodAssignment(
        agent_pod_uid=agent_pod_uid,
        epoch=request.epoch,
        attempt=view.attempt,
        mode=(AssignmentMode.RECOVER if request.cause == "Recover" else mode).value,
        failures=before.failures if before is not None else 0,
        outages=before.outages if before is not None else 0,
        losses=(before.losses if before is not None else 0) + (request.cause == "AgentPodLost"),
    )


def _is_alive(pod: Pod) -> bool:
    return not pod.is_over and pod.metadata.deletion_timestamp is None and bool(pod.status.pod_ip)


def _time(pod: Pod, condition: str) -> datetime | None:
    """Return when the condition became True, but not before an Episode claimed the pod from a sandbox pool."""
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
