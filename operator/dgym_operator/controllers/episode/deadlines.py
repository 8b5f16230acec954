"""The clocks of an episode: until its sandbox is ready, while it is served, and the operator's own above both."""

from datetime import datetime, timedelta

from dgym.api import ConditionType
from dgym_operator.controllers.conditions import EPOCH, since
from dgym_operator.controllers.episode.pods import created
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

    Agents report it. Preparation, scoring and the absence of agents are not in it.
    """
    return view.episode.status.active_seconds + attempt_seconds(view)


def attempt_seconds(view: EpisodeInput) -> int:
    """The part that the current attempt has used, under all its agents."""
    return view.episode.status.attempt_seconds + (view.agent.active_seconds if view.agent is not None else 0)


def remaining_seconds(episode: EpisodeView) -> float:
    """What is left of ``activeDeadlineSeconds`` when the attempt begins; its sidecar counts down from there."""
    return float(max(0, episode.spec.active_deadline_seconds - episode.status.active_seconds))


def backstop(view: EpisodeInput, now: datetime) -> datetime | None:
    """When the operator ends an attempt that its sidecar should have ended; None: the pod's own deadline does.

    The sidecar's deadline runs from the first reset. Once an agent has reported time since then, what is left counts
    from now, or from the loss of the agent; before, all of it counts from the assignment. With an external driver the
    time of the first reset is not bounded.
    """
    episode, agent = view.episode, view.agent
    assigned = episode.status.stages.assigned
    if episode.status.pod_name is None or assigned is None or (agent is None and episode.spec.agent is None):
        return None
    used = attempt_seconds(view)
    if not used and episode.spec.agent is None:
        return None
    left = remaining_seconds(episode) - used + _around(view.task, view.policy) + view.policy.backstop_seconds
    reported = agent.since if agent is not None else None
    begun = now if used else max(assigned, reported or assigned)
    if agent is not None and agent.lost_since is not None:
        begun = max(assigned, agent.lost_since)
    return begun + timedelta(seconds=left)


def pod_deadline_seconds(episode: EpisodeView, task: TaskState, policy: Policy) -> int:
    """The pod's own ``activeDeadlineSeconds``, for when no operator is there to end the pod: above all other clocks.

    A day is added, since a pod may also wait for an agent, and a verdict for its store.
    """
    seconds = remaining_seconds(episode) + _around(task, policy) + policy.backstop_seconds
    return int(episode.spec.start_timeout_seconds + seconds) + _DAY


def _around(task: TaskState, policy: Policy) -> float:
    return policy.preparation_seconds + task.entrypoint_timeout_seconds
