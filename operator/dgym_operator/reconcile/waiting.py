"""Why a pod that was made is not ready: the first real cause, and whether waiting can cure it.

The kubelet and the scheduler say more than one thing at a time; what stands first in a pod's way is the cause, and what
only follows from it is not shown. What a container of the user's image says is data from an adversary: it is shown, in
quotes and short, and nothing is decided by it.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import msgspec

from dgym.api import ProgressReason
from dgym_operator.reconcile.conditions import fit
from dgym_operator.reconcile.ended import Ended
from dgym_operator.reconcile.views import Container, Pod, Terminated

EPOCH = datetime.fromtimestamp(0, UTC)
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
"""How ``copy_tree.py`` of the runner says that it ran and could not copy: any other status is of something else."""
_QUOTE_LIMIT = 600


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """What a pod waits for. ``gated``: somebody holds it back on purpose, which is no failure and has no deadline."""

    reason: str
    message: str
    since: datetime
    gated: bool = False


def waiting_cause(pod: Pod) -> Cause | None:
    """What is in the way of a pod that is not ready: no node, a gate, an image, or a container that is not created.

    The kubelet tries all of them again, and what they lack (room, a Secret, a runtime that answers) may come.
    """
    scheduled = pod.condition("PodScheduled")
    if scheduled is not None and scheduled.status == "False":
        since = scheduled.last_transition_time or created(pod)
        if scheduled.reason == GATED:
            message = "a scheduling gate holds the pod; whoever set it (such as Kueue) removes it"
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
    """When a pod that is not ready counts as slow: so long after it was scheduled, or else created."""
    scheduled = pod.condition("PodScheduled")
    placed = scheduled is not None and scheduled.status == "True"
    begun = scheduled.last_transition_time if scheduled is not None and placed else None
    return (begun or created(pod)) + timedelta(seconds=seconds)


def stuck_cause(pod: Pod, now: datetime, slow_seconds: float) -> Cause | None:
    """Why the pod makes no progress: what is in its way, or that it is slow, as one whose volume is missing."""
    if pod.ready:
        return None
    cause, slow = waiting_cause(pod), slow_at(pod, slow_seconds)
    if cause is not None or now < slow:
        return cause
    return Cause(reason=f"not ready {slow_seconds:.0f} s after it was scheduled", message="", since=slow)


def start_failure(pod: Pod) -> Ended | None:
    """Why a pod that serves nobody yet never will, if that is certain."""
    for container in pod.status.init_container_statuses:
        ended = container.state.terminated
        if ended is not None and ended.exit_code != 0:
            return _init_failure(container.name, ended)
    # A sidecar that ended may have left word; that is read elsewhere.
    for name in ("sandbox", "verifier"):
        status = pod.container(name)
        if status is not None and (ended := status.state.terminated) is not None and not _sidecar_ended(pod):
            return Ended(reason="SandboxStartFailed", message=_of_the_image(f"container {name}", ended))
    return None


def created(pod: Pod) -> datetime:
    """When the pod was made."""
    return pod.metadata.creation_timestamp or EPOCH


def _init_failure(name: str, ended: Terminated) -> Ended:
    if name == "install":
        said = f": {fit(ended.message, _QUOTE_LIMIT)}" if ended.message else ""
        return Ended(reason="SandboxStartFailed", message=f"init container install ended with {_how(ended)}{said}")
    if name == "copy" and ended.exit_code in _COPY_FAILED:
        said = f": {fit(ended.message, _QUOTE_LIMIT)}" if ended.message else f" ({_how(ended)})"
        return Ended(reason="SetupFailed", message=f"the repository could not be copied out of the image{said}")
    if name == "copy":
        return Ended(reason="SandboxStartFailed", message=_of_the_image("init container copy", ended))
    text = f"init container {name} ended with {_how(ended)}{_quoted(ended)}"
    return Ended(reason="SandboxStartFailed", message=text)


def _of_the_image(what: str, ended: Terminated) -> str:
    """What to say of a container that runs nothing but our code under the image's interpreter, and ended."""
    remedy = "the image must run the task's interpreter (spec.interpreter, Python 3.6 or newer)"
    if ended.reason == "OOMKilled":
        remedy = "raise spec.resources.limits.memory"
    return f"{what} ended with {_how(ended)}; {remedy}{_quoted(ended)}"


def _containers(pod: Pod) -> Iterator[Container]:
    yield from pod.status.init_container_statuses
    yield from pod.status.container_statuses


def _sidecar_ended(pod: Pod) -> bool:
    sidecar = pod.container("sidecar")
    return sidecar is not None and sidecar.state.terminated is not None


def _how(ended: Terminated) -> str:
    parts = [f"exit code {ended.exit_code}"]
    if ended.reason and ended.reason not in ("Error", "Completed"):
        parts.append(ended.reason)
    return ", ".join(parts)


def _quoted(ended: Terminated) -> str:
    text = fit(ended.message, _QUOTE_LIMIT).replace('"', "'")
    return f'; it said "{text}"' if text else ""
