"""The decision about one Episode.

The decision is level-triggered: it depends only on the observed state, and not on events, which may be missed. It first
checks whether the attempt has ended, then the user's requests, and then continues the current attempt or starts one.
"""

from datetime import datetime

import msgspec

from dgym.api import ConditionType, EndCause, ProgressReason
from dgym.wire import read_cost, write_cost
from dgym_operator.controllers._conditions import is_outdated, is_true, set_condition
from dgym_operator.controllers._inputs import EpisodeInput, attempt_of
from dgym_operator.controllers._plan import DeleteEpisode, Emit, LookUpPod, PatchStatus, Plan, soonest
from dgym_operator.controllers.episode._attempt import create, progress, run, start
from dgym_operator.controllers.episode._clocks import sidecar_requests
from dgym_operator.controllers.episode._finish import (
    CANCELLED,
    after_finish,
    delete_pods,
    end_attempt,
    finish,
    finish_attempt,
    lose_sandbox,
    record_disruption,
    shut_down_pod,
    suspend,
    terminate,
)
from dgym_operator.controllers.episode._pod_status import (
    AttemptEnd,
    Wait,
    deleted_early,
    find_ending,
    is_disrupted,
    termination_message,
)
from dgym_operator.objects import EpisodeView

_STALE_SECONDS = 1.0


def decide(view: EpisodeInput, now: datetime) -> Plan:
    """Return the plan for the Episode."""
    if view.episode.metadata.deletion_timestamp is not None:
        return Plan()
    plan, episode = _with_cost(view, _decide(view, now)), view.episode
    writes = any(isinstance(action, PatchStatus | DeleteEpisode) for action in plan.actions)
    if writes or not is_outdated(episode.status.observed_generation, episode.metadata.generation):
        return plan
    return msgspec.structs.replace(plan, actions=(PatchStatus(status=view.status_with()), *plan.actions))


def _with_cost(view: EpisodeInput, plan: Plan) -> Plan:
    """Add the highest known cost to the writes of status in the plan. The cost never decreases."""
    if not any(isinstance(action, PatchStatus) for action in plan.actions):
        return plan
    termination = termination_message(view, view.pod) if view.pod is not None else None
    sources = (
        view.report.price if view.report is not None else None,
        termination.price if termination is not None else None,
    )
    cost = max(view.episode.status.cost, *(source or "" for source in sources), key=read_cost)
    actions = tuple(
        PatchStatus(status=msgspec.structs.replace(action.status, cost=_fit_cost(cost)), progress=action.progress)
        if isinstance(action, PatchStatus)
        else action
        for action in plan.actions
    )
    return msgspec.structs.replace(plan, actions=actions)


def _fit_cost(text: str) -> str:
    """Return the cost within the limits of the Episode's CRD. The text comes from an agent pod and is not trusted."""
    cost = read_cost(text)
    return write_cost(cost) if cost else ""


def _decide(view: EpisodeInput, now: datetime) -> Plan:
    if view.episode.is_finished:
        return after_finish(view, now)
    if any(attempt_of(pod) > view.attempt for pod in view.pods):
        # A pod of a later attempt is created only after status has ended this attempt, so the view is old.
        return Plan(requeue_after=_STALE_SECONDS)
    stale = delete_pods(view, keep=view.attempt)
    plan = _decide_attempt(view, now)
    return msgspec.structs.replace(plan, actions=(*stale, *plan.actions)) if stale else plan


def still_requires_pod(read: EpisodeView, uid: str, attempt: int) -> bool:
    """True if the Episode, as just read, still requests the pod of this attempt. ``uid`` is the UID in the old view."""
    status, spec = read.status, read.spec
    same = read.metadata.uid == uid and read.metadata.deletion_timestamp is None
    over = read.is_finished or spec.cancel or spec.suspend
    return same and not over and status.pod_name is None and status.attempt + 1 == attempt


def _decide_attempt(view: EpisodeInput, now: datetime) -> Plan:
    begun = view.episode.status.pod_name is not None
    if begun and view.pod is None and view.pod_name not in view.absent:
        reference = view.episode.status.pod_ref
        look_up = LookUpPod(name=view.pod_name, uid=reference.uid if reference is not None else "")
        return Plan(actions=(look_up,), requeue_after=view.policy.repeat_seconds)
    if not begun and view.pod is not None and view.pod.metadata.deletion_timestamp is not None:
        return finish_attempt(view, deleted_early(view.pod), now)
    # A disrupted pod that is gone has used up its attempt, even if it was never assigned. The next pod gets a new name.
    ending = find_ending(view, now) if begun or view.pod is not None or is_disrupted(view) else None
    if isinstance(ending, AttemptEnd):
        return end_attempt(view, ending, now)
    disrupted = record_disruption(view)
    if disrupted is not None:
        return disrupted
    if view.ending is not None:
        return _end(view, ending, now)
    lost = lose_sandbox(view, now) if begun else None
    if lost is not None:
        return lost
    if ending is not None:
        # The sidecar is called meanwhile: an agent pod may report the loss of a sandbox before the watch delivers it.
        requests = sidecar_requests(view) if view.pod is not None and not view.pod.is_over else Plan()
        return soonest(requests, Plan(requeue_after=ending.seconds))
    requested = _user_request(view, now)
    if requested is not None:
        return requested
    if begun:
        return run(view, now)
    return start(view, view.pod, now) if view.pod is not None else create(view, now)


def _end(view: EpisodeInput, wait: Wait | None, now: datetime) -> Plan:
    plan = shut_down_pod(view, now, wait.seconds if wait is not None else view.policy.repeat_seconds)
    # A cancelled episode is scored and may then wait for the results store. Status shows that as progress.
    shown = view.is_closing and view.ending is not None and view.ending.reason == CANCELLED
    return soonest(plan, progress(view, now)) if shown else plan


def _user_request(view: EpisodeInput, now: datetime) -> Plan | None:
    """Return the plan for ``cancel`` and ``suspend`` in the spec, or None if they require nothing."""
    spec, status = view.episode.spec, view.episode.status
    begun, suspended = status.pod_name is not None, is_true(status.conditions, ConditionType.SUSPENDED)
    # While the episode is being scored or stored, the requests wait for its outcome.
    free = not view.is_closing and not view.awaits_report
    if spec.cancel:
        if not begun:
            return finish(view, AttemptEnd(reason=CANCELLED, message="cancelled before it began"), now)
        end = AttemptEnd(reason=CANCELLED, message="cancelled")
        return terminate(view, end, EndCause.USER, now) if free else None
    if spec.suspend and free:
        if begun:
            end = AttemptEnd(reason=ProgressReason.SUSPENDED, message="suspended")
            return terminate(view, end, EndCause.USER, now)
        return suspend(view, now) if not suspended or view.pod is not None else Plan()
    if suspended and not spec.suspend:
        conditions = set_condition(status.conditions, ConditionType.SUSPENDED, "False", reason="Resumed", at=now)
        resumed = view.status_with(conditions=conditions, reason=ProgressReason.PENDING, message="")
        event = Emit(type="Normal", reason="Resumed", message="a new sandbox is created")
        return Plan(actions=(PatchStatus(status=resumed), event))
    return None
