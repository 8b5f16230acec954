"""The plan for an attempt that is assigned to an agent."""

from datetime import datetime, timedelta

import msgspec

from dgym.api import ProgressReason, Termination
from dgym.wire.assignments import AssignmentState, AssignmentStatus
from dgym_operator.controllers.conditions import fit
from dgym_operator.controllers.episode.assignment import losses
from dgym_operator.controllers.episode.conclusion import delete_pods
from dgym_operator.controllers.episode.deadlines import backstop
from dgym_operator.controllers.episode.ending import is_retried
from dgym_operator.controllers.episode.pods import AttemptEnd
from dgym_operator.controllers.episode.progress import show
from dgym_operator.controllers.inputs import EpisodeInput, sidecar_url
from dgym_operator.controllers.plan import (
    Action,
    CancelAttempt,
    Emit,
    PatchStatus,
    PauseDeadline,
    Plan,
    SandboxEnded,
    SandboxRunning,
    soonest,
    until,
)
from dgym_operator.objects import Pod

_SHOWN = {
    AssignmentState.PREPARING: ProgressReason.RUNNING,
    AssignmentState.RUNNING: ProgressReason.RUNNING,
    AssignmentState.CLOSING: ProgressReason.VERIFYING,
    AssignmentState.STORING: ProgressReason.STORING,
    AssignmentState.STORE_UNAVAILABLE: ProgressReason.RESULT_STORE_UNAVAILABLE,
}


def run(view: EpisodeInput, now: datetime) -> Plan:
    """Supervise the attempt: its agent, its sandbox, its clocks."""
    if view.episode.status.termination is not None:
        return Plan(actions=delete_pods(view), requeue_after=view.policy.repeat_seconds)
    late = backstop(view, now)
    end = _deadline_passed(view, late, now) or _agents_gave_up(view) or _cancelled_without_agent(view)
    if end is not None:
        return _terminate(view, end)
    failed = _model_failed(view, now)
    if failed is not None:
        return failed
    plan = soonest(_sidecar_requests(view), _progress(view, now))
    if view.awaits_report:
        plan = soonest(plan, Plan(requeue_after=view.policy.repeat_seconds))
    return soonest(plan, until(late, now)) if late is not None and now < late else plan


def _deadline_passed(view: EpisodeInput, late: datetime | None, now: datetime) -> AttemptEnd | None:
    if late is None or now < late or view.is_closing or view.awaits_report:
        return None
    message = "neither the sidecar nor an agent ended the episode when its deadline had passed; it is not scored"
    if view.episode.spec.cancel:
        return AttemptEnd(reason="Cancelled", message=message)
    if view.episode.spec.agent is not None and view.agent is not None and view.agent.lost_since is not None:
        # The sidecar's deadline is paused while the agent is lost: the agent has not exceeded it.
        since = view.agent.lost_since.isoformat(timespec="seconds")
        message = f"no agent has served the episode since {since}: {view.agent.lost}"
        return AttemptEnd(reason="AgentLost", message=message)
    return AttemptEnd(reason="DeadlineExceeded", message=message)


def _agents_gave_up(view: EpisodeInput) -> AttemptEnd | None:
    """The end of an episode whose agents were lost, or whose model failed, too often."""
    assignment, agent, report = view.assignment, view.agent, view.report
    if assignment is None or agent is None:
        return None
    if agent.lost_since is not None and losses(assignment) >= view.policy.agent_losses:
        message = f"{losses(assignment) + 1} agents were lost while they served the episode; the last: {agent.lost}"
        return AttemptEnd(reason="AgentLost", message=message)
    if not _has_new_failure(view) or report is None or assignment.failures < view.policy.agent_failures:
        return None
    message = f"{report.message}; it was tried {assignment.failures + 1} times"
    return AttemptEnd(reason=_reason(report), message=message)


def _cancelled_without_agent(view: EpisodeInput) -> AttemptEnd | None:
    """The end of a cancelled attempt that no agent will release: its sidecar has ended it already."""
    agent = view.agent
    if not view.episode.spec.cancel or not view.cancelled or agent is None or agent.lost_since is None:
        return None
    return AttemptEnd(reason="Cancelled", message="cancelled while no agent served it; it is not scored")


def _terminate(view: EpisodeInput, end: AttemptEnd) -> Plan:
    """Delete the pod, and read its termination message before finishing: a verdict in it takes precedence."""
    status = view.status_with(
        reason=ProgressReason.TERMINATING,
        message=fit(end.message),
        termination=Termination(reason=end.reason, message=fit(end.message)),
    )
    actions = (PatchStatus(status=status), *delete_pods(view))
    return Plan(actions=actions, requeue_after=view.policy.repeat_seconds)


def _model_failed(view: EpisodeInput, now: datetime) -> Plan | None:
    """Record a failure of the model, so that another try follows."""
    assignment, report = view.assignment, view.report
    if not _has_new_failure(view) or assignment is None or report is None:
        return None
    reason = _reason(report)
    failed = msgspec.structs.replace(assignment, failures=assignment.failures + 1, failed_time=now)
    status = view.status_with(assignment=failed, reason=reason, message=fit(report.message))
    event = Emit(type="Warning", reason=reason, message=fit(f"{report.message}; another try follows"))
    return Plan(actions=(PatchStatus(status=status), event))


def _has_new_failure(view: EpisodeInput) -> bool:
    return is_retried(view.report) and view.assignment is not None and view.assignment.failed_time is None


def _reason(report: AssignmentStatus) -> str:
    return report.reason.value if report.reason is not None else "InternalError"


def _sidecar_requests(view: EpisodeInput) -> Plan:
    """Requests to the sidecar, repeated until its pod has ended."""
    pod, agent, assignment = view.pod, view.agent, view.assignment
    if pod is None or not pod.status.pod_ip:
        return Plan()
    url, attempt = sidecar_url(pod), view.attempt
    actions: list[Action] = []
    if pod.terminated("sandbox") is not None:
        actions.append(SandboxEnded(url=url, attempt=attempt))
    if view.episode.spec.cancel and not view.is_closing:
        actions.append(CancelAttempt(url=url, attempt=attempt))
    # An external driver does not depend on the agent that prepares and stores.
    driven = view.episode.spec.agent is not None
    if driven and agent is not None and agent.lost_since is not None and assignment is not None:
        actions.append(PauseDeadline(url=url, attempt=attempt, epoch=assignment.epoch))
    running_at = _sandbox_running_at(pod)
    if running_at is not None:
        actions.append(SandboxRunning(url=url, attempt=attempt, observed=running_at))
    return Plan(actions=tuple(actions), requeue_after=view.policy.repeat_seconds) if actions else Plan()


def _sandbox_running_at(pod: Pod) -> datetime | None:
    """When the kubelet observed the sandbox running in a pod whose containers are not all ready.

    A sidecar whose sandbox should have ended makes itself unready, and the kubelet publishes that with the states of
    all containers. ``Ready`` would not do: a node's controller clears it for a kubelet that does not answer.
    """
    condition, sandbox = pod.condition("ContainersReady"), pod.container("sandbox")
    if condition is None or condition.status != "False" or sandbox is None:
        return None
    running = sandbox.state.waiting is None and sandbox.state.terminated is None
    return condition.last_transition_time if running else None


def _progress(view: EpisodeInput, now: datetime) -> Plan:
    agent, assignment = view.agent, view.assignment
    if agent is None or assignment is None or assignment.failed_time is not None:
        return Plan()
    if agent.lost_since is not None:
        return show(view, "AgentLost", since=agent.lost_since, now=now, message=agent.lost, ready=None, warn=True)
    report = view.report
    reason = _SHOWN.get(report.state) if report is not None else None
    if report is None or reason is None:
        return Plan()
    cause = report.message if report.state is AssignmentState.STORE_UNAVAILABLE else ""
    shown = show(view, reason, since=agent.since, now=now, message=cause, ready=None, warn=bool(cause))
    return shown if shown.actions else soonest(shown, _count_steps(view, report, now))


def _count_steps(view: EpisodeInput, report: AssignmentStatus, now: datetime) -> Plan:
    """Record the number of steps, at most every ``steps_seconds``."""
    status, agent, interval = view.episode.status, view.agent, timedelta(seconds=view.policy.steps_seconds)
    due = (status.stages.last_step or status.stages.assigned or now) + interval
    if now < due or agent is None:
        return until(due, now)
    if report.steps <= status.steps:
        return until(now + interval, now)
    first = status.stages.first_step or agent.stages.first_step or now
    stages = msgspec.structs.replace(status.stages, first_step=first, last_step=now)
    changed = msgspec.structs.replace(status, steps=report.steps, stages=stages)
    return Plan(actions=(PatchStatus(status=changed, progress=True),), requeue_after=view.policy.steps_seconds)
