"""Reads a pod's status: why the pod is not ready, why it cannot become ready, and how it and its attempt ended.

The kubelet and the scheduler may report several causes at the same time. Only the earliest in the order of a pod's
start is shown, because later causes follow from it. Messages that come from the user's image are untrusted: they are
quoted and cut, and decisions do not depend on them.

The end of an attempt also shows which of its steps are poisoned. During a poisoned step the sandbox or the sidecar
died, and the agent is the only explanation.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec

from dgym.api import TREATMENTS, PoisonedStep, ProgressReason, Treatment
from dgym.wire import AttemptOutcome, EndReason, Outcome
from dgym.wire.assignments import AssignmentState, AssignmentStatus
from dgym.wire.outcome import TerminationMessage, decode_termination
from dgym_operator.controllers._conditions import EPOCH, fit
from dgym_operator.controllers._inputs import EpisodeInput
from dgym_operator.objects import Container, Pod, Terminated

GATED = ProgressReason.SCHEDULING_GATED
_PULL = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "ImageInspectError",
        "RegistryUnavailable",
        "SignatureValidationFailed",
    }
)
_START = frozenset(
    {
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
        "PreCreateHookError",
        "PostStartHookError",
        "PreStartHookError",
    }
)
_COPY_FAILED = frozenset({66, 74, 77})
"""Exit codes with which the runner's ``copy_tree.py`` reports a failed copy. It does not use other codes."""
_NODE_LOST = frozenset({"NodeLost", "NodeShutdown", "Shutdown", "Terminated", "Preempting", "NodeAffinity"})
_NODE_FULL = ("OutOf", "UnexpectedAdmissionError")
_PRESSURE = ("The node was low on resource", "The node had condition")
_QUOTE_LIMIT = 600


class AttemptEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The end of an attempt.

    Attributes:
        reason: A key of ``TREATMENTS``, or Suspended.
        message: The cause, for users.
        outcome: The outcome, if there is one.
        disruption: True if the cause is the node or the removal of the pod from its node.
        settled: True if another outcome of the attempt cannot be stored: the sidecar or the only agent pod has reported
            the end, or the store was searched.
    """

    reason: str
    message: str = ""
    outcome: Outcome | None = None
    disruption: bool = False
    settled: bool = False

    @property
    def treatment(self) -> Treatment:
        """How the episode continues. An unknown reason, for instance of a newer version, is terminal."""
        return TREATMENTS.get(self.reason, Treatment.TERMINAL)


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """Why a pod waits. ``gated`` is True for a scheduling gate, which is not a failure and has no deadline."""

    reason: str
    message: str
    since: datetime
    gated: bool = False


def waiting_cause(pod: Pod) -> Cause | None:
    """Return why a pod is not ready: no node, a scheduling gate, an image, or a container that cannot be created.

    All these causes are temporary: Kubernetes retries, and the missing node, Secret or runtime may become available.
    """
    scheduled = pod.condition("PodScheduled")
    if scheduled is not None and scheduled.status == "False":
        since = scheduled.last_transition_time or created(pod)
        if scheduled.reason == GATED:
            message = "a scheduling gate holds the pod; the controller that set it (such as Kueue) removes it"
            return Cause(reason=GATED, message=message, since=since, gated=True)
        if scheduled.reason == "Unschedulable":
            return Cause(reason="Unschedulable", message=scheduled.message or "no node accepts the pod", since=since)
    since = (scheduled.last_transition_time if scheduled is not None else None) or created(pod)
    for container in _containers(pod):
        waiting = container.state.waiting
        if waiting is None:
            continue
        text = f"container {container.name}: {waiting.reason}: {waiting.message}".rstrip(": ")
        if waiting.reason in _PULL:
            return Cause(reason="ImagePullFailed", message=text, since=since)
        if waiting.reason in _START:
            return Cause(reason="SandboxStartFailed", message=text, since=since)
    return None


def slow_at(pod: Pod, seconds: float) -> datetime:
    """Return when a pod that is not ready counts as slow: ``seconds`` after it was scheduled, or else created."""
    scheduled = pod.condition("PodScheduled")
    placed = scheduled is not None and scheduled.status == "True"
    begun = scheduled.last_transition_time if scheduled is not None and placed else None
    return (begun or created(pod)) + timedelta(seconds=seconds)


def stuck_cause(pod: Pod, now: datetime, slow_seconds: float) -> Cause | None:
    """Return why the pod does not make progress: its waiting cause, or that it is slow, often because of a volume."""
    if pod.ready:
        return None
    cause, slow = waiting_cause(pod), slow_at(pod, slow_seconds)
    if cause is not None or now < slow:
        return cause
    return Cause(reason=f"not ready {slow_seconds:.0f} s after it was scheduled", message="", since=slow)


def has_image(pod: Pod) -> bool:
    """True if the task's image is on the pod's node: a container with this image was created there."""
    of_image = (pod.container("copy"), pod.container("sandbox"))
    return pod.ready or any(each is not None and each.state.waiting is None for each in of_image)


def start_failure(pod: Pod) -> AttemptEnd | None:
    """Return why an unassigned pod can never become ready, or None if that is not certain."""
    for container in pod.status.init_container_statuses:
        ended = container.state.terminated
        if ended is not None and ended.exit_code != 0:
            return _init_failure(container.name, ended)
    # If the sidecar has terminated too, ``find_ending`` reads its termination message.
    for name in ("sandbox", "verifier"):
        ended = pod.terminated(name)
        if ended is not None and pod.terminated("sidecar") is None:
            return AttemptEnd(reason="SandboxStartFailed", message=_image_failure(f"container {name}", ended))
    return None


def deleted_early(pod: Pod) -> AttemptEnd:
    """Return the end of an attempt whose pod another client deleted before it was assigned."""
    end = loss(pod)
    return end if end.disruption else lost("the pod was deleted before its assignment", disruption=True)


def loss(pod: Pod) -> AttemptEnd:
    """Return the end of a pod without termination message, from the pod's status."""
    status = pod.status
    for target in (pod.condition("DisruptionTarget"), pod.condition("TerminationTarget")):
        if target is not None and target.status == "True":
            return lost(f"{target.reason}: {target.message}", disruption=True)
    if status.reason == "DeadlineExceeded":
        return AttemptEnd(
            reason="DeadlineExceeded",
            message="the pod exceeded its own deadline, which is later than those of the episode",
        )
    if status.reason in _NODE_LOST or status.reason.startswith(_NODE_FULL):
        return lost(f"{status.reason}: {status.message}", disruption=True)
    if status.reason == "Evicted":
        return lost(f"Evicted: {status.message}", disruption=status.message.startswith(_PRESSURE))
    if status.reason:
        return lost(f"{status.reason}: {status.message}")
    ended = pod.terminated("sidecar")
    if ended is not None:
        why = f" ({ended.reason})" if ended.reason not in ("", "Error", "Completed") else ""
        return lost(f"the sidecar ended with exit code {ended.exit_code}{why} and left no result")
    if pod.metadata.deletion_timestamp is not None:
        return lost("the pod was deleted")
    return lost("the pod ended and left no result")


def sandbox_loss(pod: Pod) -> AttemptEnd:
    """Return the end of a pod whose sandbox terminated unexpectedly."""
    ended = pod.terminated("sandbox")
    return lost(f"the sandbox ended with {_exit_details(ended)}" if ended is not None else "the sandbox has ended")


def lost(message: str, *, disruption: bool = False) -> AttemptEnd:
    """Return the end of an attempt whose sandbox was lost."""
    return AttemptEnd(reason="SandboxLost", message=message.rstrip(": "), disruption=disruption)


def created(pod: Pod) -> datetime:
    """Return when the pod was created for its Episode, or claimed from a sandbox pool."""
    return pod.metadata.claimed_at or pod.metadata.creation_timestamp or EPOCH


def _init_failure(name: str, ended: Terminated) -> AttemptEnd:
    if name == "install":
        detail = f": {fit(ended.message, _QUOTE_LIMIT)}" if ended.message else ""
        return AttemptEnd(
            reason="SandboxStartFailed", message=f"init container install ended with {_exit_details(ended)}{detail}"
        )
    if name == "copy" and ended.exit_code in _COPY_FAILED:
        detail = f": {fit(ended.message, _QUOTE_LIMIT)}" if ended.message else f" ({_exit_details(ended)})"
        return AttemptEnd(reason="SetupFailed", message=f"the repository could not be copied out of the image{detail}")
    if name == "copy":
        return AttemptEnd(reason="SandboxStartFailed", message=_image_failure("init container copy", ended))
    text = f"init container {name} ended with {_exit_details(ended)}{_quoted(ended)}"
    return AttemptEnd(reason="SandboxStartFailed", message=text)


def _image_failure(what: str, ended: Terminated) -> str:
    """Return the message for a terminated container that only ran dgym's code in the image's interpreter."""
    remedy = "the image must run the task's interpreter (spec.interpreter, Python 3.6 or newer)"
    if ended.reason == "OOMKilled":
        remedy = "raise spec.resources.limits.memory"
    return f"{what} ended with {_exit_details(ended)}; {remedy}{_quoted(ended)}"


def _containers(pod: Pod) -> Iterator[Container]:
    yield from pod.status.init_container_statuses
    yield from pod.status.container_statuses


def _exit_details(ended: Terminated) -> str:
    parts = [f"exit code {ended.exit_code}"]
    if ended.reason and ended.reason not in ("Error", "Completed"):
        parts.append(ended.reason)
    return ", ".join(parts)


def _quoted(ended: Terminated) -> str:
    text = fit(ended.message, _QUOTE_LIMIT).replace('"', "'")
    return f'; its message: "{text}"' if text else ""


_SECOND = timedelta(seconds=1)
"""The kubelet truncates times to whole seconds."""
_REASON_LIMIT = 256
_OOM = "OOMKilled"
_UNOBSERVED_REASONS = ("ContainerStatusUnknown", "Unknown")
"""Reasons that the kubelet and containerd set after a reboot for a container whose end was not observed."""
_UNOBSERVED_CODE = 255
_SIGNALLED = 128
"""Exit codes from this value on mean that a signal ended the process."""


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """The attempt has ended or is ending, and more evidence may arrive within ``seconds``."""

    seconds: float


def find_ending(view: EpisodeInput, now: datetime) -> AttemptEnd | Wait | None:
    """Return how the attempt ended, a ``Wait`` while evidence is missing, or None while the attempt continues."""
    pod = view.pod
    if pod is None:
        return _report_or(view, _gone(view), None, now)
    end = _termination_message(view, pod)
    if end is not None:
        return end
    if pod.is_over:
        sidecar = pod.terminated("sidecar")
        return _report_or(
            view, _end_from_pod_status(view, pod), sidecar.finished_at if sidecar is not None else None, now
        )
    if pod.metadata.deletion_timestamp is not None:
        return _terminating(view, pod, pod.metadata.deletion_timestamp, now)
    if view.ending is not None:
        return None  # The pod must be deleted first. Its termination message is read after that.
    return _key_replaced(view, pod) or _released(view, now)


def recovery_failed(view: EpisodeInput) -> bool:
    """True if the agent pod that looks for a stored outcome could not determine whether it exists."""
    report = view.report
    if not view.is_recovering or report is None or report.state is not AssignmentState.FAILED:
        return False
    return report.reason is not EndReason.SANDBOX_LOST


def is_retried(report: AssignmentStatus | None) -> bool:
    """True if the reported failure can be tried again in the same sandbox pod."""
    if report is None or report.state is not AssignmentState.FAILED:
        return False
    end = _reported(report)
    return end.treatment is Treatment.REASSIGN or end.reason == "InternalError"


def is_disrupted(view: EpisodeInput) -> bool:
    """True if the attempt's pod was ever observed to be disrupted. Status keeps this after the pod is gone."""
    shown = view.pod is not None and loss(view.pod).disruption
    return shown or view.attempt in (view.disrupted_attempt, view.episode.status.disrupted_attempt)


def _end_from_pod_status(view: EpisodeInput, pod: Pod) -> AttemptEnd:
    """Return the end from the status of a pod that has terminated. An unassigned pod may have failed to start."""
    end = loss(pod)
    if view.episode.status.pod_name is not None or end.disruption or pod.status.reason:
        return end
    return start_failure(pod) or end


def _gone(view: EpisodeInput) -> AttemptEnd:
    if is_disrupted(view):
        message = f"pod {view.pod_name} was disrupted (drained, evicted, preempted or its node lost) and is gone"
        return lost(message, disruption=True)
    return lost(f"pod {view.pod_name} is gone and left no result")


def _termination_message(view: EpisodeInput, pod: Pod) -> AttemptEnd | None:
    """Return the end from the outcome in the sidecar's termination message, or None without an outcome."""
    message = termination_message(view, pod)
    if message is None or message.outcome is None:
        return None
    return _settled(message.outcome)


def termination_message(view: EpisodeInput, pod: Pod) -> TerminationMessage | None:
    """Return the sidecar's termination message, or None if it is incomplete or belongs to another attempt."""
    sidecar = pod.terminated("sidecar")
    message = decode_termination(sidecar.message) if sidecar is not None else None
    if message is None or (message.episode_uid, message.attempt) != (view.episode.metadata.uid, view.attempt):
        return None
    return message


def _report_or(view: EpisodeInput, pod_end: AttemptEnd, ended_at: datetime | None, now: datetime) -> AttemptEnd | Wait:
    """Return the end from the agent pod's report, or else ``pod_end``, from the pod's status.

    It is used when the termination message is missing. ``ended_at`` is when the sidecar terminated, if known.
    """
    if view.awaits_report:
        return Wait(seconds=view.policy.repeat_seconds)
    report = view.report
    if report is not None and report.state is AssignmentState.FINISHED:
        return _reported(report)
    if report is not None and report.state is AssignmentState.FAILED:
        return _failed(view, report, pod_end)
    if view.is_closing:
        return Wait(seconds=view.policy.repeat_seconds)
    if report is not None and ended_at is not None and not observed_since_end(view, ended_at):
        left = ended_at + timedelta(seconds=view.policy.report_seconds) - now
        if left > timedelta():
            return Wait(seconds=left.total_seconds())
    return pod_end


def observed_since_end(view: EpisodeInput, moment: datetime) -> bool:
    """True if the last report was requested at or after ``moment``, and at least a second after the sidecar ended."""
    ended = view.pod.terminated("sidecar") if view.pod is not None else None
    requested = view.agent_pod.requested if view.agent_pod is not None else None
    if ended is None or ended.finished_at is None or requested is None:
        return False
    return requested >= max(moment, ended.finished_at + _SECOND)


def _failed(view: EpisodeInput, report: AssignmentStatus, pod_end: AttemptEnd) -> AttemptEnd:
    """Return the end of an attempt whose pod has terminated and whose agent pod reports a failure.

    The reporting agent pod has not stored an outcome, but an earlier agent pod that was lost may have stored one. Then
    the end is not settled.
    """
    if view.is_recovering:
        return msgspec.structs.replace(pod_end, settled=not recovery_failed(view))
    settled = view.assignment is not None and not view.assignment.losses
    if is_retried(report) or pod_end.disruption or is_disrupted(view):
        return msgspec.structs.replace(pod_end, settled=settled)
    end = _reported(report)
    return msgspec.structs.replace(
        end, message=end.message or pod_end.message, settled=settled or end.treatment is not Treatment.NEW_POD
    )


def _terminating(view: EpisodeInput, pod: Pod, deadline: datetime, now: datetime) -> AttemptEnd | Wait:
    """Wait for the end of a pod that is being deleted: its termination message arrives then.

    A pod that does not terminate in time counts as lost with its node.
    """
    left = deadline + timedelta(seconds=view.policy.terminating_seconds) - now
    if left > timedelta():
        return Wait(seconds=left.total_seconds())
    pod_end = loss(pod)
    silent = lost(f"pod {pod.metadata.name} does not terminate, because its node does not respond", disruption=True)
    return _report_or(view, pod_end if pod_end.disruption else silent, None, now)


def _released(view: EpisodeInput, now: datetime) -> AttemptEnd | Wait | None:
    """Return the end from the report of an agent pod that has finished, after waiting for the pod to terminate."""
    report, agent_pod = view.report, view.agent_pod
    if report is None or agent_pod is None or not _has_ended(report):
        return None
    left = (agent_pod.since or now) + timedelta(seconds=view.policy.ending_seconds) - now
    if left > timedelta():
        return Wait(seconds=left.total_seconds())
    end = _reported(report)
    # The pod is still running. Its termination message is read before the attempt counts as lost.
    return msgspec.structs.replace(end, settled=end.treatment is not Treatment.NEW_POD)


def _key_replaced(view: EpisodeInput, pod: Pod) -> AttemptEnd | None:
    """Return the end of a pod that was created with another key, because its sidecar refuses all calls, or None.

    The evidence is the pod's label and not a refused call, because a program of the sandbox might answer on the
    sidecar's port.
    """
    key, report = pod.metadata.labels.key, view.report
    if not key or key == view.key_id or not view.key_id or view.is_closing or view.awaits_report:
        return None
    if report is not None and _has_ended(report) and _reported(report).treatment is not Treatment.NEW_POD:
        # The agent pod reports how the attempt ended, and not only that it cannot reach the sandbox pod.
        return None
    return lost(
        "the cluster's key was replaced: the sidecar refuses tokens that are derived from the new key", disruption=True
    )


def _has_ended(report: AssignmentStatus) -> bool:
    """True if the report is an end that is not tried again in the same pod."""
    if report.state is AssignmentState.FAILED:
        return not is_retried(report)
    return report.state is AssignmentState.FINISHED


def _reported(report: AssignmentStatus) -> AttemptEnd:
    if report.outcome is None:
        return AttemptEnd(reason="InternalError", message=report.message, settled=True)
    end = _settled(report.outcome)
    return end if report.state is AssignmentState.FINISHED else msgspec.structs.replace(end, outcome=None)


def _settled(outcome: AttemptOutcome) -> AttemptEnd:
    """Return the end from an outcome. The message is cut to the limit of the Episode's status."""
    shown = Outcome.of(outcome, message=fit(outcome.message))
    return AttemptEnd(reason=outcome.reason.value, message=outcome.message, outcome=shown, settled=True)


class _Death(NamedTuple):
    """The cause of a death, and the step during which it happened, as the sidecar reported it."""

    cause: str
    step: int | None


def poisoned_steps(view: EpisodeInput) -> tuple[PoisonedStep, ...]:
    """Return the recorded poisoned steps of the episode, and the poisoned step of the current attempt if it has one."""
    known = view.episode.status.poisoned_steps
    if any(each.attempt == view.attempt for each in known):
        return known
    found = _find(view)
    return known if found is None else (*known, found)


def is_poisoned(view: EpisodeInput) -> bool:
    """True if the agent caused the loss of the current attempt."""
    return any(each.attempt == view.attempt for each in poisoned_steps(view))


def _find(view: EpisodeInput) -> PoisonedStep | None:
    pod = view.pod
    if pod is None or view.assignment is None or is_disrupted(view):
        return None
    # Step 0 is the reset, which runs the task's commands and not the agent's. The sidecar may also report a step that
    # is already recorded, because an earlier attempt left it out of its replay.
    known = {0, *(each.step for each in view.episode.status.poisoned_steps)}
    for death in _deaths(view, pod):
        if death.step is not None and death.step not in known:
            return PoisonedStep(attempt=view.attempt, step=death.step, reason=fit(death.cause, _REASON_LIMIT))
    return None


def _deaths(view: EpisodeInput, pod: Pod) -> Iterator[_Death]:
    sandbox, sidecar, termination = pod.terminated("sandbox"), pod.terminated("sidecar"), termination_message(view, pod)
    answered = view.sidecar.poisoned_step
    poisoned = answered if answered is not None or termination is None else termination.poisoned_step
    in_flight = termination.step_in_flight if termination is not None and termination.outcome is None else None
    if pod.metadata.deletion_timestamp is None and pod.status.reason == "Evicted":
        # The kubelet terminates all containers of an evicted pod, so their own ends are not evidence.
        yield _Death(f"Evicted: {pod.status.message}", poisoned if poisoned is not None else in_flight)
    together = sandbox is not None and sidecar is not None and _killed_together(sandbox, sidecar)
    if sandbox is not None and not together and _by_itself(pod, sandbox):
        yield _Death(_describe_end(sandbox), poisoned)
    if sidecar is not None and not together and _by_itself(pod, sidecar):
        killed = sidecar.exit_code != 0 and termination is not None and not termination.shutdown_requested
        yield _Death(f"{_describe_end(sidecar)}: the sidecar", in_flight if killed else None)


def _by_itself(pod: Pod, ended: Terminated) -> bool:
    """True if the kubelet observed the end of the container at least a second before the pod was deleted or evicted."""
    if ended.reason in _UNOBSERVED_REASONS or ended.exit_code == _UNOBSERVED_CODE or pod.status.reason:
        return False
    if pod.metadata.deletion_timestamp is None:
        return True
    deleted = pod.metadata.deleted_at
    # The kubelet truncates times to whole seconds.
    return deleted is not None and ended.finished_at is not None and ended.finished_at + _SECOND <= deleted


def _killed_together(sandbox: Terminated, sidecar: Terminated) -> bool:
    """True if both were killed at about the same time, for instance by a shutdown of their node.

    If only the sidecar is killed, the sandbox exits normally. If only the sandbox is killed, the sidecar keeps running.
    """
    if _OOM in (sandbox.reason, sidecar.reason) or min(sandbox.exit_code, sidecar.exit_code) < _SIGNALLED:
        return False
    if sandbox.finished_at is None or sidecar.finished_at is None:
        return True
    return abs(sandbox.finished_at - sidecar.finished_at) <= _SECOND


def _describe_end(ended: Terminated) -> str:
    return ended.reason if ended.reason not in ("", "Error", "Completed") else f"exit code {ended.exit_code}"
