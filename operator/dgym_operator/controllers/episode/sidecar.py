"""Requests to the sidecar of an attempt. Each is planned again until its answer is in ``EpisodeInput.sidecar``."""

from datetime import datetime

from dgym.wire.http import Path, PauseRequest, RunningRequest
from dgym_operator.controllers.inputs import EpisodeInput, sidecar_url
from dgym_operator.controllers.plan import CallSidecar, Plan
from dgym_operator.objects import Pod


def sidecar_requests(view: EpisodeInput) -> Plan:
    """What the sidecar must be told of its pod and its agent while it runs."""
    pod, agent, assignment = view.pod, view.agent, view.assignment
    if pod is None:
        return Plan()
    bodies: dict[Path, PauseRequest | RunningRequest | None] = {}
    if pod.terminated("sandbox") is not None:
        bodies[Path.VERIFY] = None
    # An external driver does not depend on the agent that prepares and stores.
    driven = view.episode.spec.agent is not None
    if driven and assignment is not None and assignment.failed_time is not None:
        # Its agent has given the slot back, and the deadline stands still until the next one calls.
        bodies[Path.PAUSE] = PauseRequest(epoch=assignment.epoch)
    elif driven and agent is not None and agent.lost_since is not None and assignment is not None:
        bodies[Path.PAUSE] = PauseRequest(epoch=assignment.epoch)
        if not has_clock_of(view, agent.lost_since):
            bodies[Path.STATE] = None
    running_at = _sandbox_running_at(pod)
    if running_at is not None:
        bodies[Path.RUNNING] = RunningRequest(observed=running_at)
    return _calls(view, pod, bodies)


def ask(view: EpisodeInput, *paths: Path) -> Plan:
    """Requests without a body."""
    return _calls(view, view.pod, dict.fromkeys(paths)) if view.pod is not None else Plan()


def has_clock_of(view: EpisodeInput, moment: datetime) -> bool:
    """Whether the sidecar has told its clocks since then."""
    return view.sidecar.asked is not None and view.sidecar.asked >= moment


def _calls(view: EpisodeInput, pod: Pod, bodies: dict[Path, PauseRequest | RunningRequest | None]) -> Plan:
    url, attempt = sidecar_url(pod), view.attempt
    if not url or not bodies:
        return Plan()
    calls = tuple(CallSidecar(path=path, url=url, attempt=attempt, body=body) for path, body in bodies.items())
    return Plan(actions=calls, requeue_after=view.policy.repeat_seconds)


def _sandbox_running_at(pod: Pod) -> datetime | None:
    """When the kubelet observed the sandbox running in a pod whose containers are not all ready.

    A sidecar whose sandbox should have ended makes itself unready, and the kubelet publishes that with the states of
    all containers. ``Ready`` would not do: a node's controller clears it for a kubelet that does not answer.
    """
    condition, sandbox = pod.condition("ContainersReady"), pod.container("sandbox")
    if condition is None or condition.status != "False" or sandbox is None:
        return None
    running = sandbox.state.waiting is None and sandbox.state.terminated is None
    return condition.last_transition_time if running else None
