"""What keeps episodes from a sandbox or an agent, in the words of their status. Pure.

The words change only when the cause does, not with every slot that is taken: each change is a write for every episode
that waits.
"""

from collections import Counter
from collections.abc import Mapping

import msgspec

from dgym.kube import Key
from dgym_operator.agents import Agents
from dgym_operator.reconcile.waiting import Cause

_BUSY = (
    "every slot of the agents is taken, by an episode or for a sandbox that starts; "
    "more agents or agents.slots serve more episodes at a time"
)
_NO_AGENT = "there is no agent pod; see agents.replicas, and the Deployment of the agents"


class Stuck(msgspec.Struct, frozen=True):
    """A pod that cannot start, and why."""

    pod: str
    cause: Cause


class Holds(msgspec.Struct, frozen=True, kw_only=True):
    """Why episodes wait: for an agent, and in some namespaces for pods that cannot start."""

    agents: str = ""
    namespaces: Mapping[str, str] = {}

    def of_pod(self, namespace: str) -> str:
        """What keeps the namespace's episodes from a pod."""
        return self.namespaces.get(namespace, self.agents)


def find_holds(agents: Agents, stuck: Mapping[Key, Stuck], limit: int) -> Holds:
    """What holds episodes at present. ``limit``: how many pods of a namespace may be stuck at a time."""
    counts = Counter(namespace for namespace, _ in stuck)
    full = {namespace for namespace, count in counts.items() if count >= limit}
    oldest: dict[str, Stuck] = {}
    for (namespace, _), each in sorted(stuck.items(), key=lambda item: (item[1].cause.since, item[0])):
        if namespace in full:
            oldest.setdefault(namespace, each)
    texts = {namespace: _stuck_text(namespace, each, limit) for namespace, each in oldest.items()}
    return Holds(agents=_agents_text(agents), namespaces=texts)


def _stuck_text(namespace: str, example: Stuck, limit: int) -> str:
    return (
        f"namespace {namespace} has {limit} pods or more that cannot start, such as {example.pod} "
        f"({example.cause.reason}); correct or cancel their episodes, or raise sandboxes.maxStuckPods"
    )


def _agents_text(agents: Agents) -> str:
    known = sorted(agents, key=lambda agent: agent.name)
    if any(agents.open_slots(agent) is not None for agent in known):
        return _BUSY
    if not known:
        return _NO_AGENT
    draining = [agent for agent in known if agent.draining_since is not None and not agents.is_silent(agent)]
    if draining:
        return f"no agent takes new episodes: pod {draining[0].name} drains"
    failing = next((agent for agent in known if agent.ready and agent.failure), None)
    if failing is not None:
        return f"no agent answers: pod {failing.name}: {failing.failure}"
    if any(agent.ready for agent in known):
        return "no agent has answered yet"
    return f"no agent is ready: see pod {known[0].name} in the namespace of the agents"
