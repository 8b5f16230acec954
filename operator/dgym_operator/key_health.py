"""Whether the leader has the cluster's key, and whether the agents accept the tokens that come from it."""

from dgym_operator.agents import Agent, Agents
from dgym_operator.announcing import Announcer


class KeyHealth:
    """The state of the key on this replica; a replica that does not lead needs none."""

    def __init__(self, agents: Agents, announcer: Announcer) -> None:
        self._agents = agents
        self._announcer = announcer
        self.problem = ""
        """Why the leader has no key; empty: it has one, or does not lead."""

    def missing(self, problem: str) -> None:
        """The leader cannot get the key."""
        self.problem = f"the operator has no usable key: {problem}"
        self._announcer.announce("Warning", "KeyUnusable", self.problem)

    def found(self) -> None:
        """The leader has the key."""
        self.problem = ""

    def refused(self, agent: Agent) -> None:
        """An agent does not accept the leader's token. It is announced when that begins."""
        if not agent.refuses:
            agent.refuses = True
            self._announcer.announce("Warning", "TokenRefused", _refusal(agent), agent=agent.name)

    def check(self) -> str | None:
        """The reason why this replica can serve no episodes, or not with all agents; None: there is none."""
        if self.problem:
            return self.problem
        return next((_refusal(agent) for agent in self._agents if agent.ready and agent.refuses), None)


def _refusal(agent: Agent) -> str:
    return (
        f"agent pod {agent.name} refuses the operator's token: the Secret dgym-agent-tokens it was started with does "
        f"not come from the present key. Delete the Secrets dgym-agent-tokens and dgym-results-token, restart the "
        f"operator and then the agents"
    )
