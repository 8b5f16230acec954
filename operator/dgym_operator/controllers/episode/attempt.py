"""The plan for an attempt: its pod is created and started, and supervised while an agent serves it."""

from datetime import datetime, timedelta
from typing import Literal

import msgspec

from dgym.api import ConditionType, EndCause, ProgressReason, Treatment
from dgym.wire import EndReason
from dgym.wire.assignments import AssignmentState, AssignmentStatus
from dgym.wire.http import Path
from dgym_operator.controllers.conditions import fit, set_condition
from dgym_operator.controllers.episode.clocks import (
    backstop,
    overdue,
    remaining_seconds,
    requested_since,
    start_deadline,
)
from dgym_operator.controllers.episode.conclusion import conclude, finish, next_attempt_at
from dgym_operator.controllers.episode.ending import is_retried
from dgym_operator.controllers.episode.pods import GATED, AttemptEnd, created, slow_at, start_failure, waiting_cause
from dgym_operator.controllers.episode.sidecar import ask, sidecar_requests
from dgym_operator.controllers.episode.terminating import terminate
from dgym_operator.controllers.inputs import EpisodeInput, attempt_of, backoff, sidecar_url
from dgym_operator.controllers.plan import (
    Action,
    BindSidecar,
    CreateDriverSecret,
    CreateFailure,
    CreatePod,
    Emit,
    LookUpPod,
    PatchStatus,
    Plan,
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
_BIND_SECONDS = 1.0
"""Between two tries to bind a sidecar."""
_CREATED_SECONDS = 30.0
"""The watch shows a pod long before; repeating the creation of an existing pod is harmless."""


def create(view: EpisodeInput, now: datetime) -> Plan:
    """Create the pod of the next attempt, or show why it cannot be created."""
    expected = view.expected_task_uid
    if view.task.state == "found" and expected is not None and view.task.uid != expected:
        return finish(view, AttemptEnd(reason="InvalidSpec", message=_another_task(view)), now)
    if view.task.state == "missing":
        return _without_task(view, now)
    due = next_attempt_at(view)
    if due is not None and now < due:
        return until(due, now)
    failure = view.create_failure
    if failure is not None and _is_final(failure):
        return finish(view, AttemptEnd(reason=failure.reason, message=failure.message), now)
    if failure is not None and failure.full:
        return _wait_for_quota(view, failure, now)
    if not view.may_create:
        message = view.held_by if view.quota_full else _with_hold("a sandbox waits for a slot", view)
        since = max(requested_since(view.episode), due) if due is not None else requested_since(view.episode)
        # Thousands of a set may wait, and its status counts them: those that wait for longer show it themselves.
        after = view.policy.child_shown_after_seconds if view.owned_by_set else None
        reason = EndReason.QUOTA_EXCEEDED if view.quota_full else ProgressReason.WAITING_FOR_SLOT
        return show(view, reason.value, since=since, now=now, message=message, revise=True, after=after)
    if failure is not None:
        return _after_failure(view, failure, now)
    return _create_pod(view)


def start(view: EpisodeInput, pod: Pod, now: datetime) -> Plan:
    """Show the cause that keeps an unassigned pod waiting, or end the attempt at its deadline."""
    failed = start_failure(pod)
    if failed is not None:
        return conclude(view, failed, now)
    if pod.ready and not view.is_bound and now < start_deadline(view, pod):
        bind = BindSidecar(pod_name=pod.metadata.name, url=sidecar_url(pod), attempt=view.attempt)
        return Plan(actions=(bind,), requeue_after=_BIND_SECONDS)
    if pod.ready and view.is_bound:
        ready = pod.condition("Ready")
        message = _with_hold("the sandbox is ready and waits for an agent", view)
        since = ready.last_transition_time if ready is not None else None
        return show(
            view,
            ProgressReason.WAITING_FOR_SLOT,
            since=since or created(pod),
            now=now,
            message=message,
            ready="True",
            revise=True,
        )
    cause = waiting_cause(pod)
    if cause is not None and cause.gated:
        return show(view, GATED, since=cause.since, now=now, message=cause.message)
    if view.episode.status.reason == GATED:
        return _ungated(view, now)
    deadline = start_deadline(view, pod)
    if now >= deadline:
        return conclude(view, _too_late(view, cause.reason if cause else "", cause.message if cause else ""), now)
    if cause is None:
        # The decision at that moment releases the slot that is reserved for the pod.
        slow = slow_at(pod, view.policy.slow_start_seconds)
        return until(min(deadline, slow) if now < slow else deadline, now)
    shown = show(view, cause.reason, since=cause.since, now=now, message=cause.message, warn=True)
    return soonest(shown, until(deadline, now))


def _with_hold(what: str, view: EpisodeInput) -> str:
    return f"{what}: {view.held_by}" if view.held_by else what


def _create_pod(view: EpisodeInput) -> Plan:
    before = view.attempt - 1
    name = f"{view.episode.metadata.name}-{before}"
    if before and name not in view.absent and not any(attempt_of(pod) == before for pod in view.pods):
        # The status that counts an attempt is written before its pod is deleted, which this cache may not show yet.
        return Plan(actions=(LookUpPod(name=name),), requeue_after=view.policy.repeat_seconds)
    return Plan(actions=(CreatePod(name=view.pod_name, attempt=view.attempt),), requeue_after=_CREATED_SECONDS)


def _without_task(view: EpisodeInput, now: datetime) -> Plan:
    reference, requested = view.episode.spec.task_ref, requested_since(view.episode)
    name = reference.name if reference is not None else ""
    message = f"DebugTask {name} is not in namespace {view.episode.metadata.namespace}; apply it, or correct taskRef"
    deadline = requested + timedelta(seconds=view.episode.spec.start_timeout_seconds)
    if now >= deadline:
        return finish(view, AttemptEnd(reason="TaskNotFound", message=message), now)
    shown = show(view, ProgressReason.WAITING_FOR_TASK, since=requested, now=now, message=message, warn=True)
    return soonest(shown, until(deadline, now))


def _another_task(view: EpisodeInput) -> str:
    reference = view.episode.spec.task_ref
    name = reference.name if reference is not None else ""
    return (
        f"DebugTask {name} was deleted and made again since the episode was planned (UID {view.expected_task_uid}, "
        f"now {view.task.uid}); results of both would not compare: make a new Episode or EpisodeSet"
    )


def _is_final(failure: CreateFailure) -> bool:
    return not failure.passes and AttemptEnd(reason=failure.reason).treatment is not Treatment.WAIT


def _wait_for_quota(view: EpisodeInput, failure: CreateFailure, now: datetime) -> Plan:
    """Request the pod again, show the cause meanwhile, and give up once no pod of the namespace was created for long.

    The pods of others use up the quota: as long as some begin, this one's turn comes.
    """
    seconds, limits = _wait_limit(view, failure)
    begun = max(failure.since, requested_since(view.episode), view.quota_room_at or failure.since)
    deadline = begun + timedelta(seconds=seconds)
    if now >= deadline:
        message = f"{failure.message}; no pod could be created within {seconds:.0f} s ({limits})"
        return finish(view, AttemptEnd(reason=failure.reason, message=message), now)
    if view.may_create:
        return _create_pod(view)
    shown = show(view, failure.reason, since=failure.since, now=now, message=failure.message, warn=True, revise=True)
    return soonest(shown, until(deadline, now))


def _after_failure(view: EpisodeInput, failure: CreateFailure, now: datetime) -> Plan:
    """Retry in growing intervals, show the cause meanwhile, and give up at the deadline.

    A retry that is due is made first, however late: the episode may have waited for a slot since the last one.
    """
    seconds, limits = _wait_limit(view, failure)
    deadline = max(failure.since, requested_since(view.episode)) + timedelta(seconds=seconds)
    again = (failure.tried or failure.since) + timedelta(seconds=_retry_seconds(view, failure))
    if deadline <= now < again:
        message = f"{failure.message}; the pod could not be created within {seconds:.0f} s ({limits})"
        return finish(view, AttemptEnd(reason=failure.reason, message=message), now)
    reason = failure.reason
    if AttemptEnd(reason=reason).treatment is not Treatment.WAIT:
        reason = ProgressReason.POD_NOT_CREATED
    shown = show(view, reason, since=failure.since, now=now, message=failure.message, warn=True, revise=True)
    if now < again:
        return soonest(shown, until(min(again, deadline), now))
    return _create_pod(view)


def _wait_limit(view: EpisodeInput, failure: CreateFailure) -> tuple[float, str]:
    """For how many seconds the cause is waited for, and the fields that set the time.

    A quota is used up by other episodes, each of which may take its whole deadline.
    """
    seconds = float(view.episode.spec.start_timeout_seconds)
    if failure.reason == "QuotaExceeded":
        return max(seconds, remaining_seconds(view.episode)), "startTimeoutSeconds, activeDeadlineSeconds"
    return seconds, "startTimeoutSeconds"


def _retry_seconds(view: EpisodeInput, failure: CreateFailure) -> float:
    policy = view.policy
    return max(failure.retry_after, backoff(policy.backoff_seconds, policy.create_retry_seconds, failure.tries))


def _ungated(view: EpisodeInput, now: datetime) -> Plan:
    """The gate is gone: the time to start begins now."""
    conditions = view.episode.status.conditions
    changed = view.status_with(
        conditions=set_condition(
            conditions,
            ConditionType.SANDBOX_READY,
            "False",
            reason=ProgressReason.STARTING,
            at=now,
            restamp=True,
        ),
        reason=ProgressReason.STARTING,
        message="",
    )
    return Plan(actions=(PatchStatus(status=changed),))


def _too_late(view: EpisodeInput, reason: str, message: str) -> AttemptEnd:
    seconds = view.episode.spec.start_timeout_seconds
    late = f"the sandbox was not ready within {seconds} s (startTimeoutSeconds)"
    if not reason:
        return AttemptEnd(reason="SandboxStartFailed", message=late)
    return AttemptEnd(reason=reason, message=f"{message}; {late}")


def run(view: EpisodeInput, now: datetime) -> Plan:
    """Supervise the attempt: its agent, its sandbox, its clocks."""
    waits = _waits_for_model(view)
    late = None if view.is_closing or view.awaits_report or waits else backstop(view)
    is_late = late is not None and now >= late.ask
    end = _agents_gave_up(view) or (overdue(view, late, now) if late is not None and is_late else None)
    if end is not None:
        cause = EndCause.AGENT if end.reason == "DeadlineExceeded" else EndCause.INFRASTRUCTURE
        return terminate(view, end, cause, now)
    failed = _model_failed(view, now)
    if failed is not None:
        return failed
    plan = soonest(sidecar_requests(view), progress(view, now), _driver_secret(view))
    if view.awaits_report:
        plan = soonest(plan, Plan(requeue_after=view.policy.repeat_seconds))
    if late is None:
        return plan
    return soonest(plan, ask(view, Path.STATE) if is_late else until(late.ask, now))


def _waits_for_model(view: EpisodeInput) -> bool:
    """Whether no agent serves the episode since its model failed: its deadline stands still until the next one does."""
    assignment, agent = view.assignment, view.agent
    if assignment is None or assignment.failed_time is not None:
        return assignment is not None
    delivered = view.report is not None or (agent is not None and agent.lost_since is not None)
    return assignment.outages > 0 and not delivered


def _agents_gave_up(view: EpisodeInput) -> AttemptEnd | None:
    """The end of an episode whose agents were lost, or whose model failed, too often."""
    assignment, agent, report = view.assignment, view.agent, view.report
    if assignment is None or agent is None:
        return None
    if agent.lost_since is not None and assignment.losses >= view.policy.agent_losses:
        message = f"{assignment.losses + 1} agents were lost while they served the episode; the last: {agent.lost}"
        return AttemptEnd(reason="AgentLost", message=message)
    if not _has_new_failure(view) or report is None:
        return None
    tried, limit = assignment.failures, view.policy.agent_failures
    if report.outage:
        tried, limit = _outages(view, report), view.policy.model_outages
    if tried < limit:
        return None
    message = f"{report.message}; it was tried {tried + 1} times"
    return AttemptEnd(reason=_reason(report), message=message)


def _model_failed(view: EpisodeInput, now: datetime) -> Plan | None:
    """Record a failure of the model, so that another try follows."""
    assignment, report = view.assignment, view.report
    if not _has_new_failure(view) or assignment is None or report is None:
        return None
    reason = _reason(report)
    failed = msgspec.structs.replace(
        assignment,
        failures=assignment.failures + (not report.outage),
        outages=_outages(view, report) + 1 if report.outage else 0,
        failed_time=now,
    )
    steps = max(view.episode.status.steps, report.steps)
    status = view.status_with(assignment=failed, reason=reason, message=fit(report.message), steps=steps)
    event = Emit(type="Warning", reason=reason, message=fit(f"{report.message}; another try follows"))
    return Plan(actions=(PatchStatus(status=status), event))


def _outages(view: EpisodeInput, report: AssignmentStatus) -> int:
    """How often in a row the model was out before: not at all, if steps were taken since."""
    went_on = report.steps > view.episode.status.steps
    return view.assignment.outages if view.assignment is not None and not went_on else 0


def _has_new_failure(view: EpisodeInput) -> bool:
    return is_retried(view.report) and view.assignment is not None and view.assignment.failed_time is None


def _reason(report: AssignmentStatus) -> str:
    return report.reason.value if report.reason is not None else "InternalError"


def _driver_secret(view: EpisodeInput) -> Plan:
    """Give an external driver its Secret once an agent has prepared the pod."""
    pod, report = view.pod, view.report
    prepared = report is not None and report.state is AssignmentState.RUNNING
    if view.episode.spec.agent is not None or not prepared or pod is None or not pod.status.pod_ip:
        return Plan()
    metadata = pod.metadata
    secret = CreateDriverSecret(
        pod_name=metadata.name, pod_uid=metadata.uid, url=sidecar_url(pod), attempt=view.attempt
    )
    return Plan(actions=(secret,))


def progress(view: EpisodeInput, now: datetime) -> Plan:
    """Show how far the agent is, once that has lasted."""
    agent, assignment = view.agent, view.assignment
    if agent is None or assignment is None or assignment.failed_time is not None:
        return Plan()
    if agent.lost_since is not None:
        return show(view, "AgentLost", since=agent.lost_since, now=now, message=agent.lost, ready=None, warn=True)
    report = view.report
    reason = _SHOWN.get(report.state) if report is not None else None
    if report is None or reason is None:
        return Plan()
    away = report.state is AssignmentState.STORE_UNAVAILABLE
    shown = show(
        view, reason, since=agent.since, now=now, message=report.message, ready=None, warn=away, revise=not away
    )
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


def show(
    view: EpisodeInput,
    reason: str,
    *,
    since: datetime | None,
    now: datetime,
    message: str = "",
    ready: Literal["True", "False"] | None = "False",
    warn: bool = False,
    revise: bool = False,
    after: float | None = None,
) -> Plan:
    """Show ``reason`` once it has lasted ``after`` seconds (None: ``shown_after_seconds``).

    ``ready`` is the status of ``SandboxReady`` (None: unchanged).

    A message that changes under the same reason is not written again: a scheduler has a new one for every node that
    comes and goes. With ``revise`` it is: for messages that change with their cause alone.
    """
    status = view.episode.status
    if status.reason == reason and not (revise and status.message != fit(message)):
        return Plan()
    shown_at = (since or now) + timedelta(seconds=view.policy.shown_after_seconds if after is None else after)
    if now < shown_at:
        return Plan(requeue_after=(shown_at - now).total_seconds())
    conditions = status.conditions
    if ready is not None:
        conditions = set_condition(
            conditions, ConditionType.SANDBOX_READY, ready, reason=reason, message=message, at=since or now
        )
    changed = view.status_with(conditions=conditions, reason=reason, message=fit(message))
    actions: list[Action] = [PatchStatus(status=changed, progress=True)]
    if warn:
        actions.append(Emit(type="Warning", reason=reason, message=fit(message)))
    return Plan(actions=tuple(actions))
