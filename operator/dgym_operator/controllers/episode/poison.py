"""Steps under which the agent's sandbox, or its sidecar, died: the agent's doing, if nothing else explains the death.

The step comes from the sidecar, in an answer or its termination message, or from the agent's report. The death comes
from the kubelet: the sandbox ended, the sidecar was OOM-killed, or the pod was evicted for its own use of a disk. A
death that a disruption or the deletion of the pod may have caused is no evidence.
"""

from dgym.api import PoisonedStep
from dgym_operator.controllers.conditions import fit
from dgym_operator.controllers.episode.ending import is_disrupted, read_termination
from dgym_operator.controllers.inputs import EpisodeInput
from dgym_operator.objects import Pod, Terminated

_REASON_LIMIT = 256
_OOM = "OOMKilled"
_UNKNOWN_REASON = "ContainerStatusUnknown"
"""The kubelet's reason for a container whose end it has not observed."""


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
    step, cause = _step(view, pod), _cause_of_death(view, pod)
    # The reset, which is step 0, runs the task's commands, not the agent's.
    if not step or cause is None:
        return None
    return PoisonedStep(attempt=view.attempt, step=step, reason=fit(cause, _REASON_LIMIT))


def _step(view: EpisodeInput, pod: Pod) -> int | None:
    """The step that was in flight: by the sidecar's word, or the agent's if memory or disk were used up.

    A sidecar may name a step that an earlier attempt has left out of its replay.
    """
    message, known = read_termination(view, pod), {each.step for each in view.episode.status.poisoned_steps}
    for step in (view.poisoned_step, message.poisoned_step if message is not None else None):
        if step is not None and step not in known:
            return step
    return view.report.step_in_flight if view.report is not None and _is_used_up(view, pod) else None


def _is_used_up(view: EpisodeInput, pod: Pod) -> bool:
    """Whether memory or disk were used up while the agent's step was in flight.

    A step may be sent to a sandbox that is dead already: it must have been observed before the death.
    """
    sandbox, sidecar = pod.terminated("sandbox"), pod.terminated("sidecar")
    if pod.status.reason == "Evicted" or (sidecar is not None and sidecar.reason == _OOM):
        return True
    sent = view.agent.flight_since if view.agent is not None else None
    if sandbox is None or sandbox.reason != _OOM or sandbox.finished_at is None or sent is None:
        return False
    return sent < sandbox.finished_at


def _cause_of_death(view: EpisodeInput, pod: Pod) -> str | None:
    sandbox, sidecar = pod.terminated("sandbox"), pod.terminated("sidecar")
    if pod.metadata.deletion_timestamp is None and pod.status.reason == "Evicted":
        return f"Evicted: {pod.status.message}"
    # A sandbox may end because its sidecar did, unless that says itself that a step has killed the sandbox.
    first = sidecar is None or read_termination(view, pod) is not None
    if sandbox is not None and (first or sandbox.reason == _OOM) and _by_itself(view, pod, sandbox):
        return sandbox.reason if sandbox.reason not in ("", "Error") else f"exit code {sandbox.exit_code}"
    if sidecar is not None and sidecar.reason == _OOM and _by_itself(view, pod, sidecar):
        return f"{_OOM}: the sidecar"
    return None


def _by_itself(view: EpisodeInput, pod: Pod, ended: Terminated) -> bool:
    """Whether the container ended before the pod was deleted, by the operator or by others."""
    if ended.reason == _UNKNOWN_REASON or pod.status.reason not in ("", "Evicted"):
        return False
    if pod.metadata.deletion_timestamp is None:
        return True
    deleted = view.ending.since if view.ending is not None else None
    return deleted is not None and ended.finished_at is not None and ended.finished_at < deleted
