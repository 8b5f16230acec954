"""Whether an attempt is over, and by what: the sidecar's last message, the agent's word, or the traces in the pod."""

from datetime import datetime, timedelta

import msgspec

from dgym.api import EpisodeOutcome, Treatment
from dgym.wire import Outcome
from dgym.wire.assignments import AssignmentState, AssignmentStatus
from dgym.wire.termination import TerminationMessage, decode_termination
from dgym_operator.controllers.conditions import fit
from dgym_operator.controllers.episode.pods import Ended, loss, lost, start_failure
from dgym_operator.controllers.inputs import EpisodeInput
from dgym_operator.objects import Pod

_COUNT_LIMIT = 2**53
_URI_LIMIT = 2048


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """The attempt is over or about to be; how is not known yet. Ask again after ``seconds``."""

    seconds: float


def find_ending(view: EpisodeInput, now: datetime) -> Ended | Wait | None:
    """How the attempt ended; None while it goes on.

    The end that the operator has decided on stands in for a verdict that the pod did not leave.
    """
    found = _evidence(view, now)
    decided = view.episode.status.termination
    if isinstance(found, Ended) and found.treatment is Treatment.NEW_POD and decided is not None:
        return Ended(reason=decided.reason, message=decided.message)
    return found


def _evidence(view: EpisodeInput, now: datetime) -> Ended | Wait | None:
    pod = view.pod
    if pod is None:
        return _word_or(view, _gone(view), None, now)
    ended = _sidecar_message(view, pod)
    if ended is not None:
        return ended
    if _is_over(pod):
        return _word_or(view, _traces(view, pod), _ended_at(pod), now)
    if pod.metadata.deletion_timestamp is not None:
        return _terminating(view, pod, pod.metadata.deletion_timestamp, now)
    return _key_replaced(view, pod) or _running(view, now)


def is_retried(report: AssignmentStatus | None) -> bool:
    """Whether the agent gave up on an episode that can be tried again in the same pod."""
    if report is None or report.state is not AssignmentState.FAILED:
        return False
    ended = _reported(report)
    return ended.treatment is Treatment.REASSIGN or ended.reason == "InternalError"


def is_disrupted(view: EpisodeInput) -> bool:
    """Whether the attempt's pod was ever seen to be disrupted; status keeps that, for when the pod is gone."""
    shown = view.pod is not None and loss(view.pod).disruption
    return shown or view.attempt in (view.disrupted_attempt, view.episode.status.disrupted_attempt)


def _traces(view: EpisodeInput, pod: Pod) -> Ended:
    """What is to be seen in a pod that is over; one that served nobody may never have come up."""
    traces = loss(pod)
    if view.episode.status.pod_name is not None or traces.disruption or pod.status.reason:
        return traces
    return start_failure(pod) or traces


def _gone(view: EpisodeInput) -> Ended:
    if is_disrupted(view):
        message = f"pod {view.pod_name} was disrupted (drained, evicted, preempted or its node lost) and is gone"
        return lost(message, disruption=True)
    return lost(f"pod {view.pod_name} is gone and left no result")


def _sidecar_message(view: EpisodeInput, pod: Pod) -> Ended | None:
    """The verdict, if the sidecar left one that is whole and of this very attempt."""
    sidecar = pod.container("sidecar")
    if sidecar is None or sidecar.state.terminated is None:
        return None
    message = decode_termination(sidecar.state.terminated.message)
    if message is None:
        return None
    if (message.episode_uid, message.attempt) != (view.episode.metadata.uid, view.attempt):
        return None
    return Ended(reason=message.reason.value, message=message.message, outcome=outcome_of(message))


def _is_over(pod: Pod) -> bool:
    sidecar = pod.container("sidecar")
    if sidecar is not None and sidecar.state.terminated is not None:
        return True
    return pod.status.phase in ("Failed", "Succeeded")


def _ended_at(pod: Pod) -> datetime | None:
    sidecar = pod.container("sidecar")
    if sidecar is not None and sidecar.state.terminated is not None:
        return sidecar.state.terminated.finished_at
    return None


def _word_or(view: EpisodeInput, traces: Ended, ended_at: datetime | None, now: datetime) -> Ended | Wait:
    """The agent's word, which stands in for a message that is missing; the traces if it has none to give."""
    if view.unheard:
        return Wait(seconds=view.policy.repeat_seconds)
    report = view.report
    if report is not None and report.state is AssignmentState.FINISHED:
        return _reported(report)
    if report is not None and report.state is AssignmentState.FAILED:
        told = _reported(report)
        if is_retried(report) or traces.disruption or is_disrupted(view):
            return traces
        return told if told.message else msgspec.structs.replace(told, message=traces.message)
    if view.is_closed:
        return Wait(seconds=view.policy.repeat_seconds)
    if report is not None and ended_at is not None:
        left = ended_at + timedelta(seconds=view.policy.report_seconds) - now
        if left > timedelta():
            return Wait(seconds=left.total_seconds())
    return traces


def _terminating(view: EpisodeInput, pod: Pod, deadline: datetime, now: datetime) -> Ended | Wait:
    """Somebody deletes the pod. What it has to say comes with its end, unless its node is lost."""
    left = deadline + timedelta(seconds=view.policy.terminating_seconds) - now
    if left > timedelta():
        return Wait(seconds=left.total_seconds())
    traces = loss(pod)
    silent = lost(f"pod {pod.metadata.name} does not end; its node does not answer", disruption=True)
    return _word_or(view, traces if traces.disruption else silent, None, now)


def _running(view: EpisodeInput, now: datetime) -> Ended | Wait | None:
    """The pod goes on; the agent may be done with it."""
    report, agent = view.report, view.agent
    if report is None or agent is None:
        return None
    if report.state is AssignmentState.FINISHED or (report.state is AssignmentState.FAILED and not is_retried(report)):
        left = (agent.since or now) + timedelta(seconds=view.policy.ending_seconds) - now
        return Wait(seconds=left.total_seconds()) if left > timedelta() else _reported(report)
    return None


def _key_replaced(view: EpisodeInput, pod: Pod) -> Ended | None:
    """The end of a pod that was made with another key: its sidecar refuses operator and agents from now on.

    The evidence is the pod's label: what answers on the sidecar's port might be a program of the sandbox.
    """
    key = pod.metadata.labels.key
    if not key or not view.key_id or key == view.key_id or view.is_closed or view.unheard or _is_decided(view.report):
        return None
    return lost(
        "the cluster's key was replaced: the sidecar refuses tokens that come from the new one", disruption=True
    )


def _is_decided(report: AssignmentStatus | None) -> bool:
    """Whether the agent has the attempt's end, and not only lost access to its pod."""
    if report is None or report.state not in (AssignmentState.FINISHED, AssignmentState.FAILED) or is_retried(report):
        return False
    return _reported(report).treatment is not Treatment.NEW_POD


def _reported(report: AssignmentStatus) -> Ended:
    reason = report.reason.value if report.reason is not None else "InternalError"
    outcome = outcome_of(report.outcome) if report.outcome is not None else None
    message = report.message or (report.outcome.message if report.outcome is not None else "")
    return Ended(reason=reason, message=message, outcome=outcome)


def outcome_of(told: Outcome | TerminationMessage) -> EpisodeOutcome:
    """The outcome in the bounds that the API server holds a status to."""
    return EpisodeOutcome(
        resolved=told.resolved,
        score=_count(told.score),
        max_score=_count(told.max_score),
        steps=_count(told.steps),
        rewrites=_count(told.rewrites),
        input_tokens=_count(told.input_tokens),
        output_tokens=_count(told.output_tokens),
        result_uri=told.result_uri if len(told.result_uri) <= _URI_LIMIT else "",
        message=fit(told.message),
    )


def _count(number: int) -> int:
    return max(0, min(number, _COUNT_LIMIT))
