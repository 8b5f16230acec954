"""The clocks of an episode, and the calls to the sidecar of an attempt.

The sidecar runs the deadline clock, and the operator has no second one. The operator reads it from the sidecar's
termination message and its answers. The times that agent pods report are used only if the pod is gone and has left
neither, for instance on a lost node. Each call is planned again until ``EpisodeInput.sidecar`` contains its answer.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from dgym.api import ConditionType
from dgym.wire import calls
from dgym.wire.calls import Call
from dgym.wire.http import PauseRequest, RunningRequest, WireMessage
from dgym_operator.controllers._conditions import EPOCH, since
from dgym_operator.controllers._inputs import EpisodeInput, Policy, TaskState, sidecar_url
from dgym_operator.controllers._plan import CallSidecar, Plan
from dgym_operator.controllers.episode._pod_status import AttemptEnd, created, lost, termination_message
from dgym_operator.objects import EpisodeView, Pod


def sidecar_requests(view: EpisodeInput) -> Plan:
    """Return the calls that report changes of the pod and the agent pod to the running sidecar."""
    pod, agent_pod, assignment = view.pod, view.agent_pod, view.assignment
    if pod is None:
        return Plan()
    bodies: dict[Call[Any, Any], WireMessage | None] = {}
    if pod.terminated("sandbox") is not None:
        bodies[calls.TERMINATED] = None
    # An external driver continues without the agent pod, which only prepares the sandbox and stores the outcome.
    driven = view.episode.spec.agent is not None
    if driven and assignment is not None and assignment.failed_time is not None:
        # The agent pod has released the slot. The deadline clock is paused until the next agent pod calls the sidecar.
        bodies[calls.PAUSE] = PauseRequest(epoch=assignment.epoch)
    elif driven and agent_pod is not None and agent_pod.lost_since is not None and assignment is not None:
        bodies[calls.PAUSE] = PauseRequest(epoch=assignment.epoch)
        if not has_clock_of(view, agent_pod.lost_since):
            bodies[calls.STATE] = None
    running_at = _sandbox_running_at(pod)
    if running_at is not None:
        bodies[calls.RUNNING] = RunningRequest(observed=running_at)
    return _calls(view, pod, bodies)


def call_sidecar(view: EpisodeInput, *requests: Call[None, Any]) -> Plan:
    """Return a plan with calls that have no body."""
    return _calls(view, view.pod, dict.fromkeys(requests)) if view.pod is not None else Plan()


def has_clock_of(view: EpisodeInput, moment: datetime) -> bool:
    """True if the sidecar's clocks were read at or after ``moment``."""
    return view.sidecar.requested is not None and view.sidecar.requested >= moment


def _calls(view: EpisodeInput, pod: Pod, bodies: Mapping[Call[Any, Any], WireMessage | None]) -> Plan:
    url, attempt = sidecar_url(pod), view.attempt
    if not url or not bodies:
        return Plan()
    actions = tuple(CallSidecar(call=call, url=url, attempt=attempt, body=body) for call, body in bodies.items())
    return Plan(actions=actions, requeue_after=view.policy.repeat_seconds)


def _sandbox_running_at(pod: Pod) -> datetime | None:
    """Return when the kubelet observed the sandbox running in a pod whose containers are not all ready, or None.

    A sidecar that expects its sandbox to have terminated becomes unready. The kubelet then publishes the states of all
    containers. The condition ``Ready`` is not used, because the node controller sets it to False when a kubelet does
    not answer.
    """
    condition, sandbox = pod.condition("ContainersReady"), pod.container("sandbox")
    if condition is None or condition.status != "False" or sandbox is None:
        return None
    running = sandbox.state.waiting is None and sandbox.state.terminated is None
    return condition.last_transition_time if running else None


_DAY = 86400


def requested_since(episode: EpisodeView) -> datetime:
    """Return when the next attempt was requested: by the creation, the resumption or the end of the last attempt."""
    conditions = episode.status.conditions
    times = (
        episode.metadata.creation_timestamp,
        since(conditions, ConditionType.SUSPENDED, "False"),
        since(conditions, ConditionType.SANDBOX_READY, "False"),
    )
    return max((time for time in times if time is not None), default=EPOCH)


def start_deadline(view: EpisodeInput, pod: Pod) -> datetime:
    """Return when the attempt ends if its pod is not ready.

    The start timeout counts from the pod's creation or from the last transition of ``SandboxReady`` to False, whichever
    is later. The removal of a scheduling gate is such a transition, so the time behind the gate does not count.
    """
    waiting = since(view.episode.status.conditions, ConditionType.SANDBOX_READY, "False")
    begun = max(created(pod), waiting or EPOCH)
    return begun + timedelta(seconds=view.episode.spec.start_timeout_seconds)


def served_seconds(view: EpisodeInput) -> int:
    """Return the used part of ``activeDeadlineSeconds`` over all attempts.

    Each attempt counts from its first reset to the end of its steps. Preparation, scoring and the time without an agent
    pod are not included.
    """
    return view.episode.status.active_seconds + attempt_seconds(view)


def attempt_seconds(view: EpisodeInput) -> int:
    """Return the part of ``activeDeadlineSeconds`` that the current attempt has used, under all its assignments."""
    termination = termination_message(view, view.pod) if view.pod is not None else None
    if termination is not None:
        return int(termination.elapsed_seconds)
    agent_pod, state, ending = view.agent_pod, view.sidecar.state, view.ending
    # The sidecar's reading is used only if it was taken after the agent pod was lost (which pauses the clock) or after
    # the attempt began to end.
    moment = ending.since if ending is not None else (agent_pod.lost_since if agent_pod is not None else None)
    if state is not None and moment is not None and has_clock_of(view, moment):
        return int(state.elapsed_seconds)
    return view.episode.status.attempt_seconds + (agent_pod.active_seconds if agent_pod is not None else 0)


def remaining_seconds(episode: EpisodeView) -> float:
    """Return the seconds of ``activeDeadlineSeconds`` that are left at the start of the attempt."""
    return float(max(0, episode.spec.active_deadline_seconds - episode.status.active_seconds))


class Backstop(NamedTuple):
    """When the sidecar's state is requested, and until when it must answer. ``end`` is None without a limit."""

    request_at: datetime
    end: datetime | None


def backstop(view: EpisodeInput) -> Backstop | None:
    """Return when the attempt may have exceeded its clocks. None if it is not assigned or the sidecar has ended it.

    This is first the time at which the deadline would pass if its clock had run since the assignment. After that it is
    computed from the sidecar's answers.
    """
    episode, sidecar, policy = view.episode, view.sidecar, view.policy
    assigned, driven = episode.status.stages.assigned, episode.spec.agent is not None
    if episode.status.pod_name is None or assigned is None or (sidecar.state is not None and sidecar.state.ended):
        return None
    left, scoring = timedelta(seconds=remaining_seconds(episode)), timedelta(seconds=scoring_seconds(view))
    answer = timedelta(seconds=policy.backstop_seconds)
    lost_since = _agent_pod_lost_since(view)
    if lost_since is not None:
        # The sidecar's clock is paused.
        end = max(assigned, lost_since) + left - timedelta(seconds=attempt_seconds(view)) + scoring
        return Backstop(end, end)
    if sidecar.expired_since is not None:
        request_at = sidecar.expired_since + scoring
        return Backstop(request_at, request_at + answer)
    reported = view.agent_pod.since if view.agent_pod is not None else None
    begun = max(assigned, reported or assigned)
    if sidecar.state is None or sidecar.requested is None:
        return Backstop(begun + left, begun + left + scoring if driven else None)
    if driven and not sidecar.state.elapsed_seconds:
        return Backstop(begun + left + scoring, begun + left + scoring + answer)
    seconds = sidecar.state.remaining_seconds
    # The sidecar's clock is paused during an outage of the model, so a reading from before the outage is too old.
    waited = view.assignment is not None and view.assignment.outages > 0
    read = max(sidecar.requested, begun) if waited else sidecar.requested
    request_at = read + max(left if seconds is None else timedelta(seconds=seconds), answer)
    if driven and sidecar.idle_since is not None:
        request_at = min(request_at, max(begun, sidecar.idle_since) + left + scoring)
    return Backstop(request_at, request_at + scoring if driven else None)


def overdue(view: EpisodeInput, late: Backstop, now: datetime) -> AttemptEnd | None:
    """Return the end of an attempt that has exceeded its clocks, or None while its answer is awaited.

    The reason is ``DeadlineExceeded`` only if the sidecar's answer shows it.
    """
    agent_pod, state, lost_since = view.agent_pod, view.sidecar.state, _agent_pod_lost_since(view)
    if agent_pod is not None and lost_since is not None:
        since = lost_since.isoformat(timespec="seconds")
        message = f"no agent pod has served the episode since {since}: {agent_pod.lost}"
        return AttemptEnd(reason="AgentPodLost", message=message)
    if state is not None and has_clock_of(view, late.request_at):
        if not state.elapsed_seconds:
            return lost("the episode was assigned long ago, but no agent pod has started it")
        if state.ending:
            return lost("the scoring began long ago, but the sidecar has not finished it")
        if view.sidecar.idle_since is not None:
            return lost("an agent pod was lost long ago, and no other agent pod has called the sidecar")
        message = "neither the sidecar nor an agent pod ended the episode at its deadline; it is not scored"
        return AttemptEnd(reason="DeadlineExceeded", message=message)
    if late.end is None or now < late.end:
        return None
    return lost("the sidecar does not answer, long after the deadline may have passed")


def pod_deadline_seconds(episode: EpisodeView, task: TaskState, policy: Policy) -> int:
    """Return the pod's own ``activeDeadlineSeconds``, which ends the pod if the operator does not.

    It exceeds all other clocks. It includes a day, because the pod may wait for an agent pod and its outcome for the
    results store. For an external driver it includes the driver's idle timeout.
    """
    seconds = remaining_seconds(episode) + _preparation_and_test_seconds(task, policy) + policy.backstop_seconds
    if episode.spec.agent is None:
        seconds += episode.spec.driver_idle_timeout_seconds
    return int(episode.spec.start_timeout_seconds + seconds) + _DAY


def scoring_seconds(view: EpisodeInput) -> float:
    """Return how many seconds an episode may take from the request to end it until its outcome exists."""
    return _preparation_and_test_seconds(view.task, view.policy) + view.policy.backstop_seconds


def _agent_pod_lost_since(view: EpisodeInput) -> datetime | None:
    """Return when the agent pod was lost. None if it is not lost or an external driver drives the episode."""
    driven = view.episode.spec.agent is not None
    return view.agent_pod.lost_since if driven and view.agent_pod is not None else None


def _preparation_and_test_seconds(task: TaskState, policy: Policy) -> float:
    return policy.preparation_seconds + task.entrypoint_timeout_seconds
