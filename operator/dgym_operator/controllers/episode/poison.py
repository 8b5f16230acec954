"""Steps under which the agent's sandbox, or its sidecar, died: the agent's doing, if nothing else explains the death.

The step comes from the sidecar, in an answer or its termination message, or from the agent's report. The death comes
from the kubelet: the sandbox or the sidecar ended, or the pod was evicted for its own use of a disk. A death that a
disruption or the deletion of the pod may have caused is no evidence.
"""

from datetime import datetime
from typing import NamedTuple

from dgym.api import PoisonedStep
from dgym_operator.controllers.conditions import fit
from dgym_operator.controllers.episode.ending import is_disrupted, last_words
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
    death = _death(view, pod)
    step = _step(view, pod, death) if death is not None else None
    # The reset, which is step 0, runs the task's commands, not the agent's.
    if death is None or not step:
        return None
    return PoisonedStep(attempt=view.attempt, step=step, reason=fit(death.cause, _REASON_LIMIT))


class _Death(NamedTuple):
    """The cause of a death, and its time; None: whenever it was, the agent has used up memory or disk.

    ``ordered``: the container exited as it does when its sidecar ends it, so that only the sidecar can blame a step.
    """

    cause: str
    at: datetime | None
    ordered: bool = False


def _death(view: EpisodeInput, pod: Pod) -> _Death | None:
    sandbox, sidecar = pod.terminated("sandbox"), pod.terminated("sidecar")
    if pod.metadata.deletion_timestamp is None and pod.status.reason == "Evicted":
        return _Death(f"Evicted: {pod.status.message}", None)
    # A sandbox may end because its sidecar did, unless that says itself that a step has killed the sandbox.
    message = last_words(view, pod)
    first = sidecar is None or (message is not None and message.reason is not None)
    if sandbox is not None and (first or sandbox.reason == _OOM) and _by_itself(view, pod, sandbox):
        return _Death(_how(sandbox), sandbox.finished_at, ordered=sandbox.exit_code == 0 and sandbox.reason != _OOM)
    if sidecar is not None and _died(sidecar, sandbox) and _by_itself(view, pod, sidecar):
        return _Death(f"{_how(sidecar)}: the sidecar", None if sidecar.reason == _OOM else sidecar.finished_at)
    return None


def _died(sidecar: Terminated, sandbox: Terminated | None) -> bool:
    """Whether a step may have ended the sidecar: it was not ordered to end, and the sandbox had not ended before.

    The sandbox ends before the tests run, while the step that submits is still in flight.
    """
    if sidecar.reason == _OOM:
        return True
    times = (sandbox.finished_at if sandbox is not None else None, sidecar.finished_at)
    scoring = times[0] is not None and times[1] is not None and times[0] < times[1]
    return sidecar.exit_code != 0 and not scoring


def _how(ended: Terminated) -> str:
    return ended.reason if ended.reason not in ("", "Error") else f"exit code {ended.exit_code}"


def _step(view: EpisodeInput, pod: Pod, death: _Death) -> int | None:
    """The step that was in flight: by the sidecar's word, or else the agent's.

    A sidecar may name a step that an earlier attempt has left out of its replay. An agent may have sent the step to a
    sandbox or sidecar that was dead already.
    """
    message, known = last_words(view, pod), {each.step for each in view.episode.status.poisoned_steps}
    for step in (view.poisoned_step, message.poisoned_step if message is not None else None):
        if step is not None and step not in known:
            return step
    if (message is not None and message.reason is not None) or death.ordered or view.agent is None or view.report is None:
        return None
    sent = view.agent.flight_since
    before = death.at is None or (sent is not None and sent < death.at)
    return view.report.step_in_flight if before else None


def _by_itself(view: EpisodeInput, pod: Pod, ended: Terminated) -> bool:
    """Whether the container ended before the pod was deleted, by the operator or by others."""
    if ended.reason == _UNKNOWN_REASON or pod.status.reason not in ("", "Evicted"):
        return False
    if pod.metadata.deletion_timestamp is None:
        return True
    deleted = view.ending.since if view.ending is not None else None
    return deleted is not None and ended.finished_at is not None and ended.finished_at < deleted
