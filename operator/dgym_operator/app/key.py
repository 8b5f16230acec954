"""The cluster's key on the leader: obtained, reported while unusable, checked against the agents' answers."""

from collections.abc import Callable

import msgspec

from dgym.kube import EPISODES, ApiError
from dgym_operator.actions import NotLeading, Writes, episode_patch
from dgym_operator.app.health import Announcer
from dgym_operator.cache import Agent, Agents, Cache
from dgym_operator.controllers import PatchStatus
from dgym_operator.controllers.episode import decide
from dgym_operator.objects import EpisodeView


class KeyHealth:
    """The state of the cluster's key on this replica; a replica that does not lead needs no key."""

    def __init__(self, agents: Agents, announcer: Announcer) -> None:
        self._agents = agents
        self._announcer = announcer
        self.problem = ""
        """Why the leader has no key; empty: it has one, or the replica does not lead."""

    def missing(self, problem: str) -> None:
        """Announce that the leader cannot get the key."""
        self.problem = f"the operator has no usable key: {problem}"
        self._announcer.announce("Warning", "KeyUnusable", self.problem)

    def found(self) -> None:
        """Record that the leader has the key."""
        self.problem = ""

    def refused(self, agent: Agent) -> None:
        """Record that an agent refuses the leader's token, and announce it when that begins."""
        if not agent.refuses_token:
            agent.refuses_token = True
            self._announcer.announce("Warning", "TokenRefused", _refusal(agent), agent=agent.name)

    def check(self) -> str | None:
        """Readiness check: why this replica can serve no episodes, or not with all agents."""
        if self.problem:
            return self.problem
        return next((_refusal(agent) for agent in self._agents if agent.ready and agent.refuses_token), None)


def _refusal(agent: Agent) -> str:
    return (
        f"agent pod {agent.name} refuses the operator's token: the Secret dgym-agent-tokens it was started with does "
        f"not come from the present key. Delete the Secrets dgym-agent-tokens and dgym-results-token, restart the "
        f"operator and then the agents"
    )


_PER_TRY = 1000
"""Episodes written for each try to get the key; the others follow with the next try."""


async def show_waiting(cache: Cache, writes: Writes, serves: Callable[[str], bool], held_by: str) -> None:
    """Write ``held_by`` into the status of the episodes that wait for a sandbox: without a key no pod is created."""
    written = 0
    for episode in cache.episodes:
        if episode.status.pod_name is None and serves(episode.metadata.namespace) and written < _PER_TRY:
            written += await _show(cache, writes, episode, held_by)


async def _show(cache: Cache, writes: Writes, episode: EpisodeView, held_by: str) -> bool:
    view = cache.episode_input(episode, may_create=False)
    plan = decide(msgspec.structs.replace(view, held_by=held_by), cache.clock.now())
    metadata = episode.metadata
    for action in plan.actions:
        if not isinstance(action, PatchStatus) or not action.progress:
            continue
        patch = episode_patch(episode, action.status)
        if patch is None:
            continue
        try:
            written = await writes.patch_status(
                EPISODES, metadata.name, patch, decode=EpisodeView, namespace=metadata.namespace
            )
        except (ApiError, NotLeading):
            return False
        cache.episodes.assume(written)
        return True
    return False
