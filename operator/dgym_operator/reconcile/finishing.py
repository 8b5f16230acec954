"""The end of an episode: its last status, and what is taken away after it."""

from datetime import datetime, timedelta

import msgspec

from dgym.api import ConditionType, EpisodeOutcome, EpisodeStatus, ResolvedReason, Stages, Treatment
from dgym_operator.reconcile.conditions import Conditions, fit, observed, set_condition
from dgym_operator.reconcile.ended import Ended
from dgym_operator.reconcile.inputs import EpisodeInput
from dgym_operator.reconcile.plan import Action, DeleteEpisode, DeletePod, Emit, PatchStatus, Plan


def finish(view: EpisodeInput, ended: Ended, now: datetime) -> Plan:
    """Write the end down. The pod goes once it is written: until then it holds what was not."""
    status = finished_status(view, ended, now)
    verdict = ended.treatment is Treatment.VERDICT
    event = Emit(type="Normal" if verdict else "Warning", reason=ended.reason, message=_told(status))
    return Plan(actions=(PatchStatus(status=status), event))


def finished_status(view: EpisodeInput, ended: Ended, now: datetime) -> EpisodeStatus:
    """The last status."""
    before = view.episode.status
    begun = before.pod_name is not None or view.pod is not None
    outcome = ended.outcome
    if outcome is None and (begun or before.attempt):
        outcome = EpisodeOutcome(resolved=False, message=fit(ended.message))
    return msgspec.structs.replace(
        before,
        conditions=_conditions(before.conditions, ended, now),
        reason=ended.reason[:64],
        message=fit(ended.message),
        steps=outcome.steps if outcome is not None and outcome.steps else before.steps,
        outcome=outcome,
        attempt=view.attempt if begun else before.attempt,
        completion_time=now,
        termination=None,
        stages=_stages(view, now if outcome is not None and outcome.max_score else None),
        observed_generation=observed(before, view.episode.metadata.generation),
    )


def after_finish(view: EpisodeInput, now: datetime) -> Plan:
    """Delete the pods; the Episode too once its time to live is over and its set, if it has one, has counted it."""
    actions: tuple[Action, ...] = delete_pods(view)
    metadata, ttl = view.episode.metadata, view.episode.spec.ttl_seconds_after_finished
    if ttl is None or (view.owned_by_set and not view.counted):
        return Plan(actions=actions)
    left = (view.episode.status.completion_time or now) + timedelta(seconds=ttl) - now
    if left > timedelta():
        return Plan(actions=actions, requeue_after=left.total_seconds())
    return Plan(actions=(*actions, DeleteEpisode(name=metadata.name, uid=metadata.uid)))


def delete_pods(view: EpisodeInput, *, keep: int | None = None) -> tuple[DeletePod, ...]:
    """Delete all pods that are not being deleted already, but that of the attempt ``keep``."""
    kept = view.pod if keep == view.attempt else None
    return tuple(
        DeletePod(name=pod.metadata.name, uid=pod.metadata.uid)
        for pod in view.pods
        if pod is not kept and pod.metadata.deletion_timestamp is None
    )


def _conditions(before: Conditions, ended: Ended, now: datetime) -> Conditions:
    outcome, verdict = ended.outcome, ended.treatment is Treatment.VERDICT
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
    return set_condition(after, ConditionType.FINISHED, "True", reason=ended.reason, message=ended.message, at=now)


def _stages(view: EpisodeInput, verified: datetime | None) -> Stages:
    stages = view.episode.status.stages
    heard = view.agent.stages if view.agent is not None else Stages()
    sidecar = view.pod.container("sidecar") if view.pod is not None else None
    ended = sidecar.state.terminated if sidecar is not None else None
    if verified is not None and ended is not None and ended.finished_at is not None:
        verified = ended.finished_at
    return msgspec.structs.replace(
        stages,
        first_step=stages.first_step or heard.first_step,
        last_step=heard.last_step or stages.last_step,
        verified=verified,
    )


def _told(status: EpisodeStatus) -> str:
    outcome = status.outcome
    score = f"score {outcome.score} of {outcome.max_score}" if outcome is not None and outcome.max_score else "no score"
    message = next((each.message for each in status.conditions if each.type == ConditionType.FINISHED), "")
    return fit(f"{score}: {message}" if message else score)
