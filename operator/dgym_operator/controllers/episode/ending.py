"""How an attempt ended: by the sidecar's termination message, the agent's report, or the traces in the pod's status."""

from datetime import datetime, timedelta

import msgspec

from dgym.api import EpisodeOutcome, Treatment
from dgym.wire import EndReason, Outcome
from dgym.wire.assignments import AssignmentState, AssignmentStatus
from dgym.wire.termination import TerminationMessage, decode_termination
from dgym_operator.controllers.conditions import fit
from dgym_operator.controllers.episode.pods import AttemptEnd, loss, lost, start_failure
from dgym_operator.controllers.inputs import EpisodeInput
from dgym_operator.objects import Pod

_COUNT_LIMIT = 2**53
_URI_LIMIT = 2048
_SECOND = timedelta(seconds=1)
"""The kubelet's times are cut to whole ones."""


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """The attempt is over or about to be, and the evidence is incomplete for ``seconds``."""

    seconds: float


def find_ending(view: EpisodeInput, now: datetime) -> AttemptEnd | Wait | None:
    """How the attempt ended by all evidence so far; None while it continues."""
    pod = view.pod
    if pod is None:
        return _report_or(view, _gone(view), None, now)
    end = _termination_message(view, pod)
    if end is not None:
        return end
    if pod.is_over:
        sidecar = pod.terminated("sidecar")
        return _report_or(view, _traces(view, pod), sidecar.finished_at if sidecar is not None else None, now)
    if pod.metadata.deletion_timestamp is not None:
        return _terminating(view, pod, pod.metadata.deletion_timestamp, now)
    if view.ending is not None:
        return None  # The pod is deleted first, and its last message read.
    return _key_replaced(view, pod) or _released(view, now)


def recovery_failed(view: EpisodeInput) -> bool:
    """Whether the agent that was to look for a stored verdict could not find out whether there is one."""
    report = view.report
    if not view.is_recovering or report is None or report.state is not AssignmentState.FAILED:
        return False
    return report.reason is not EndReason.SANDBOX_LOST


def is_retried(report: AssignmentStatus | None) -> bool:
    """Whether the agent's failure can be tried again in the same pod."""
    if report is None or report.state is not AssignmentState.FAILED:
        return False
    end = _reported(report)
    return end.treatment is Treatment.REASSIGN or end.reason == "InternalError"


def is_disrupted(view: EpisodeInput) -> bool:
    """Whether the attempt's pod was ever observed to be disrupted; status records that, for when the pod is gone."""
    shown = view.pod is not None and loss(view.pod).disruption
    return shown or view.attempt in (view.disrupted_attempt, view.episode.status.disrupted_attempt)


def _traces(view: EpisodeInput, pod: Pod) -> AttemptEnd:
    """The end by the status of a pod that is over; a pod that was never assigned may have failed to start."""
    traces = loss(pod)
    if view.episode.status.pod_name is not None or traces.disruption or pod.status.reason:
        return traces
    return start_failure(pod) or traces


def _gone(view: EpisodeInput) -> AttemptEnd:
    if is_disrupted(view):
        message = f"pod {view.pod_name} was disrupted (drained, evicted, preempted or its node lost) and is gone"
        return lost(message, disruption=True)
    return lost(f"pod {view.pod_name} is gone and left no result")


def _termination_message(view: EpisodeInput, pod: Pod) -> AttemptEnd | None:
    """The verdict, or the failure that will not pass, in the sidecar's termination message."""
    message = last_words(view, pod)
    if message is None or message.reason is None:
        return None
    outcome = outcome_of(message)
    return AttemptEnd(reason=message.reason.value, message=message.message, outcome=outcome, settled=True)


def last_words(view: EpisodeInput, pod: Pod) -> TerminationMessage | None:
    """The sidecar's termination message, if it is whole and of this very attempt."""
    sidecar = pod.terminated("sidecar")
    message = decode_termination(sidecar.message) if sidecar is not None else None
    if message is None or (message.episode_uid, message.attempt) != (view.episode.metadata.uid, view.attempt):
        return None
    return message


def _report_or(view: EpisodeInput, traces: AttemptEnd, ended_at: datetime | None, now: datetime) -> AttemptEnd | Wait:
    """The end by the agent's report, which stands in for a missing termination message; else by the pod's traces."""
    if view.awaits_report:
        return Wait(seconds=view.policy.repeat_seconds)
    report = view.report
    if report is not None and report.state is AssignmentState.FINISHED:
        return _reported(report)
    if report is not None and report.state is AssignmentState.FAILED:
        return _failed(view, report, traces)
    if view.is_closing:
        return Wait(seconds=view.policy.repeat_seconds)
    if report is not None and ended_at is not None and not heard_since_end(view, ended_at):
        left = ended_at + timedelta(seconds=view.policy.report_seconds) - now
        if left > timedelta():
            return Wait(seconds=left.total_seconds())
    return traces


def heard_since_end(view: EpisodeInput, moment: datetime) -> bool:
    """Whether the agent's last report was requested after that, and after the end of the sidecar in a second before."""
    ended = view.pod.terminated("sidecar") if view.pod is not None else None
    asked = view.agent.asked if view.agent is not None else None
    if ended is None or ended.finished_at is None or asked is None:
        return False
    return asked >= max(moment, ended.finished_at + _SECOND)


def _failed(view: EpisodeInput, report: AssignmentStatus, traces: AttemptEnd) -> AttemptEnd:
    """The end of an attempt whose pod is over and whose agent reports a failure: it has stored no verdict.

    An agent that was lost before may have stored one.
    """
    if view.is_recovering:
        return msgspec.structs.replace(traces, settled=not recovery_failed(view))
    settled = view.assignment is not None and not view.assignment.losses
    if is_retried(report) or traces.disruption or is_disrupted(view):
        return msgspec.structs.replace(traces, settled=settled)
    end = _reported(report)
    return msgspec.structs.replace(
        end, message=end.message or traces.message, settled=settled or end.treatment is not Treatment.NEW_POD
    )


def _terminating(view: EpisodeInput, pod: Pod, deadline: datetime, now: datetime) -> AttemptEnd | Wait:
    """The pod is being deleted. Its termination message comes with its end, unless its node is lost."""
    left = deadline + timedelta(seconds=view.policy.terminating_seconds) - now
    if left > timedelta():
        return Wait(seconds=left.total_seconds())
    traces = loss(pod)
    silent = lost(f"pod {pod.metadata.name} does not end; its node does not answer", disruption=True)
    return _report_or(view, traces if traces.disruption else silent, None, now)


def _released(view: EpisodeInput, now: datetime) -> AttemptEnd | Wait | None:
    """The end by a report that the agent has released the pod, after waiting for the pod's own end."""
    report, agent = view.report, view.agent
    if report is None or agent is None or not _has_ended(report):
        return None
    left = (agent.since or now) + timedelta(seconds=view.policy.ending_seconds) - now
    if left > timedelta():
        return Wait(seconds=left.total_seconds())
    end = _reported(report)
    # The pod goes on. What it holds is read before the attempt counts as lost.
    return msgspec.structs.replace(end, settled=end.treatment is not Treatment.NEW_POD)


def _key_replaced(view: EpisodeInput, pod: Pod) -> AttemptEnd | None:
    """The end of a pod that was made with another key, or by a version without proofs: its sidecar refuses the callers.

    The evidence is the pod's label: a program of the sandbox might answer on the sidecar's port.
    """
    key, proof, report = pod.metadata.labels.key, pod.metadata.annotations.proof, view.report
    current = key == view.key_id and bool(proof)
    if not key or not view.key_id or current or view.is_closing or view.awaits_report:
        return None
    if report is not None and _has_ended(report) and _reported(report).treatment is not Treatment.NEW_POD:
        # The agent reports the attempt's end, and not only that it has lost access to the pod.
        return None
    message = "the cluster's key was replaced: the sidecar refuses tokens that come from the new one"
    if key == view.key_id:
        message = "the operator was upgraded: the sidecar, of an earlier version, refuses the epochs that are given now"
    return lost(message, disruption=True)


def _has_ended(report: AssignmentStatus) -> bool:
    """Whether the agent reports an end that is not tried again in the same pod."""
    if report.state is AssignmentState.FAILED:
        return not is_retried(report)
    return report.state is AssignmentState.FINISHED


def _reported(report: AssignmentStatus) -> AttemptEnd:
    reason = report.reason.value if report.reason is not None else "InternalError"
    outcome = outcome_of(report.outcome) if report.outcome is not None else None
    message = report.message or (report.outcome.message if report.outcome is not None else "")
    return AttemptEnd(reason=reason, message=message, outcome=outcome, settled=True)


def outcome_of(source: Outcome | TerminationMessage) -> EpisodeOutcome:
    """The outcome for the Episode's status, within the bounds of its definition."""
    return EpisodeOutcome(
        resolved=source.resolved,
        score=_count(source.score),
        max_score=_count(source.max_score),
        steps=_count(source.steps),
        rewrites=_count(source.rewrites),
        input_tokens=_count(source.input_tokens),
        output_tokens=_count(source.output_tokens),
        result_uri=source.result_uri if len(source.result_uri) <= _URI_LIMIT else "",
        message=fit(source.message),
    )


def _count(number: int) -> int:
    return max(0, min(number, _COUNT_LIMIT))
