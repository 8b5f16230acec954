"""An attempt that is served by an agent."""

from datetime import datetime

import msgspec

from dgym.api import ProgressReason
from dgym.wire.assignments import AssignmentState
from dgym_operator.reconcile.assign import losses
from dgym_operator.reconcile.conditions import fit, observed
from dgym_operator.reconcile.deadlines import backstop
from dgym_operator.reconcile.ended import Ended
from dgym_operator.reconcile.ending import is_retried
from dgym_operator.reconcile.finishing import finish
from dgym_operator.reconcile.inputs import EpisodeInput, sidecar_url
from dgym_operator.reconcile.plan import CancelAttempt, Emit, PatchStatus, Plan, SandboxEnded
from dgym_operator.reconcile.progress import show, soonest, until

_SHOWN = {
    AssignmentState.PREPARING: ProgressReason.RUNNING,
    AssignmentState.RUNNING: ProgressReason.RUNNING,
    AssignmentState.CLOSING: ProgressReason.VERIFYING,
    AssignmentState.STORING: ProgressReason.STORING,
    AssignmentState.STORE_UNAVAILABLE: ProgressReason.RESULT_STORE_UNAVAILABLE,
}


def run(view: EpisodeInput, now: datetime) -> Plan:
    """Watch over the attempt: its agent, its sandbox, its clocks."""
    late = backstop(view)
    if late is not None and now >= late and not view.is_closed and not view.unheard:
        message = "neither the sidecar nor an agent ended the episode when its deadline had passed; it is not scored"
        return finish(view, Ended(reason="DeadlineExceeded", message=message), now)
    gave_up = _agents_gave_up(view, now)
    if gave_up is not None:
        return gave_up
    plan = soonest(_tell(view), _progress(view, now))
    if view.unheard:
        plan = soonest(plan, Plan(requeue_after=view.policy.repeat_seconds))
    return soonest(plan, until(late, now)) if late is not None and now < late else plan


def _agents_gave_up(view: EpisodeInput, now: datetime) -> Plan | None:
    """Note that a model failed, so that another try follows; end the episode when there were enough tries."""
    assignment, agent = view.assignment, view.agent
    if assignment is None or agent is None:
        return None
    if agent.lost_since is not None and losses(assignment) >= view.policy.agent_losses:
        message = f"{losses(assignment) + 1} agents were lost while they served the episode"
        return finish(view, Ended(reason="AgentLost", message=message), now)
    report = view.report
    if report is None or not is_retried(report) or assignment.failed_time is not None:
        return None
    reason = report.reason.value if report.reason is not None else "InternalError"
    if assignment.failures >= view.policy.agent_failures:
        message = f"{report.message}; it was tried {assignment.failures + 1} times"
        return finish(view, Ended(reason=reason, message=message), now)
    failed = msgspec.structs.replace(assignment, failures=assignment.failures + 1, failed_time=now)
    status = msgspec.structs.replace(
        view.episode.status,
        assignment=failed,
        reason=reason,
        observed_generation=observed(view.episode.status, view.episode.metadata.generation),
    )
    event = Emit(type="Warning", reason=reason, message=fit(f"{report.message}; another try follows"))
    return Plan(actions=(PatchStatus(status=status), event))


def _tell(view: EpisodeInput) -> Plan:
    """What the sidecar must hear, until its pod has ended."""
    pod = view.pod
    if pod is None or not pod.status.pod_ip:
        return Plan()
    url = sidecar_url(pod)
    sandbox = pod.container("sandbox")
    if sandbox is not None and sandbox.state.terminated is not None:
        action = SandboxEnded(pod=pod.metadata.name, url=url, attempt=view.attempt)
        return Plan(actions=(action,), requeue_after=view.policy.repeat_seconds)
    if view.episode.spec.cancel and not view.is_closed:
        cancel = CancelAttempt(pod=pod.metadata.name, url=url, attempt=view.attempt)
        return Plan(actions=(cancel,), requeue_after=view.policy.repeat_seconds)
    return Plan()


def _progress(view: EpisodeInput, now: datetime) -> Plan:
    agent, assignment = view.agent, view.assignment
    if agent is None or assignment is None or assignment.failed_time is not None:
        return Plan()
    if agent.lost_since is not None:
        return show(view, "AgentLost", since=agent.lost_since, now=now, message="", ready=None, warn=False)
    report = view.report
    reason = _SHOWN.get(report.state) if report is not None else None
    return show(view, reason, since=agent.since, now=now, ready=None) if reason is not None else Plan()
