"""What to do about one Episode now.

Level-triggered: the same view gives the same plan, whatever happened in between, so that nothing is lost by an event
that was. An end is looked at first, then what the user asked for, then the attempt that runs or the next one.
"""

from datetime import datetime

import msgspec

from dgym.api import ConditionType, EpisodeStatus, ProgressReason
from dgym_operator.controllers.conditions import Conditions, is_true, observed, set_condition
from dgym_operator.controllers.episode.conclusion import (
    after_finish,
    close_attempt,
    conclude,
    delete_pods,
    finish,
    record_disruption,
)
from dgym_operator.controllers.episode.ending import find_ending, is_disrupted
from dgym_operator.controllers.episode.pods import Ended, deleted_early
from dgym_operator.controllers.episode.running import run
from dgym_operator.controllers.episode.starting import create, start
from dgym_operator.controllers.inputs import EpisodeInput, attempt_of
from dgym_operator.controllers.plan import Emit, LookUpPod, PatchStatus, Plan
from dgym_operator.objects import EpisodeView

_STALE_SECONDS = 1.0


def decide(view: EpisodeInput, now: datetime) -> Plan:
    """What to do now, and when to look again."""
    if view.episode.metadata.deletion_timestamp is not None:
        return Plan()
    if is_true(view.episode.status.conditions, ConditionType.FINISHED):
        return after_finish(view, now)
    if any(attempt_of(pod) > view.attempt for pod in view.pods):
        # A pod of a later attempt is only made once the status says that this one is over: the view is old.
        return Plan(requeue_after=_STALE_SECONDS)
    stale = delete_pods(view, keep=view.attempt)
    plan = _attempt(view, now)
    return msgspec.structs.replace(plan, actions=(*stale, *plan.actions)) if stale else plan


def still_wants(read: EpisodeView, uid: str, attempt: int) -> bool:
    """Whether the Episode, read anew, still wants the pod of this attempt made. ``uid`` is that of the view before."""
    status, spec = read.status, read.spec
    same = read.metadata.uid == uid and read.metadata.deletion_timestamp is None
    over = is_true(status.conditions, ConditionType.FINISHED) or spec.cancel or spec.suspend
    return same and not over and status.pod_name is None and status.attempt + 1 == attempt


def _attempt(view: EpisodeInput, now: datetime) -> Plan:
    begun = view.episode.status.pod_name is not None
    if begun and view.pod is None and view.pod_name not in view.absent:
        return Plan(actions=(LookUpPod(name=view.pod_name),), requeue_after=view.policy.repeat_seconds)
    if not begun and view.pod is not None and view.pod.metadata.deletion_timestamp is not None:
        return conclude(view, deleted_early(view.pod), now)
    # A disrupted pod that is gone has used up its attempt, even without an agent: the next pod has another name.
    ending = find_ending(view, now) if begun or view.pod is not None or is_disrupted(view) else None
    if isinstance(ending, Ended):
        return conclude(view, ending, now)
    disrupted = record_disruption(view)
    if disrupted is not None:
        return disrupted
    if ending is not None:
        return Plan(requeue_after=ending.seconds)
    asked = _asked(view, now) if view.episode.status.termination is None else None
    if asked is not None:
        return asked
    if begun:
        return run(view, now)
    return start(view, view.pod, now) if view.pod is not None else create(view, now)


def _asked(view: EpisodeInput, now: datetime) -> Plan | None:
    """What the user asks for: the end, a pause, or that it goes on."""
    spec, status = view.episode.spec, view.episode.status
    begun, suspended = status.pod_name is not None, is_true(status.conditions, ConditionType.SUSPENDED)
    if spec.cancel:
        # An episode that is served is ended by its sidecar, which scores what there is.
        return None if begun else finish(view, Ended(reason="Cancelled", message="cancelled before it began"), now)
    if spec.suspend and not view.is_closed and not view.unheard:
        return _suspend(view, now) if not suspended or view.pod is not None else Plan()
    if suspended and not spec.suspend:
        return _resume(view, now)
    return None


def _suspend(view: EpisodeInput, now: datetime) -> Plan:
    """Close the attempt; its pod is deleted once that is written."""
    status = view.episode.status
    if view.pod is not None or status.pod_name is not None:
        status = close_attempt(view, now, reason=ProgressReason.SUSPENDED, message="")
    conditions = set_condition(
        status.conditions, ConditionType.SUSPENDED, "True", reason=ProgressReason.SUSPENDED, at=now
    )
    status = _changed(view, status, conditions, ProgressReason.SUSPENDED)
    event = Emit(
        type="Normal", reason=ProgressReason.SUSPENDED, message="the sandbox is taken away until suspend is false"
    )
    return Plan(actions=(PatchStatus(status=status), event))


def _resume(view: EpisodeInput, now: datetime) -> Plan:
    status = view.episode.status
    conditions = set_condition(status.conditions, ConditionType.SUSPENDED, "False", reason="Resumed", at=now)
    status = _changed(view, status, conditions, ProgressReason.PENDING)
    event = Emit(type="Normal", reason="Resumed", message="a new sandbox is made")
    return Plan(actions=(PatchStatus(status=status), event))


def _changed(view: EpisodeInput, status: EpisodeStatus, conditions: Conditions, reason: str) -> EpisodeStatus:
    return msgspec.structs.replace(
        status,
        conditions=conditions,
        reason=reason,
        message="",
        observed_generation=observed(status, view.episode.metadata.generation),
    )
