"""The present in numbers, from the caches. Pure."""

from collections import Counter
from collections.abc import Iterable

from dgym.api import ConditionType
from dgym_operator.reconcile.views import EpisodeView

PENDING = "pending"
ACTIVE = "active"
FINISHED = "finished"
_NOT_LOOKED_AT = "Pending"


def is_finished(episode: EpisodeView) -> bool:
    """Whether it has its end."""
    return any(each.type == ConditionType.FINISHED and each.status == "True" for each in episode.status.conditions)


def state_of(episode: EpisodeView) -> str:
    """``pending`` without a pod that is known to be ready, ``active`` with one."""
    if is_finished(episode):
        return FINISHED
    return ACTIVE if episode.status.pod_name else PENDING


def count_episodes(episodes: Iterable[EpisodeView]) -> dict[tuple[str, str], int]:
    """How many there are in each state, for each reason."""
    return dict(Counter((state_of(each), each.status.reason or _NOT_LOOKED_AT) for each in episodes))
