"""The durable phase between the decision to end an attempt and its end: ask the sidecar, delete the pod.

``status.ending`` is written first. Then the sidecar is asked for what it alone knows, for a bounded time; a cancelled
episode is scored meanwhile. Then the pod is deleted, and its last message read in ``ending``.
"""

from datetime import datetime, timedelta

from dgym.api import AttemptEnding, EndCause, ProgressReason
from dgym.wire import EndReason
from dgym.wire.assignments import AssignmentState
from dgym.wire.http import Path
from dgym_operator.controllers.conditions import EPOCH, fit
from dgym_operator.controllers.episode.clocks import scoring_seconds
from dgym_operator.controllers.episode.pods import AttemptEnd
from dgym_operator.controllers.episode.poison import poisoned_steps
from dgym_operator.controllers.episode.sidecar import ask, has_clock_of, sidecar_requests
from dgym_operator.controllers.inputs import EpisodeInput, sidecar_url
from dgym_operator.controllers.plan import DeletePod, PatchStatus, Plan, soonest, until

_STORING = (AssignmentState.STORING, AssignmentState.STORE_UNAVAILABLE)
_RELEASED = (AssignmentState.FINISHED, AssignmentState.FAILED)
CANCELLED = "Cancelled"


def terminate(
    view: EpisodeInput, end: AttemptEnd, cause: EndCause, now: datetime, *, reason: str = ProgressReason.TERMINATING
) -> Plan:
    """Record the end of the attempt, shown as ``reason``."""
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


def carry_out(view: EpisodeInput, now: datetime, seconds: float) -> Plan:
    """Ask the sidecar until it has answered or its time is over, then delete the pod; requeued after ``seconds``."""
    questions = _questions(view, now)
    return questions if questions is not None else Plan(actions=delete_pods(view), requeue_after=seconds)


def delete_pods(view: EpisodeInput, *, keep: int | None = None) -> tuple[DeletePod, ...]:
    """Delete all pods that are not being deleted already, except that of the attempt ``keep``."""
    kept = view.pod if keep == view.attempt else None
    pods = (*view.pods, *view.unusable_pods)
    return tuple(
        DeletePod(name=pod.metadata.name, uid=pod.metadata.uid)
        for pod in pods
        if pod is not kept and pod.metadata.deletion_timestamp is None
    )


def _questions(view: EpisodeInput, now: datetime) -> Plan | None:
    """What the sidecar is asked before its pod is deleted; None: nothing more."""
    pod, ending = view.pod, view.ending
    if pod is None or ending is None or pod.is_over or pod.metadata.deletion_timestamp is not None:
        return None
    since = ending.since or EPOCH
    if ending.reason == CANCELLED:
        return _cancelling(view, since, now)
    if _is_scoring(view, since):
        # It was closed before: its verdict will be in the pod's last message.
        deadline = since + timedelta(seconds=scoring_seconds(view))
        asked = soonest(sidecar_requests(view), ask(view, Path.STATE), until(deadline, now))
        return asked if now < deadline else None
    open_questions = [] if has_clock_of(view, since) else [Path.STATE]
    if pod.terminated("sandbox") is not None and view.sidecar.verified is None:
        open_questions.append(Path.VERIFY)
    deadline = since + timedelta(seconds=view.policy.ask_seconds)
    if not open_questions or not _has_sidecar(view) or now >= deadline:
        return None
    return soonest(ask(view, *open_questions), until(deadline, now))


def _is_scoring(view: EpisodeInput, since: datetime) -> bool:
    """Whether the sidecar was scoring the episode when it was last asked, and may come to an end of it."""
    state, ending = view.sidecar.state, view.ending
    if state is None or ending is None or not has_clock_of(view, since):
        return False
    return state.ending and not state.ended and ending.reason != EndReason.SANDBOX_LOST


def _cancelling(view: EpisodeInput, since: datetime, now: datetime) -> Plan | None:
    """Have the sidecar end and score the episode, and its agent store that; None: that is over, or takes too long."""
    report, ended = view.report, view.sidecar.cancelled_since
    if view.sidecar.has_lost_sandbox:
        return None  # There is nothing to score.
    requests = sidecar_requests(view)
    if report is not None and report.state in _STORING:
        # A verdict waits for its store.
        return soonest(requests, Plan(requeue_after=view.policy.repeat_seconds))
    if ended is None:
        deadline = since + timedelta(seconds=scoring_seconds(view))
        if not _has_sidecar(view) or now >= deadline:
            return None
        return soonest(requests, ask(view, Path.CANCEL), until(deadline, now))
    deadline = ended + timedelta(seconds=view.policy.release_seconds)
    return soonest(requests, until(deadline, now)) if _is_served(view) and now < deadline else None


def _has_sidecar(view: EpisodeInput) -> bool:
    """Whether the pod's sidecar has an address: that of an assigned attempt does, also where this view lacks it yet."""
    return view.assignment is not None or (view.pod is not None and bool(sidecar_url(view.pod)))


def _is_served(view: EpisodeInput) -> bool:
    """Whether an agent has the attempt, or may have it by now: it will fetch the verdict."""
    lost = view.agent is not None and view.agent.lost_since is not None
    return not lost and (view.report is None or view.report.state not in _RELEASED)
