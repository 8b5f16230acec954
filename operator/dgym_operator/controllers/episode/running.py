"""An attempt that is served by an agent."""

from datetime import datetime, timedelta

import msgspec

from dgym.api import ProgressReason, Termination
from dgym.wire.assignments import AssignmentState, AssignmentStatus
from dgym_operator.controllers.conditions import fit, observed
from dgym_operator.controllers.episode.assignment import losses
from dgym_operator.controllers.episode.conclusion import delete_pods
from dgym_operator.controllers.episode.deadlines import backstop
from dgym_operator.controllers.episode.ending import is_retried
from dgym_operator.controllers.episode.pods import Ended
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
    """Watch over the attempt: its agent, its sandbox, its clocks."""
    if view.episode.status.termination is not None:
        return Plan(actions=delete_pods(view), requeue_after=view.policy.repeat_seconds)
    late = backstop(view, now)
    end = _too_late(view, late, now) or _agents_gave_up(view) or _cancelled_without_agent(view)
    if end is not None:
        return _terminate(view, end)
    failed = _model_failed(view, now)
    if failed is not None:
        return failed
    plan = soonest(_tell(view), _progress(view, now))
    if view.unheard:
        plan = soonest(plan, Plan(requeue_after=view.policy.repeat_seconds))
    return soonest(plan, until(late, now)) if late is not None and now < late else plan


def _too_late(view: EpisodeInput, late: datetime | None, now: datetime) -> Ended | None:
    if late is None or now < late or view.is_closed or view.unheard:
        return None
    message = "neither the sidecar nor an agent ended the episode when its deadline had passed; it is not scored"
    if view.episode.spec.cancel:
        return Ended(reason="Cancelled", message=message)
    driven = view.episode.spec.agent is not None
    if driven and view.agent is not None and view.agent.lost_since is not None:
        # The sidecar's deadline is paused while the agent is lost: the agent has not exceeded it.
        since = view.agent.lost_since.isoformat(timespec="seconds")
        return Ended(reason="AgentLost", message=f"no agent has served the episode since {since}: {view.agent.lost}")
    return Ended(reason="DeadlineExceeded", message=message)


def _agents_gave_up(view: EpisodeInput) -> Ended | None:
    """The end of an episode whose agents, or whose model, failed too often."""
    assignment, agent, report = view.assignment, view.agent, view.report
    if assignment is None or agent is None:
        return None
    if agent.lost_since is not None and losses(assignment) >= view.policy.agent_losses:
        message = f"{losses(assignment) + 1} agents were lost while they served the episode; the last: {agent.lost}"
        return Ended(reason="AgentLost", message=message)
    if not _failed_anew(view) or report is None or assignment.failures < view.policy.agent_failures:
        return None
    return Ended(reason=_reason(report), message=f"{report.message}; it was tried {assignment.failures + 1} times")


def _cancelled_without_agent(view: EpisodeInput) -> Ended | None:
    """The end of a cancelled attempt that no agent will release: its sidecar has ended it already."""
    agent = view.agent
    if not view.episode.spec.cancel or not view.cancelled or agent is None or agent.lost_since is None:
        return None
    return Ended(reason="Cancelled", message="cancelled while no agent served it; it is not scored")


def _terminate(view: EpisodeInput, end: Ended) -> Plan:
    """Delete the pod and read its last message before the episode is finished: a verdict in it is the end instead."""
    status = msgspec.structs.replace(
        view.episode.status,
        reason=ProgressReason.TERMINATING,
        message=fit(end.message),
        termination=Termination(reason=end.reason, message=fit(end.message)),
        observed_generation=observed(view.episode.status, view.episode.metadata.generation),
    )
    actions = (PatchStatus(status=status), *delete_pods(view))
    return Plan(actions=actions, requeue_after=view.policy.repeat_seconds)


def _model_failed(view: EpisodeInput, now: datetime) -> Plan | None:
    """Record that a model failed, so that another try follows."""
    assignment, report = view.assignment, view.report
    if not _failed_anew(view) or assignment is None or report is None:
        return None
    reason = _reason(report)
    failed = msgspec.structs.replace(assignment, failures=assignment.failures + 1, failed_time=now)
    status = msgspec.structs.replace(
        view.episode.status,
        assignment=failed,
        reason=reason,
        message=fit(report.message),
        observed_generation=observed(view.episode.status, view.episode.metadata.generation),
    )
    event = Emit(type="Warning", reason=reason, message=fit(f"{report.message}; another try follows"))
    return Plan(actions=(PatchStatus(status=status), event))


def _failed_anew(view: EpisodeInput) -> bool:
    return is_retried(view.report) and view.assignment is not None and view.assignment.failed_time is None


def _reason(report: AssignmentStatus) -> str:
    return report.reason.value if report.reason is not None else "InternalError"


def _tell(view: EpisodeInput) -> Plan:
    """What the sidecar must hear, until its pod has ended."""
    pod = view.pod
    if pod is None or not pod.status.pod_ip:
        return Plan()
    url, name = sidecar_url(pod), pod.metadata.name
    actions: list[Action] = []
    sandbox = pod.container("sandbox")
    if sandbox is not None and sandbox.state.terminated is not None:
        actions.append(SandboxEnded(pod=name, url=url, attempt=view.attempt))
    if view.episode.spec.cancel and not view.is_closed:
        actions.append(CancelAttempt(pod=name, url=url, attempt=view.attempt))
    agent, assignment = view.agent, view.assignment
    driven = view.episode.spec.agent is not None  # An external driver goes on without the agent that observes.
    if driven and agent is not None and agent.lost_since is not None and assignment is not None:
        actions.append(PauseDeadline(pod=name, url=url, attempt=view.attempt, epoch=assignment.epoch))
    running_at = _sandbox_running_at(pod)
    if running_at is not None:
        actions.append(SandboxRunning(pod=name, url=url, attempt=view.attempt, observed=running_at))
    return Plan(actions=tuple(actions), requeue_after=view.policy.repeat_seconds) if actions else Plan()


def _sandbox_running_at(pod: Pod) -> datetime | None:
    """When the kubelet saw the sandbox run in a pod whose containers are not all ready.

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
    stored = report.message if report.state is AssignmentState.STORE_UNAVAILABLE else ""
    shown = show(view, reason, since=agent.since, now=now, message=stored, ready=None, warn=bool(stored))
    return shown if shown.actions else soonest(shown, _count_steps(view, report, now))


def _count_steps(view: EpisodeInput, report: AssignmentStatus, now: datetime) -> Plan:
    """Record how far the attempt is, at most so often."""
    status, agent, again = view.episode.status, view.agent, timedelta(seconds=view.policy.steps_seconds)
    due = (status.stages.last_step or status.stages.assigned or now) + again
    if now < due or agent is None:
        return until(due, now)
    if report.steps <= status.steps:
        return until(now + again, now)
    first = status.stages.first_step or agent.stages.first_step or now
    changed = msgspec.structs.replace(
        status,
        steps=report.steps,
        stages=msgspec.structs.replace(status.stages, first_step=first, last_step=now),
    )
    return Plan(actions=(PatchStatus(status=changed, progress=True),), requeue_after=view.policy.steps_seconds)
