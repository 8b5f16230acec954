"""Attempts that end without a verdict: what is written down, when the next one may begin, and when there is none."""

from datetime import datetime, timedelta

import msgspec

from dgym.api import ConditionType, EpisodeStatus, Stages, Treatment
from dgym_operator.reconcile.conditions import fit, observed, set_condition, since
from dgym_operator.reconcile.deadlines import served_seconds
from dgym_operator.reconcile.ended import Ended
from dgym_operator.reconcile.ending import is_disrupted
from dgym_operator.reconcile.finishing import finish
from dgym_operator.reconcile.inputs import EpisodeInput
from dgym_operator.reconcile.plan import Emit, PatchStatus, Plan
from dgym_operator.reconcile.policy import backoff


def conclude(view: EpisodeInput, ended: Ended, now: datetime) -> Plan:
    """What becomes of the episode now that its attempt is over."""
    if ended.treatment is not Treatment.NEW_POD:
        return finish(view, ended, now)
    spec, status = view.episode.spec, view.episode.status
    if spec.cancel:
        return finish(view, Ended(reason="Cancelled", message=ended.message), now)
    disrupted = ended.disruption or is_disrupted(view)
    failures = status.failures + (not disrupted)
    disruptions = status.disruptions + disrupted
    # An external driver holds tokens of this attempt alone: it could not drive another pod.
    if spec.agent is None and status.pod_name is not None:
        return finish(
            view, _last(ended, "an episode without agent has one attempt: its driver's tokens are of it"), now
        )
    limit = spec.backoff_limit if spec.agent is not None else 0
    if failures > limit:
        return finish(view, _last(ended, f"attempt {view.attempt} was the last (backoffLimit {limit})"), now)
    if disruptions > spec.max_disruptions:
        return finish(view, _last(ended, f"it was disrupted {disruptions} times (maxDisruptions)"), now)
    if served_seconds(view) >= spec.active_deadline_seconds:
        late = Ended(reason="DeadlineExceeded", message=f"no time is left for another attempt: {ended.message}")
        return finish(view, late, now)
    return _again(view, ended, failures, disruptions, now)


def record_disruption(view: EpisodeInput) -> Plan | None:
    """Record in status that the attempt's pod is disrupted, while the pod shows it; None: nothing to record."""
    status = view.episode.status
    if status.disrupted_attempt == view.attempt or not is_disrupted(view):
        return None
    message = f"attempt {view.attempt}: the pod is drained, evicted, preempted or its node lost"
    return Plan(
        actions=(
            PatchStatus(status=msgspec.structs.replace(status, disrupted_attempt=view.attempt)),
            Emit(type="Warning", reason="Disrupted", message=message),
        ),
        requeue_after=view.policy.repeat_seconds,
    )


def close_attempt(view: EpisodeInput, now: datetime, *, reason: str, message: str) -> EpisodeStatus:
    """The status after an attempt: its number is used up, and nothing of it runs."""
    status = view.episode.status
    return msgspec.structs.replace(
        status,
        conditions=set_condition(
            status.conditions,
            ConditionType.SANDBOX_READY,
            "False",
            reason=reason,
            message=message,
            at=now,
            restamp=True,
        ),
        reason=reason,
        message=fit(message),
        steps=0,
        attempt=view.attempt,
        active_seconds=served_seconds(view),
        attempt_seconds=0,
        pod_name=None,
        assignment=None,
        termination=None,
        stages=Stages(),
        observed_generation=observed(status, view.episode.metadata.generation),
    )


def next_attempt_at(view: EpisodeInput) -> datetime | None:
    """When the back-off is over; None where there is none."""
    status = view.episode.status
    ended = since(status.conditions, ConditionType.SANDBOX_READY, "False")
    if ended is None or not status.failures + status.disruptions:
        return None
    policy = view.policy
    return ended + timedelta(seconds=backoff(policy.backoff_seconds, policy.backoff_limit_seconds, status.failures))


def _again(view: EpisodeInput, ended: Ended, failures: int, disruptions: int, now: datetime) -> Plan:
    status = msgspec.structs.replace(
        close_attempt(view, now, reason=ended.reason, message=ended.message),
        failures=failures,
        disruptions=disruptions,
    )
    message = fit(f"attempt {view.attempt}: {ended.message}; a new pod follows")
    return Plan(actions=(PatchStatus(status=status), Emit(type="Warning", reason=ended.reason, message=message)))


def _last(ended: Ended, why: str) -> Ended:
    return msgspec.structs.replace(ended, message=f"{ended.message}; {why}" if ended.message else why)
