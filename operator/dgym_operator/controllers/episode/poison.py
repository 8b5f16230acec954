"""Steps under which the agent's sandbox, or its sidecar, died: the agent's doing, if nothing else explains the death.

The step comes from the sidecar alone: from its answer, or from its termination message, which names the step that it
was executing when it was killed. The death comes from the kubelet: the sandbox or the sidecar ended, or the pod was
evicted for its own use of a disk. A death that a disruption, the deletion of the pod or an end of the whole pod may
have caused is no evidence.
"""

from collections.abc import Iterator
from datetime import timedelta
from typing import NamedTuple

from dgym.api import PoisonedStep
from dgym_operator.controllers.conditions import fit
from dgym_operator.controllers.episode.ending import is_disrupted, last_words
from dgym_operator.controllers.inputs import EpisodeInput
from dgym_operator.objects import Pod, Terminated

_REASON_LIMIT = 256
_OOM = "OOMKilled"
_UNOBSERVED_REASONS = ("ContainerStatusUnknown", "Unknown")
"""The reasons of a container whose end nobody has observed: those of the kubelet and of containerd after a reboot."""
_UNOBSERVED_CODE = 255
_SIGNALLED = 128
"""Exit codes from here on are those of processes that a signal has ended."""
_SECOND = timedelta(seconds=1)


class _Death(NamedTuple):
    """A cause, and the step under which it came, by the sidecar's word."""

    cause: str
    step: int | None


def poisoned_steps(view: EpisodeInput) -> tuple[PoisonedStep, ...]:
    """The recorded poisoned steps of the episode and that of the current attempt."""
    known = view.episode.status.poisoned_steps
    if any(each.attempt == view.attempt for each in known):
        return known
    found = _find(view)
    return known if found is None else (*known, found)


def is_poisoned(view: EpisodeInput) -> bool:
    """Whether the current attempt is lost by the agent's doing."""
    return any(each.attempt == view.attempt for each in poisoned_steps(view))


def _find(view: EpisodeInput) -> PoisonedStep | None:
    pod = view.pod
    if pod is None or view.assignment is None or is_disrupted(view):
        return None
    # The reset, which is step 0, runs the task's commands, not the agent's. A sidecar may name a step that an earlier
    # attempt has left out of its replay.
    known = {0, *(each.step for each in view.episode.status.poisoned_steps)}
    for death in _deaths(view, pod):
        if death.step is not None and death.step not in known:
            return PoisonedStep(attempt=view.attempt, step=death.step, reason=fit(death.cause, _REASON_LIMIT))
    return None


def _deaths(view: EpisodeInput, pod: Pod) -> Iterator[_Death]:
    sandbox, sidecar, words = pod.terminated("sandbox"), pod.terminated("sidecar"), last_words(view, pod)
    answered = view.sidecar.poisoned_step
    poisoned = answered if answered is not None or words is None else words.poisoned_step
    in_flight = words.step_in_flight if words is not None and words.reason is None else None
    if pod.metadata.deletion_timestamp is None and pod.status.reason == "Evicted":
        # The kubelet tells all containers to end.
        yield _Death(f"Evicted: {pod.status.message}", poisoned if poisoned is not None else in_flight)
    together = sandbox is not None and sidecar is not None and _together(sandbox, sidecar)
    if sandbox is not None and not together and _by_itself(pod, sandbox):
        yield _Death(_how(sandbox), poisoned)
    if sidecar is not None and not together and _by_itself(pod, sidecar):
        killed = sidecar.exit_code != 0 and words is not None and not words.told_to_end
        yield _Death(f"{_how(sidecar)}: the sidecar", in_flight if killed else None)


def _by_itself(pod: Pod, ended: Terminated) -> bool:
    """Whether the container was observed to end in an earlier second than the pod was deleted in, or evicted."""
    if ended.reason in _UNOBSERVED_REASONS or ended.exit_code == _UNOBSERVED_CODE or pod.status.reason:
        return False
    if pod.metadata.deletion_timestamp is None:
        return True
    deleted = pod.metadata.deleted_at
    # The kubelet's times are cut to whole seconds.
    return deleted is not None and ended.finished_at is not None and ended.finished_at + _SECOND <= deleted


def _together(sandbox: Terminated, sidecar: Terminated) -> bool:
    """Whether both were killed at about the same time, as by a shutdown of their node.

    A sandbox whose sidecar was killed alone exits; a sidecar whose sandbox was killed lives on.
    """
    if _OOM in (sandbox.reason, sidecar.reason) or min(sandbox.exit_code, sidecar.exit_code) < _SIGNALLED:
        return False
    if sandbox.finished_at is None or sidecar.finished_at is None:
        return True
    return abs(sandbox.finished_at - sidecar.finished_at) <= _SECOND


def _how(ended: Terminated) -> str:
    return ended.reason if ended.reason not in ("", "Error", "Completed") else f"exit code {ended.exit_code}"
