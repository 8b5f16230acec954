"""The clocks of an episode: until its sandbox is ready, while it is served, and the operator's own above both."""

from datetime import datetime, timedelta

from dgym.api import ConditionType
from dgym_operator.reconcile.conditions import since
from dgym_operator.reconcile.inputs import EpisodeInput, TaskState
from dgym_operator.reconcile.policy import Policy
from dgym_operator.reconcile.views import EpisodeView, Pod
from dgym_operator.reconcile.waiting import EPOCH, created

_DAY = 86400


def wanted_since(episode: EpisodeView) -> datetime:
    """Since when the next attempt is wanted: the creation, the resumption or the end of the attempt before."""
    conditions = episode.status.conditions
    times = (
        episode.metadata.creation_timestamp,
        since(conditions, ConditionType.SUSPENDED, "False"),
        since(conditions, ConditionType.SANDBOX_READY, "False"),
    )
    return max((time for time in times if time is not None), default=EPOCH)


def start_deadline(view: EpisodeInput, pod: Pod) -> datetime:
    """When a pod that is not ready is given up.

    It counts from the pod's creation, or from the last time the sandbox was seen to begin waiting anew: a pod that a
    scheduling gate held for hours has all its time once the gate is gone.
    """
    waiting = since(view.episode.status.conditions, ConditionType.SANDBOX_READY, "False")
    begun = max(created(pod), waiting or EPOCH)
    return begun + timedelta(seconds=view.episode.spec.start_timeout_seconds)


def served_seconds(episode: EpisodeView, now: datetime) -> int:
    """How long agents have served the episode, over all attempts."""
    status = episode.status
    running = status.pod_name is not None and status.stages.assigned is not None
    begun = status.stages.assigned if running and status.stages.assigned is not None else now
    return status.active_seconds + max(0, int((now - begun).total_seconds()))


def remaining_seconds(episode: EpisodeView) -> float:
    """What is left of ``activeDeadlineSeconds`` when the attempt begins; its sidecar counts down from there."""
    return float(max(0, episode.spec.active_deadline_seconds - episode.status.active_seconds))


def backstop(view: EpisodeInput) -> datetime | None:
    """When the operator ends an attempt that its sidecar should have ended; None while nobody serves it."""
    episode = view.episode
    if episode.status.pod_name is None or episode.status.stages.assigned is None:
        return None
    seconds = remaining_seconds(episode) + _around(view.task, view.policy) + view.policy.backstop_seconds
    return episode.status.stages.assigned + timedelta(seconds=seconds)


def pod_deadline_seconds(episode: EpisodeView, task: TaskState, policy: Policy) -> int:
    """The pod's own ``activeDeadlineSeconds``: for when no operator is there to end it, and so above all other clocks.

    A day more, since a pod may also wait for an agent, and a verdict for its store.
    """
    seconds = remaining_seconds(episode) + _around(task, policy) + policy.backstop_seconds
    return int(episode.spec.start_timeout_seconds + seconds) + _DAY


def _around(task: TaskState, policy: Policy) -> float:
    return policy.preparation_seconds + task.entrypoint_timeout_seconds
