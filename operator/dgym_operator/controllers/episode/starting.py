"""From the request for a sandbox to one that is ready."""

from datetime import datetime, timedelta

from dgym.api import ConditionType, ProgressReason, Treatment
from dgym_operator.controllers.conditions import set_condition
from dgym_operator.controllers.episode.conclusion import conclude, finish, next_attempt_at
from dgym_operator.controllers.episode.deadlines import remaining_seconds, requested_since, start_deadline
from dgym_operator.controllers.episode.pods import GATED, AttemptEnd, created, slow_at, start_failure, waiting_cause
from dgym_operator.controllers.episode.progress import show
from dgym_operator.controllers.inputs import EpisodeInput, backoff
from dgym_operator.controllers.plan import CreateFailure, CreatePod, PatchStatus, Plan, soonest, until
from dgym_operator.objects import Pod

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
    if not view.may_create:
        message = _with_hold("a sandbox waits for a slot", view)
        since = max(requested_since(view.episode), due) if due is not None else requested_since(view.episode)
        return show(view, ProgressReason.WAITING_FOR_SLOT, since=since, now=now, message=message, revise=True)
    if failure is not None:
        return _after_failure(view, failure, now)
    return _create_pod(view)


def start(view: EpisodeInput, pod: Pod, now: datetime) -> Plan:
    """Show what a pod that is not assigned yet waits for, or give it up."""
    failed = start_failure(pod)
    if failed is not None:
        return conclude(view, failed, now)
    if pod.ready:
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
