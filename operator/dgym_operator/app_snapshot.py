"""The present in numbers, from the caches. Pure."""

from collections import Counter
from collections.abc import Iterable

from dgym_operator.agents import Agent, Agents
from dgym_operator.execute_world import is_finished
from dgym_operator.reconcile.views import EpisodeView

PENDING = "pending"
ACTIVE = "active"
FINISHED = "finished"
_NOT_LOOKED_AT = "Pending"


def state_of(episode: EpisodeView) -> str:
    """``pending`` without a pod that is known to be ready, ``active`` with one."""
    if is_finished(episode):
        return FINISHED
    return ACTIVE if episode.status.pod_name else PENDING


def count_episodes(episodes: Iterable[EpisodeView]) -> dict[tuple[str, str], int]:
    """How many there are in each state, for each reason."""
    return dict(Counter((state_of(each), each.status.reason or _NOT_LOOKED_AT) for each in episodes))


def count_agents(agents: Agents) -> dict[str, int]:
    """How many take episodes, drain, do not answer, or refuse the operator's token."""
    return dict(Counter(_agent_state(agents, agent) for agent in agents))


def _agent_state(agents: Agents, agent: Agent) -> str:
    if agent.refuses:
        return "refusing"
    if agents.is_silent(agent):
        return "silent"
    if agent.report is not None and agent.report.draining:
        return "draining"
    return "ready" if agent.takes_more else "starting"
