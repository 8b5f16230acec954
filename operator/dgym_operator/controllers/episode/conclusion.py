"""The status after the end of an attempt, and the deletions that follow.

Nothing is concluded before the evidence is in: the pod's last message, the agent's report, or an agent's look into the
store. A verdict takes precedence over the ending that was recorded.
"""

from datetime import datetime, timedelta

import msgspec

from dgym.api import (
    ConditionType,
    EndCause,
    EpisodeOutcome,
    EpisodeStatus,
    ProgressReason,
    ReplaySource,
    ResolvedReason,
    Stages,
    Treatment,
)
from dgym_operator.controllers.conditions import Conditions, fit, set_condition, since
from dgym_operator.controllers.episode.assignment import recovery_deadline
from dgym_operator.controllers.episode.clocks import served_seconds
from dgym_operator.controllers.episode.ending import is_disrupted
from dgym_operator.controllers.episode.pods import AttemptEnd, sandbox_loss
from dgym_operator.controllers.episode.poison import is_poisoned, poisoned_steps
from dgym_operator.controllers.episode.terminating import CANCELLED, delete_pods, terminate
from dgym_operator.controllers.inputs import EpisodeInput, backoff
from dgym_operator.controllers.plan import Action, DeleteEpisode, Emit, PatchStatus, Plan, soonest, until

MOST_POISONED = 2
"""After so many poisoned steps the next attempt only replays and scores; the loss of that one ends the episode."""


def end_attempt(view: EpisodeInput, end: AttemptEnd, now: datetime) -> Plan:
    """Conclude the attempt once its end is settled; until then record the end, and wait for a stored verdict."""
    if end.settled or view.assignment is None:
        return conclude(view, _decided(view, end), now)
    deadline = recovery_deadline(view)
    if deadline is None:
        disrupted = end.disruption or is_disrupted(view)
        cause = EndCause.DISRUPTION if disrupted else EndCause.INFRASTRUCTURE
        return terminate(view, end, EndCause.AGENT if is_poisoned(view) else cause, now, reason=end.reason)
    if now >= deadline:
        why = f"no agent could look for a stored verdict within {view.policy.recover_seconds:.0f} s"
        return conclude(view, _last(_decided(view, end), why), now)
    return soonest(Plan(actions=delete_pods(view), requeue_after=view.policy.repeat_seconds), until(deadline, now))


def lose_sandbox(view: EpisodeInput, now: datetime) -> Plan | None:
    """End an attempt whose sidecar says that its sandbox has ended by itself; None: it does not."""
    pod = view.pod
    if pod is None or pod.is_over or pod.metadata.deletion_timestamp is not None or not view.sidecar.has_lost_sandbox:
        return None
    cause = EndCause.AGENT if is_poisoned(view) else EndCause.INFRASTRUCTURE
    end = sandbox_loss(pod)
    return terminate(view, end, cause, now, reason=end.reason)


def _decided(view: EpisodeInput, end: AttemptEnd) -> AttemptEnd:
    """The end that was recorded, unless sidecar, agent or store have a verdict or a final failure."""
    ending = view.ending
    if ending is None or (end.settled and end.treatment is not Treatment.NEW_POD):
        return end
    # That the node is lost may show only later: by a pod that does not end.
    disruption = ending.cause == EndCause.DISRUPTION or end.disruption
    return AttemptEnd(reason=ending.reason, message=ending.message, disruption=disruption)


def conclude(view: EpisodeInput, end: AttemptEnd, now: datetime) -> Plan:
    """Finish the episode with the end of its attempt, suspend it, or begin another attempt."""
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
    # An external driver holds tokens of this attempt alone: it could not drive another pod.
    if spec.agent is None and status.pod_name is not None:
        return finish(view, _last(end, "an episode without agent has one attempt: its driver's tokens are of it"), now)
    if poisoned and len(poisoned_steps(view)) > MOST_POISONED:
        message = f"the sandbox died under {MOST_POISONED + 1} steps; it is not scored: {end.message}"
        return finish(view, AttemptEnd(reason="SandboxKilled", message=message), now)
    limit = spec.backoff_limit if spec.agent is not None else 0
    if failures > limit:
        return finish(view, _last(end, f"attempt {view.attempt} was the last (backoffLimit {limit})"), now)
    if disruptions > spec.max_disruptions:
        return finish(view, _last(end, f"it was disrupted {disruptions} times (maxDisruptions)"), now)
    if served_seconds(view) >= spec.active_deadline_seconds:
        late = AttemptEnd(reason="DeadlineExceeded", message=f"no time is left for another attempt: {end.message}")
        return finish(view, late, now)
    return _another_attempt(view, end, failures, disruptions, now)


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
    """The status after an attempt, whose number is used up."""
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
        termination=None,
        stages=Stages(),
    )


def _replay(view: EpisodeInput) -> ReplaySource | None:
    """The attempt that the next one replays: the last one that is not known to have fewer steps than one before it.

    The operator learns the number of steps late: a record may have more steps than are known, if none are known.
    """
    before, report = view.episode.status.replay, view.report
    if view.assignment is None or view.episode.spec.agent is None:
        return before
    steps = max(view.episode.status.steps, report.steps if report is not None else 0)
    return ReplaySource(attempt=view.attempt, steps=steps) if before is None or steps >= before.steps else before


def suspend(view: EpisodeInput, now: datetime) -> Plan:
    """Suspend the episode, and close the attempt if there is one; its pod is deleted once that is written."""
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
    message = "the sandbox is taken away until suspend is false"
    event = Emit(type="Normal", reason=ProgressReason.SUSPENDED, message=message)
    return Plan(actions=(PatchStatus(status=suspended), event))


def next_attempt_at(view: EpisodeInput) -> datetime | None:
    """The end of the back-off before the next attempt; None: no back-off."""
    status = view.episode.status
    ended = since(status.conditions, ConditionType.SANDBOX_READY, "False")
    if ended is None or not status.failures + status.disruptions:
        return None
    policy = view.policy
    return ended + timedelta(seconds=backoff(policy.backoff_seconds, policy.backoff_limit_seconds, status.failures))


def finish(view: EpisodeInput, end: AttemptEnd, now: datetime) -> Plan:
    """Write the last status. The pods are deleted once it is written: until then they hold the evidence."""
    status = finished_status(view, end, now)
    verdict = end.treatment is Treatment.VERDICT
    event = Emit(type="Normal" if verdict else "Warning", reason=end.reason, message=_event_message(status))
    return Plan(actions=(PatchStatus(status=status), event))


def finished_status(view: EpisodeInput, end: AttemptEnd, now: datetime) -> EpisodeStatus:
    """The status of the finished episode."""
    before = view.episode.status
    begun = before.pod_name is not None or view.pod is not None
    outcome = end.outcome
    if outcome is None and (begun or before.attempt):
        outcome = EpisodeOutcome(resolved=False, message=fit(end.message))
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
        termination=None,
        stages=_stages(view, now if outcome is not None and outcome.max_score else None),
    )


def after_finish(view: EpisodeInput, now: datetime) -> Plan:
    """Delete the pods, and the Episode after its time to live, if its set, where it has one, has counted it."""
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
    message = fit(f"attempt {view.attempt}: {end.message}; a new pod follows")
    return Plan(actions=(PatchStatus(status=status), Emit(type="Warning", reason=end.reason, message=message)))


def _last(end: AttemptEnd, why: str) -> AttemptEnd:
    return msgspec.structs.replace(end, message=f"{end.message}; {why}" if end.message else why)


def _conditions(before: Conditions, end: AttemptEnd, now: datetime) -> Conditions:
    outcome, verdict = end.outcome, end.treatment is Treatment.VERDICT
    scored = verdict and outcome is not None and outcome.max_score > 0
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
    reported = view.agent.stages if view.agent is not None else Stages()
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
