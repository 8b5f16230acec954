"""Terminates an attempt, and finishes it: the status after its end, and the deletions that follow.

The termination is the phase between the decision to end an attempt and the deletion of its pod. ``status.ending`` is
written first, so that the phase survives a restart. Then the state of the sidecar is requested, for a limited time. A
cancelled episode is scored during this time. Then the pod is deleted, and ``find_ending`` reads its termination
message.

An attempt is finished only when the evidence is complete: the sidecar's termination message, the agent pod's report,
or the result of a search in the results store. A scored outcome takes precedence over the recorded ending.
"""

from datetime import datetime, timedelta
from typing import Any

import msgspec

from dgym.api import (
    AttemptEnding,
    ConditionType,
    EndCause,
    EpisodeStatus,
    ProgressReason,
    ReplaySource,
    ResolvedReason,
    Stages,
    Treatment,
)
from dgym.wire import EndReason, Outcome, calls
from dgym.wire.assignments import AssignmentState
from dgym.wire.calls import Call
from dgym.wire.outcome import MOST_POISONED
from dgym_operator.controllers._conditions import EPOCH, Conditions, fit, set_condition, since
from dgym_operator.controllers._inputs import EpisodeInput, backoff, sidecar_url
from dgym_operator.controllers._plan import Action, DeleteEpisode, DeletePod, Emit, PatchStatus, Plan, soonest, until
from dgym_operator.controllers.episode._assignment import recovery_deadline
from dgym_operator.controllers.episode._clocks import (
    call_sidecar,
    has_clock_of,
    scoring_seconds,
    served_seconds,
    sidecar_requests,
)
from dgym_operator.controllers.episode._pod_status import (
    AttemptEnd,
    is_disrupted,
    is_poisoned,
    poisoned_steps,
    sandbox_loss,
)

_STORING = (AssignmentState.STORING, AssignmentState.STORE_UNAVAILABLE)
_RELEASED = (AssignmentState.FINISHED, AssignmentState.FAILED)
CANCELLED = "Cancelled"


def terminate(
    view: EpisodeInput, end: AttemptEnd, cause: EndCause, now: datetime, *, reason: str = ProgressReason.TERMINATING
) -> Plan:
    """Write ``status.ending``, with ``reason`` as the reason of the status."""
    message = fit(end.message)
    report = view.report
    status = view.status_with(
        reason=reason,
        message=message,
        steps=max(view.episode.status.steps, report.steps if report is not None else 0),
        poisoned_steps=poisoned_steps(view),
        ending=AttemptEnding(cause=cause.value, reason=end.reason, message=message, since=now),
    )
    return Plan(actions=(PatchStatus(status=status),), requeue_after=view.policy.repeat_seconds)


def shut_down_pod(view: EpisodeInput, now: datetime, seconds: float) -> Plan:
    """Call the sidecar until it has answered or its time is over. Then delete the pod and requeue after ``seconds``."""
    questions = _calls_before_deletion(view, now)
    return questions if questions is not None else Plan(actions=delete_pods(view), requeue_after=seconds)


def delete_pods(view: EpisodeInput, *, keep: int | None = None) -> tuple[DeletePod, ...]:
    """Delete all pods that are not being deleted already, except the pod of the attempt ``keep``."""
    kept = view.pod if keep == view.attempt else None
    pods = (*view.pods, *view.unusable_pods)
    return tuple(
        DeletePod(name=pod.metadata.name, uid=pod.metadata.uid)
        for pod in pods
        if pod is not kept and pod.metadata.deletion_timestamp is None
    )


def _calls_before_deletion(view: EpisodeInput, now: datetime) -> Plan | None:
    """Return the calls to the sidecar before its pod is deleted, or None if no more calls are necessary."""
    pod, ending = view.pod, view.ending
    if pod is None or ending is None or pod.is_over or pod.metadata.deletion_timestamp is not None:
        return None
    since = ending.since or EPOCH
    if ending.reason == CANCELLED:
        return _cancelling(view, since, now)
    if _is_scoring(view, since):
        # The episode was closed before. Its outcome will be in the sidecar's termination message.
        deadline = since + timedelta(seconds=scoring_seconds(view))
        requests = soonest(sidecar_requests(view), call_sidecar(view, calls.STATE), until(deadline, now))
        return requests if now < deadline else None
    open_calls: list[Call[None, Any]] = [] if has_clock_of(view, since) else [calls.STATE]
    if pod.terminated("sandbox") is not None and view.sidecar.terminated is None:
        open_calls.append(calls.TERMINATED)
    deadline = since + timedelta(seconds=view.policy.ask_seconds)
    if not open_calls or not _has_sidecar(view) or now >= deadline:
        return None
    return soonest(call_sidecar(view, *open_calls), until(deadline, now))


def _is_scoring(view: EpisodeInput, since: datetime) -> bool:
    """True if the sidecar was scoring the episode when its state was last requested, and can still finish."""
    state, ending = view.sidecar.state, view.ending
    if state is None or ending is None or not has_clock_of(view, since):
        return False
    return state.ending and not state.ended and ending.reason != EndReason.SANDBOX_LOST


def _cancelling(view: EpisodeInput, since: datetime, now: datetime) -> Plan | None:
    """Wait until the sidecar has scored the cancelled episode and the agent pod has stored the outcome.

    Returns:
        The plan. None if both are done or take too long.
    """
    report, ended = view.report, view.sidecar.cancelled_since
    if view.sidecar.has_lost_sandbox:
        return None  # There is nothing to score.
    requests = sidecar_requests(view)
    if report is not None and report.state in _STORING:
        # The outcome waits for the results store, without a deadline.
        return soonest(requests, Plan(requeue_after=view.policy.repeat_seconds))
    if ended is None:
        deadline = since + timedelta(seconds=scoring_seconds(view))
        if not _has_sidecar(view) or now >= deadline:
            return None
        return soonest(requests, call_sidecar(view, calls.CANCEL), until(deadline, now))
    deadline = ended + timedelta(seconds=view.policy.release_seconds)
    return soonest(requests, until(deadline, now)) if _is_served(view) and now < deadline else None


def _has_sidecar(view: EpisodeInput) -> bool:
    """True if the pod's sidecar has an address. An assigned attempt always has one, even if the view is older."""
    return view.assignment is not None or (view.pod is not None and bool(sidecar_url(view.pod)))


def _is_served(view: EpisodeInput) -> bool:
    """True if an agent pod serves the attempt or may have started to. It will fetch the outcome."""
    lost = view.agent_pod is not None and view.agent_pod.lost_since is not None
    return not lost and (view.report is None or view.report.state not in _RELEASED)


def end_attempt(view: EpisodeInput, end: AttemptEnd, now: datetime) -> Plan:
    """Finish the attempt if its end is settled. Otherwise record the end and wait for a stored outcome."""
    if end.settled or view.assignment is None:
        return finish_attempt(view, _decided(view, end), now)
    deadline = recovery_deadline(view)
    if deadline is None:
        disrupted = end.disruption or is_disrupted(view)
        cause = EndCause.DISRUPTION if disrupted else EndCause.INFRASTRUCTURE
        return terminate(view, end, EndCause.AGENT if is_poisoned(view) else cause, now, reason=end.reason)
    if now >= deadline:
        why = f"no agent pod could look for a stored result within {view.policy.recover_seconds:.0f} s"
        return finish_attempt(view, _last(_decided(view, end), why), now)
    return soonest(Plan(actions=delete_pods(view), requeue_after=view.policy.repeat_seconds), until(deadline, now))


def lose_sandbox(view: EpisodeInput, now: datetime) -> Plan | None:
    """End an attempt whose sidecar reports that the sandbox terminated unexpectedly. None if it does not."""
    pod = view.pod
    if pod is None or pod.is_over or pod.metadata.deletion_timestamp is not None or not view.sidecar.has_lost_sandbox:
        return None
    cause = EndCause.AGENT if is_poisoned(view) else EndCause.INFRASTRUCTURE
    end = sandbox_loss(pod)
    return terminate(view, end, cause, now, reason=end.reason)


def _decided(view: EpisodeInput, end: AttemptEnd) -> AttemptEnd:
    """Return the recorded end, unless the sidecar, the agent pod or the store has an outcome or a final failure."""
    ending = view.ending
    if ending is None or (end.settled and end.treatment is not Treatment.NEW_POD):
        return end
    # The loss of the node may be observed only later, when the pod does not terminate.
    disruption = ending.cause == EndCause.DISRUPTION or end.disruption
    return AttemptEnd(reason=ending.reason, message=ending.message, disruption=disruption)


def finish_attempt(view: EpisodeInput, end: AttemptEnd, now: datetime) -> Plan:
    """Finish the episode with the end of its attempt, suspend it, or start another attempt."""
    if end.reason == ProgressReason.SUSPENDED:
        return suspend(view, now)
    if end.treatment is not Treatment.NEW_POD:
        return finish(view, end, now)
    spec, status = view.episode.spec, view.episode.status
    if spec.cancel:
        return finish(view, AttemptEnd(reason=CANCELLED, message=end.message), now)
    poisoned = is_poisoned(view)
    disrupted = not poisoned and (end.disruption or is_disrupted(view))
    failures = status.failures + (not disrupted and not poisoned)
    disruptions = status.disruptions + disrupted
    # The tokens of an external driver are valid for one attempt only, so it could not drive another pod.
    if spec.agent is None and status.pod_name is not None:
        why = "an episode without an agent has one attempt, because its driver's tokens are only valid for it"
        return finish(view, _last(end, why), now)
    if poisoned and len(poisoned_steps(view)) > MOST_POISONED:
        message = f"the sandbox died during {MOST_POISONED + 1} steps; the episode is not scored: {end.message}"
        return finish(view, AttemptEnd(reason="SandboxKilled", message=message), now)
    limit = spec.backoff_limit if spec.agent is not None else 0
    if failures > limit:
        return finish(view, _last(end, f"the last attempt was {view.attempt} (backoffLimit {limit})"), now)
    if disruptions > spec.max_disruptions:
        return finish(view, _last(end, f"the episode was disrupted {disruptions} times (maxDisruptions)"), now)
    if served_seconds(view) >= spec.active_deadline_seconds:
        late = AttemptEnd(reason="DeadlineExceeded", message=f"no time is left for another attempt: {end.message}")
        return finish(view, late, now)
    return _another_attempt(view, end, failures, disruptions, now)


def record_disruption(view: EpisodeInput) -> Plan | None:
    """Record in status that the attempt's pod is disrupted, while the pod still exists. None if already recorded."""
    status = view.episode.status
    if status.disrupted_attempt == view.attempt or not is_disrupted(view):
        return None
    message = f"attempt {view.attempt}: the pod was drained, evicted or preempted, or its node was lost"
    return Plan(
        actions=(
            PatchStatus(status=msgspec.structs.replace(status, disrupted_attempt=view.attempt)),
            Emit(type="Warning", reason="Disrupted", message=message),
        ),
        requeue_after=view.policy.repeat_seconds,
    )


def close_attempt(view: EpisodeInput, now: datetime, *, reason: str, message: str) -> EpisodeStatus:
    """Return the status after an attempt. The number of the attempt is not used again."""
    return view.status_with(
        conditions=set_condition(
            view.episode.status.conditions,
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
        poisoned_steps=poisoned_steps(view),
        replay=_replay(view),
        attempt=view.attempt,
        active_seconds=served_seconds(view),
        attempt_seconds=0,
        pod_name=None,
        pod_ref=None,
        assignment=None,
        epoch=view.next_epoch - 1,
        ending=None,
        stages=Stages(),
    )


def _replay(view: EpisodeInput) -> ReplaySource | None:
    """Return the attempt that the next one replays.

    This is the current attempt, unless its known number of steps is lower than that of the previous source. The known
    number may be too low, because the operator reads it late.
    """
    before, report = view.episode.status.replay, view.report
    if view.assignment is None or view.episode.spec.agent is None:
        return before
    steps = max(view.episode.status.steps, report.steps if report is not None else 0)
    return ReplaySource(attempt=view.attempt, steps=steps) if before is None or steps >= before.steps else before


def suspend(view: EpisodeInput, now: datetime) -> Plan:
    """Suspend the episode and close its attempt, if it has one. The pod is deleted after this status was written."""
    status = view.episode.status
    if view.pod is not None or status.pod_name is not None:
        status = close_attempt(view, now, reason=ProgressReason.SUSPENDED, message="")
    suspended = msgspec.structs.replace(
        status,
        conditions=set_condition(
            status.conditions, ConditionType.SUSPENDED, "True", reason=ProgressReason.SUSPENDED, at=now
        ),
        reason=ProgressReason.SUSPENDED,
        message="",
        observed_generation=view.status_with().observed_generation,
    )
    message = "the sandbox is deleted until suspend is false"
    event = Emit(type="Normal", reason=ProgressReason.SUSPENDED, message=message)
    return Plan(actions=(PatchStatus(status=suspended), event))


def next_attempt_at(view: EpisodeInput) -> datetime | None:
    """Return the end of the back-off before the next attempt, or None if there is none."""
    status = view.episode.status
    ended = since(status.conditions, ConditionType.SANDBOX_READY, "False")
    if ended is None or not status.failures + status.disruptions:
        return None
    policy = view.policy
    return ended + timedelta(seconds=backoff(policy.backoff_seconds, policy.backoff_limit_seconds, status.failures))


def finish(view: EpisodeInput, end: AttemptEnd, now: datetime) -> Plan:
    """Write the final status. The pods are deleted only after this write, because they hold the evidence."""
    status = finished_status(view, end, now)
    counted = end.treatment is Treatment.COUNTED
    event = Emit(type="Normal" if counted else "Warning", reason=end.reason, message=_event_message(status))
    return Plan(actions=(PatchStatus(status=status), event))


def finished_status(view: EpisodeInput, end: AttemptEnd, now: datetime) -> EpisodeStatus:
    """Return the status of the finished episode."""
    before = view.episode.status
    begun = before.pod_name is not None or view.pod is not None
    outcome = end.outcome
    if outcome is None and (begun or before.attempt):
        outcome = Outcome(resolved=False, message=fit(end.message))
    return view.status_with(
        conditions=_conditions(before.conditions, end, now),
        reason=end.reason[:64],
        message=fit(end.message),
        steps=outcome.steps if outcome is not None and outcome.steps else before.steps,
        outcome=outcome,
        attempt=view.attempt if begun else before.attempt,
        completion_time=now,
        poisoned_steps=before.poisoned_steps if end.outcome is not None else poisoned_steps(view),
        epoch=view.next_epoch - 1,
        ending=None,
        stages=_stages(view, now if outcome is not None and outcome.max_score else None),
    )


def after_finish(view: EpisodeInput, now: datetime) -> Plan:
    """Delete the pods, and the Episode after its time to live. An Episode of a set must first be counted."""
    actions: tuple[Action, ...] = delete_pods(view)
    metadata, ttl = view.episode.metadata, view.episode.spec.ttl_seconds_after_finished
    if ttl is None or (view.owned_by_set and not view.counted):
        return Plan(actions=actions)
    left = (view.episode.status.completion_time or now) + timedelta(seconds=ttl) - now
    if left > timedelta():
        return Plan(actions=actions, requeue_after=left.total_seconds())
    return Plan(actions=(*actions, DeleteEpisode(name=metadata.name, uid=metadata.uid)))


def _another_attempt(view: EpisodeInput, end: AttemptEnd, failures: int, disruptions: int, now: datetime) -> Plan:
    closed = close_attempt(view, now, reason=end.reason, message=end.message)
    status = msgspec.structs.replace(closed, failures=failures, disruptions=disruptions)
    message = fit(f"attempt {view.attempt}: {end.message}; a new pod will be created")
    return Plan(actions=(PatchStatus(status=status), Emit(type="Warning", reason=end.reason, message=message)))


def _last(end: AttemptEnd, why: str) -> AttemptEnd:
    return msgspec.structs.replace(end, message=f"{end.message}; {why}" if end.message else why)


def _conditions(before: Conditions, end: AttemptEnd, now: datetime) -> Conditions:
    outcome, counted = end.outcome, end.treatment is Treatment.COUNTED
    scored = counted and outcome is not None and outcome.max_score > 0
    solved = scored and outcome is not None and outcome.resolved
    unsolved = ResolvedReason.UNSOLVED if scored else ResolvedReason.NOT_SCORED
    after = set_condition(before, ConditionType.SANDBOX_READY, "False", reason="Finished", at=now)
    after = set_condition(
        after,
        ConditionType.RESOLVED,
        "True" if solved else "False",
        reason=(ResolvedReason.SOLVED if solved else unsolved).value,
        at=now,
    )
    return set_condition(after, ConditionType.FINISHED, "True", reason=end.reason, message=end.message, at=now)


def _stages(view: EpisodeInput, verified: datetime | None) -> Stages:
    stages = view.episode.status.stages
    reported = view.agent_pod.stages if view.agent_pod is not None else Stages()
    ended = view.pod.terminated("sidecar") if view.pod is not None else None
    if verified is not None and ended is not None and ended.finished_at is not None:
        verified = ended.finished_at
    return msgspec.structs.replace(
        stages,
        first_step=stages.first_step or reported.first_step,
        last_step=reported.last_step or stages.last_step,
        verified=verified,
    )


def _event_message(status: EpisodeStatus) -> str:
    outcome = status.outcome
    score = f"score {outcome.score} of {outcome.max_score}" if outcome is not None and outcome.max_score else "no score"
    message = next((each.message for each in status.conditions if each.type == ConditionType.FINISHED), "")
    return fit(f"{score}: {message}" if message else score)
