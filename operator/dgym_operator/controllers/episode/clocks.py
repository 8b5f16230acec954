"""The clocks of an episode. That of its deadline is the sidecar's, and the operator does not run one beside it.

The sidecar tells it in its termination message and in its answers. What the agents report counts only where the pod is
gone and has left neither, as on a lost node.
"""

from datetime import datetime, timedelta
from typing import NamedTuple

from dgym.api import ConditionType
from dgym_operator.controllers.conditions import EPOCH, since
from dgym_operator.controllers.episode.ending import last_words
from dgym_operator.controllers.episode.pods import AttemptEnd, created, lost
from dgym_operator.controllers.episode.sidecar import has_clock_of
from dgym_operator.controllers.inputs import EpisodeInput, Policy, TaskState
from dgym_operator.objects import EpisodeView, Pod

_DAY = 86400


def requested_since(episode: EpisodeView) -> datetime:
    """When the next attempt was requested: by the creation, the resumption or the end of the attempt before."""
    conditions = episode.status.conditions
    times = (
        episode.metadata.creation_timestamp,
        since(conditions, ConditionType.SUSPENDED, "False"),
        since(conditions, ConditionType.SANDBOX_READY, "False"),
    )
    return max((time for time in times if time is not None), default=EPOCH)


def start_deadline(view: EpisodeInput, pod: Pod) -> datetime:
    """When a pod that is not ready is given up.

    The time counts from the pod's creation, or from the last transition of ``SandboxReady`` to False: a pod that a
    scheduling gate held for hours has all its time once the gate is gone.
    """
    waiting = since(view.episode.status.conditions, ConditionType.SANDBOX_READY, "False")
    begun = max(created(pod), waiting or EPOCH)
    return begun + timedelta(seconds=view.episode.spec.start_timeout_seconds)


def served_seconds(view: EpisodeInput) -> int:
    """Used part of ``activeDeadlineSeconds`` over all attempts: from each first reset to the end of the steps.

    Preparation, scoring and the absence of agents are not in it.
    """
    return view.episode.status.active_seconds + attempt_seconds(view)


def attempt_seconds(view: EpisodeInput) -> int:
    """The part that the current attempt has used, under all its agents."""
    words = last_words(view, view.pod) if view.pod is not None else None
    if words is not None:
        return int(words.elapsed_seconds)
    agent, state, ending = view.agent, view.sidecar.state, view.ending
    # The clock stands still once the agent is lost, and has run for long enough once the attempt ends.
    moment = ending.since if ending is not None else (agent.lost_since if agent is not None else None)
    if state is not None and moment is not None and has_clock_of(view, moment):
        return int(state.elapsed_seconds)
    return view.episode.status.attempt_seconds + (agent.active_seconds if agent is not None else 0)


def remaining_seconds(episode: EpisodeView) -> float:
    """What is left of ``activeDeadlineSeconds`` when the attempt begins; its sidecar counts down from there."""
    return float(max(0, episode.spec.active_deadline_seconds - episode.status.active_seconds))


class Backstop(NamedTuple):
    """When the sidecar is asked why its attempt goes on, and until when it must answer; None: it may be silent."""

    ask: datetime
    end: datetime | None


def backstop(view: EpisodeInput) -> Backstop | None:
    """When the attempt may have outlived its clocks; None: nothing has begun, or a verdict waits for its store.

    The deadline may have passed once it would have run since the assignment; from then on the sidecar's word counts.
    """
    episode, sidecar, policy = view.episode, view.sidecar, view.policy
    assigned, driven = episode.status.stages.assigned, episode.spec.agent is not None
    if episode.status.pod_name is None or assigned is None or (sidecar.state is not None and sidecar.state.ended):
        return None
    left, scoring = timedelta(seconds=remaining_seconds(episode)), timedelta(seconds=scoring_seconds(view))
    answer = timedelta(seconds=policy.backstop_seconds)
    lost_since = _agent_lost_since(view)
    if lost_since is not None:
        # The sidecar's clock stands still.
        end = max(assigned, lost_since) + left - timedelta(seconds=attempt_seconds(view)) + scoring
        return Backstop(end, end)
    if sidecar.expired_since is not None:
        ask = sidecar.expired_since + scoring
        return Backstop(ask, ask + answer)
    reported = view.agent.since if view.agent is not None else None
    begun = max(assigned, reported or assigned)
    if sidecar.state is None or sidecar.asked is None:
        return Backstop(begun + left, begun + left + scoring if driven else None)
    if driven and not sidecar.state.elapsed_seconds:
        return Backstop(begun + left + scoring, begun + left + scoring + answer)
    seconds = sidecar.state.remaining_seconds
    # The sidecar's clock is paused during an outage of the model. A reading from before it is too old.
    waited = view.assignment is not None and view.assignment.outages > 0
    read = max(sidecar.asked, begun) if waited else sidecar.asked
    ask = read + max(left if seconds is None else timedelta(seconds=seconds), answer)
    if driven and sidecar.idle_since is not None:
        ask = min(ask, max(begun, sidecar.idle_since) + left + scoring)
    return Backstop(ask, ask + scoring if driven else None)


def overdue(view: EpisodeInput, late: Backstop, now: datetime) -> AttemptEnd | None:
    """The end of an attempt that has outlived its clocks; None while its sidecar is asked.

    The agent has exceeded its deadline by the sidecar's word alone.
    """
    agent, state, lost_since = view.agent, view.sidecar.state, _agent_lost_since(view)
    if agent is not None and lost_since is not None:
        message = f"no agent has served the episode since {lost_since.isoformat(timespec='seconds')}: {agent.lost}"
        return AttemptEnd(reason="AgentLost", message=message)
    if state is not None and has_clock_of(view, late.ask):
        if not state.elapsed_seconds:
            return lost("no agent has begun the episode, long after it was assigned")
        if state.ending:
            return lost("the sidecar has not scored the episode, long after that had begun")
        if view.sidecar.idle_since is not None:
            return lost("no agent has called the sidecar, long after one was lost")
        message = "the deadline had passed, and neither the sidecar nor an agent ended the episode; it is not scored"
        return AttemptEnd(reason="DeadlineExceeded", message=message)
    if late.end is None or now < late.end:
        return None
    return lost("the sidecar does not answer, long after the deadline may have passed")


def pod_deadline_seconds(episode: EpisodeView, task: TaskState, policy: Policy) -> int:
    """The pod's own ``activeDeadlineSeconds``, for when no operator is there to end the pod: above all other clocks.

    A day is added, since a pod may also wait for an agent, and a verdict for its store. An external driver may come
    as late as its idle time allows.
    """
    seconds = remaining_seconds(episode) + _around(task, policy) + policy.backstop_seconds
    if episode.spec.agent is None:
        seconds += episode.spec.driver_idle_timeout_seconds
    return int(episode.spec.start_timeout_seconds + seconds) + _DAY


def scoring_seconds(view: EpisodeInput) -> float:
    """How long an episode may take from the order to end until it has its verdict."""
    return _around(view.task, view.policy) + view.policy.backstop_seconds


def _agent_lost_since(view: EpisodeInput) -> datetime | None:
    """Since when the agent that drives the episode is lost."""
    driven = view.episode.spec.agent is not None
    return view.agent.lost_since if driven and view.agent is not None else None


def _around(task: TaskState, policy: Policy) -> float:
    return policy.preparation_seconds + task.entrypoint_timeout_seconds
