"""Reads a pod's status: why it is not ready, why it never will be, and how it ended.

The kubelet and the scheduler report several causes at a time. The first in the order of a start is shown, and none that
only follows from it. Messages of the user's image are data from an adversary: they are quoted, cut short, and
no decision rests on them.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta

import msgspec

from dgym.api import TREATMENTS, EpisodeOutcome, ProgressReason, Treatment
from dgym_operator.controllers.conditions import EPOCH, fit
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
"""Exit codes of the runner's ``copy_tree.py`` when it could not copy; other codes are not its own."""
_NODE_LOST = frozenset({"NodeLost", "NodeShutdown", "Shutdown", "Terminated", "Preempting", "NodeAffinity"})
_NODE_FULL = ("OutOf", "UnexpectedAdmissionError")
_PRESSURE = ("The node was low on resource", "The node had condition")
_QUOTE_LIMIT = 600


class AttemptEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The end of an attempt.

    Attributes:
        reason: One of ``TREATMENTS``, or Suspended.
        message: The cause, for people.
        outcome: Of a verdict.
        disruption: Whether the cause is the node, or a removal of the pod from it.
        settled: Whether no other verdict of the attempt can be stored: the sidecar or the only agent has said so, or
            the store was asked.
    """

    reason: str
    message: str = ""
    outcome: EpisodeOutcome | None = None
    disruption: bool = False
    settled: bool = False

    @property
    def treatment(self) -> Treatment:
        """How the episode continues; an unknown reason, as of a newer version, is terminal."""
        return TREATMENTS.get(self.reason, Treatment.TERMINAL)


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """The cause why a pod waits. ``gated``: a scheduling gate, which is no failure and has no deadline."""

    reason: str
    message: str
    since: datetime
    gated: bool = False


def waiting_cause(pod: Pod) -> Cause | None:
    """Why a pod is not ready: no node, a gate, an image, or a container that cannot be created.

    The kubelet retries all of them, and what is missing (room, a Secret, a runtime that answers) may come.
    """
    scheduled = pod.condition("PodScheduled")
    if scheduled is not None and scheduled.status == "False":
        since = scheduled.last_transition_time or created(pod)
        if scheduled.reason == GATED:
            message = "a scheduling gate holds the pod; the controller that set it (such as Kueue) removes it"
            return Cause(reason=GATED, message=message, since=since, gated=True)
        if scheduled.reason == "Unschedulable":
            return Cause(reason="Unschedulable", message=scheduled.message or "no node takes the pod", since=since)
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
    """When a pod that is not ready counts as slow: ``seconds`` after it was scheduled, or else created."""
    scheduled = pod.condition("PodScheduled")
    placed = scheduled is not None and scheduled.status == "True"
    begun = scheduled.last_transition_time if scheduled is not None and placed else None
    return (begun or created(pod)) + timedelta(seconds=seconds)


def stuck_cause(pod: Pod, now: datetime, slow_seconds: float) -> Cause | None:
    """Why the pod makes no progress: its waiting cause, or its slowness, as with a missing volume."""
    if pod.ready:
        return None
    cause, slow = waiting_cause(pod), slow_at(pod, slow_seconds)
    if cause is not None or now < slow:
        return cause
    return Cause(reason=f"not ready {slow_seconds:.0f} s after it was scheduled", message="", since=slow)


def has_image(pod: Pod) -> bool:
    """Whether the task's image is on the pod's node: a container of it has been created there."""
    of_image = (pod.container("copy"), pod.container("sandbox"))
    return pod.ready or any(each is not None and each.state.waiting is None for each in of_image)


def start_failure(pod: Pod) -> AttemptEnd | None:
    """Why a pod that is not assigned yet will never be ready, if that is certain."""
    for container in pod.status.init_container_statuses:
        ended = container.state.terminated
        if ended is not None and ended.exit_code != 0:
            return _init_failure(container.name, ended)
    # The termination message of a sidecar that ended is read in ``ending``.
    for name in ("sandbox", "verifier"):
        ended = pod.terminated(name)
        if ended is not None and pod.terminated("sidecar") is None:
            return AttemptEnd(reason="SandboxStartFailed", message=_image_failure(f"container {name}", ended))
    return None


def deleted_early(pod: Pod) -> AttemptEnd:
    """The end of an attempt whose pod was deleted, not by the operator, before it was assigned to an agent."""
    traces = loss(pod)
    return traces if traces.disruption else lost("the pod was deleted before an agent had it", disruption=True)


def loss(pod: Pod) -> AttemptEnd:
    """The end of a pod that left no termination message, by the traces in its status."""
    status = pod.status
    for target in (pod.condition("DisruptionTarget"), pod.condition("TerminationTarget")):
        if target is not None and target.status == "True":
            return lost(f"{target.reason}: {target.message}", disruption=True)
    if status.reason == "DeadlineExceeded":
        return AttemptEnd(reason="DeadlineExceeded", message="the pod was older than any clock of the episode allows")
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
    """The end of a pod whose sandbox has ended by itself."""
    ended = pod.terminated("sandbox")
    return lost(f"the sandbox ended with {_how(ended)}" if ended is not None else "the sandbox has ended")


def lost(message: str, *, disruption: bool = False) -> AttemptEnd:
    """The end of an attempt whose sandbox was lost."""
    return AttemptEnd(reason="SandboxLost", message=message.rstrip(": "), disruption=disruption)


def created(pod: Pod) -> datetime:
    """When the pod was created for its Episode, or taken from a pool."""
    return pod.metadata.claimed_at or pod.metadata.creation_timestamp or EPOCH


def _init_failure(name: str, ended: Terminated) -> AttemptEnd:
    if name == "install":
        detail = f": {fit(ended.message, _QUOTE_LIMIT)}" if ended.message else ""
        return AttemptEnd(
            reason="SandboxStartFailed", message=f"init container install ended with {_how(ended)}{detail}"
        )
    if name == "copy" and ended.exit_code in _COPY_FAILED:
        detail = f": {fit(ended.message, _QUOTE_LIMIT)}" if ended.message else f" ({_how(ended)})"
        return AttemptEnd(reason="SetupFailed", message=f"the repository could not be copied out of the image{detail}")
    if name == "copy":
        return AttemptEnd(reason="SandboxStartFailed", message=_image_failure("init container copy", ended))
    text = f"init container {name} ended with {_how(ended)}{_quoted(ended)}"
    return AttemptEnd(reason="SandboxStartFailed", message=text)


def _image_failure(what: str, ended: Terminated) -> str:
    """The message for a container that ran only our code under the image's interpreter, and ended."""
    remedy = "the image must run the task's interpreter (spec.interpreter, Python 3.6 or newer)"
    if ended.reason == "OOMKilled":
        remedy = "raise spec.resources.limits.memory"
    return f"{what} ended with {_how(ended)}; {remedy}{_quoted(ended)}"


def _containers(pod: Pod) -> Iterator[Container]:
    yield from pod.status.init_container_statuses
    yield from pod.status.container_statuses


def _how(ended: Terminated) -> str:
    parts = [f"exit code {ended.exit_code}"]
    if ended.reason and ended.reason not in ("Error", "Completed"):
        parts.append(ended.reason)
    return ", ".join(parts)


def _quoted(ended: Terminated) -> str:
    text = fit(ended.message, _QUOTE_LIMIT).replace('"', "'")
    return f'; it said "{text}"' if text else ""
