"""The plan for an attempt: create its pod, wait until it is ready, and supervise it while it is assigned."""

from datetime import datetime, timedelta
from typing import Literal

import msgspec

from dgym.api import ConditionType, EndCause, ProgressReason, Treatment
from dgym.wire import EndReason, calls
from dgym.wire.assignments import AssignmentState, AssignmentStatus
from dgym_operator.controllers._conditions import fit, set_condition
from dgym_operator.controllers._inputs import EpisodeInput, attempt_of, backoff, sidecar_url
from dgym_operator.controllers._plan import (
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
from dgym_operator.controllers.episode._clocks import (
    backstop,
    call_sidecar,
    overdue,
    remaining_seconds,
    requested_since,
    sidecar_requests,
    start_deadline,
)
from dgym_operator.controllers.episode._finish import finish, finish_attempt, next_attempt_at, terminate
from dgym_operator.controllers.episode._pod_status import (
    GATED,
    AttemptEnd,
    created,
    is_retried,
    slow_at,
    start_failure,
    waiting_cause,
)
from dgym_operator.objects import Pod

_SHOWN = {
    AssignmentState.PREPARING: ProgressReason.RUNNING,
    AssignmentState.RUNNING: ProgressReason.RUNNING,
    AssignmentState.CLOSING: ProgressReason.SCORING,
    AssignmentState.STORING: ProgressReason.STORING,
    AssignmentState.STORE_UNAVAILABLE: ProgressReason.RESULT_STORE_UNAVAILABLE,
}
_BIND_SECONDS = 1.0
"""Interval between two tries to bind a sidecar."""
_CREATED_SECONDS = 30.0
"""Requeue interval after the creation of a pod. The watch normally delivers the pod much earlier."""


def create(view: EpisodeInput, now: datetime) -> Plan:
    """Create the pod of the next attempt, or write to status why it cannot be created."""
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
    if failure is not None:
        return _after_failure(view, failure, now)
    return _create_pod(view, _show_hold(view, due, now))


def start(view: EpisodeInput, pod: Pod, now: datetime) -> Plan:
    """Write to status why an unassigned pod waits, or end the attempt at its deadline."""
    failed = start_failure(pod)
    if failed is not None:
        return finish_attempt(view, failed, now)
    if pod.ready and not view.is_bound and now < start_deadline(view, pod):
        bind = BindSidecar(pod_name=pod.metadata.name, url=sidecar_url(pod), attempt=view.attempt)
        return Plan(actions=(bind,), requeue_after=_BIND_SECONDS)
    if pod.ready and view.is_bound:
        ready = pod.condition("Ready")
        message = _with_hold("the sandbox is ready and waits for an agent pod", view)
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
        return finish_attempt(view, _too_late(view, cause.reason if cause else "", cause.message if cause else ""), now)
    if cause is None:
        # The decision at ``slow`` releases the slot that is reserved for the pod.
        slow = slow_at(pod, view.policy.slow_start_seconds)
        return until(min(deadline, slow) if now < slow else deadline, now)
    shown = show(view, cause.reason, since=cause.since, now=now, message=cause.message, warn=True)
    return soonest(shown, until(deadline, now))


def _with_hold(what: str, view: EpisodeInput) -> str:
    return f"{what}: {view.held_by}" if view.held_by else what


def _show_hold(view: EpisodeInput, due: datetime | None, now: datetime) -> Plan:
    """Write to status why the pod is not granted."""
    message = view.held_by if view.quota_full else _with_hold("a sandbox waits for a slot", view)
    since = max(requested_since(view.episode), due) if due is not None else requested_since(view.episode)
    # Thousands of children may wait, and the set's status counts them. Only children that wait for longer write status.
    after = view.policy.child_shown_after_seconds if view.owned_by_set else None
    reason = EndReason.QUOTA_EXCEEDED if view.quota_full else ProgressReason.WAITING_FOR_SLOT
    return show(view, reason.value, since=since, now=now, message=message, revise=True, after=after)


def _create_pod(view: EpisodeInput, otherwise: Plan) -> Plan:
    """Create the pod if it is granted. Otherwise request the grant and follow the plan ``otherwise``."""
    if not view.may_create:
        return msgspec.structs.replace(otherwise, requests_pod=True)
    before = view.attempt - 1
    name = f"{view.episode.metadata.name}-{before}"
    if before and name not in view.absent and not any(attempt_of(pod) == before for pod in view.pods):
        # The old pod is deleted only after status has counted its attempt, and the cache may be behind: look it up.
        return Plan(actions=(LookUpPod(name=name),), requeue_after=view.policy.repeat_seconds, requests_pod=True)
    pod = CreatePod(name=view.pod_name, attempt=view.attempt)
    return Plan(actions=(pod,), requeue_after=_CREATED_SECONDS, requests_pod=True)


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
        f"DebugTask {name} was deleted and created again after the episode was planned (UID {view.expected_task_uid}, "
        f"now {view.task.uid}); their results are not comparable: create a new Episode or EpisodeSet"
    )


def _is_final(failure: CreateFailure) -> bool:
    return not failure.is_temporary and AttemptEnd(reason=failure.reason).treatment is not Treatment.WAIT


def _wait_for_quota(view: EpisodeInput, failure: CreateFailure, now: datetime) -> Plan:
    """Request the pod again and show the cause meanwhile.

    The episode ends if no pod of the namespace was created for the whole time limit. As long as other episodes of the
    namespace get pods, this episode keeps waiting for its turn.
    """
    seconds, limits = _wait_limit(view, failure)
    begun = max(failure.since, requested_since(view.episode), view.quota_room_at or failure.since)
    deadline = begun + timedelta(seconds=seconds)
    if now >= deadline:
        message = f"{failure.message}; no pod could be created within {seconds:.0f} s ({limits})"
        return finish(view, AttemptEnd(reason=failure.reason, message=message), now)
    waiting = soonest(_show_failure(view, failure, failure.reason, now), until(deadline, now))
    return _create_pod(view, waiting)


def _show_failure(view: EpisodeInput, failure: CreateFailure, reason: str, now: datetime) -> Plan:
    return show(view, reason, since=failure.since, now=now, message=failure.message, warn=True, revise=True)


def _after_failure(view: EpisodeInput, failure: CreateFailure, now: datetime) -> Plan:
    """Retry with a growing back-off, show the cause meanwhile, and end the episode at the deadline.

    A retry that is due takes place even after the deadline, because the episode may have waited for a slot until now.
    """
    seconds, limits = _wait_limit(view, failure)
    deadline = max(failure.since, requested_since(view.episode)) + timedelta(seconds=seconds)
    again = (failure.tried or failure.since) + timedelta(seconds=_retry_seconds(view, failure))
    if deadline <= now < again:
        message = f"{failure.message}; the pod could not be created within {seconds:.0f} s ({limits})"
        return finish(view, AttemptEnd(reason=failure.reason, message=message), now)
    if now < again:
        waits = AttemptEnd(reason=failure.reason).treatment is Treatment.WAIT
        shown = _show_failure(view, failure, failure.reason if waits else ProgressReason.POD_NOT_CREATED, now)
        return soonest(shown, until(min(again, deadline), now))
    # Status keeps the cause of the failure, which is more useful than a short wait for a slot.
    return _create_pod(view, Plan())


def _wait_limit(view: EpisodeInput, failure: CreateFailure) -> tuple[float, str]:
    """Return how many seconds to wait until the cause has passed, and the names of the fields that set this time.

    A quota is used up by other episodes, and each of them may run until its deadline.
    """
    seconds = float(view.episode.spec.start_timeout_seconds)
    if failure.reason == "QuotaExceeded":
        return max(seconds, remaining_seconds(view.episode)), "startTimeoutSeconds, activeDeadlineSeconds"
    return seconds, "startTimeoutSeconds"


def _retry_seconds(view: EpisodeInput, failure: CreateFailure) -> float:
    policy = view.policy
    return max(failure.retry_after, backoff(policy.backoff_seconds, policy.create_retry_seconds, failure.tries))


def _ungated(view: EpisodeInput, now: datetime) -> Plan:
    """Restart the start timeout, because the scheduling gate was removed."""
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
    """Return the plan for an assigned attempt: supervise its agent pod, its sandbox and its clocks."""
    waits = _waits_for_model(view)
    late = None if view.is_closing or view.awaits_report or waits else backstop(view)
    is_late = late is not None and now >= late.request_at
    end = _reassigned_too_often(view) or (overdue(view, late, now) if late is not None and is_late else None)
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
    return soonest(plan, call_sidecar(view, calls.STATE) if is_late else until(late.request_at, now))


def _waits_for_model(view: EpisodeInput) -> bool:
    """True if the model failed and the episode was not reassigned since. Its deadline clock is paused meanwhile."""
    assignment, agent_pod = view.assignment, view.agent_pod
    if assignment is None or assignment.failed_time is not None:
        return assignment is not None
    delivered = view.report is not None or (agent_pod is not None and agent_pod.lost_since is not None)
    return assignment.outages > 0 and not delivered


def _reassigned_too_often(view: EpisodeInput) -> AttemptEnd | None:
    """Return the end of an episode whose agent pods were lost or whose model failed too often, or None."""
    assignment, agent_pod, report = view.assignment, view.agent_pod, view.report
    if assignment is None or agent_pod is None:
        return None
    if agent_pod.lost_since is not None and assignment.losses >= view.policy.agent_pod_losses:
        lost = assignment.losses + 1
        message = f"{lost} agent pods were lost while they served the episode; the last loss: {agent_pod.lost}"
        return AttemptEnd(reason="AgentPodLost", message=message)
    if not _has_new_failure(view) or report is None:
        return None
    tried, limit = assignment.failures, view.policy.model_failures
    if report.outage:
        tried, limit = _outages(view, report), view.policy.model_outages
    if tried < limit:
        return None
    message = f"{report.cause}; it was tried {tried + 1} times"
    return AttemptEnd(reason=_reason(report), message=message)


def _model_failed(view: EpisodeInput, now: datetime) -> Plan | None:
    """Record a new failure of the model, so that it is tried again. Return None without a new failure."""
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
    status = view.status_with(assignment=failed, reason=reason, message=fit(report.cause), steps=steps)
    event = Emit(type="Warning", reason=reason, message=fit(f"{report.cause}; it will be tried again"))
    return Plan(actions=(PatchStatus(status=status), event))


def _outages(view: EpisodeInput, report: AssignmentStatus) -> int:
    """Return the number of consecutive outages of the model before this outage. New steps reset it to 0."""
    has_new_steps = report.steps > view.episode.status.steps
    return view.assignment.outages if view.assignment is not None and not has_new_steps else 0


def _has_new_failure(view: EpisodeInput) -> bool:
    return is_retried(view.report) and view.assignment is not None and view.assignment.failed_time is None


def _reason(report: AssignmentStatus) -> str:
    return report.reason.value if report.reason is not None else "InternalError"


def _driver_secret(view: EpisodeInput) -> Plan:
    """Create the Secret for an external driver after an agent pod has prepared the sandbox pod."""
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
    """Write the agent pod's state to status, once the state has lasted long enough."""
    agent_pod, assignment = view.agent_pod, view.assignment
    if agent_pod is None or assignment is None or assignment.failed_time is not None:
        return Plan()
    if agent_pod.lost_since is not None:
        return show(
            view, "AgentPodLost", since=agent_pod.lost_since, now=now, message=agent_pod.lost, ready=None, warn=True
        )
    report = view.report
    reason = _SHOWN.get(report.state) if report is not None else None
    if report is None or reason is None:
        return Plan()
    away = report.state is AssignmentState.STORE_UNAVAILABLE
    shown = show(
        view, reason, since=agent_pod.since, now=now, message=report.message, ready=None, warn=away, revise=not away
    )
    return shown if shown.actions else soonest(shown, _count_steps(view, report, now))


def _count_steps(view: EpisodeInput, report: AssignmentStatus, now: datetime) -> Plan:
    """Record the number of steps, at most every ``steps_seconds``."""
    status, agent_pod, interval = view.episode.status, view.agent_pod, timedelta(seconds=view.policy.steps_seconds)
    due = (status.stages.last_step or status.stages.assigned or now) + interval
    if now < due or agent_pod is None:
        return until(due, now)
    if report.steps <= status.steps:
        return until(now + interval, now)
    first = status.stages.first_step or agent_pod.stages.first_step or now
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
    """Write ``reason`` to status once it has lasted ``after`` seconds (None: ``shown_after_seconds``).

    Args:
        view: The input.
        reason: The reason.
        since: When the reason began to apply. None: now.
        now: The current time.
        message: The message.
        ready: The new status of ``SandboxReady``. None leaves it unchanged.
        warn: Also record a Warning Event.
        revise: Also write a new message under the same reason. False for messages such as the scheduler's, which
            changes whenever a node is added or removed.
        after: Seconds.
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
