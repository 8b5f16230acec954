"""Why requests are not granted, for the status of the episodes that wait.

The texts change only when the cause does, not with every slot that is taken: each change is a write for every episode
that waits.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from dgym.kube import Key
from dgym_operator.cache import Agents
from dgym_operator.controllers.episode import Cause
from dgym_operator.dispatch.admission import Candidate
from dgym_operator.policies import NamespacePolicies
from dgym_operator.pools import AgentPools

BUSY = (
    "every slot of the agents is taken, by an episode or for a sandbox that starts; "
    "more agents or agents.slots serve more episodes at a time"
)
NO_STORE = "the results store of the agents does not answer"
_NO_AGENT = "there is no agent pod; see agents.replicas, and the Deployment of the agents"


class Stuck(msgspec.Struct, frozen=True):
    """A pod that cannot start, and why."""

    pod: str
    cause: Cause


class Holds(msgspec.Struct, frozen=True, kw_only=True):
    """Why requests are not granted, by namespace: for lack of agents, or for a cause of the namespace's own.

    ``images`` wait until fewer than ``pull_limit`` others are pulled. ``models`` has the models, with their namespace,
    that are out in every agent that could serve them.
    """

    agents: Mapping[str, str] = {}
    pods: Mapping[str, str] = {}
    quotas: Mapping[str, str] = {}
    ready: Mapping[str, str] = {}
    models: Mapping[tuple[str, str], str] = {}
    images: frozenset[str] = frozenset()
    pull_limit: int = 0

    def of_pod(self, namespace: str, candidate: Candidate) -> str:
        """Why an episode of the namespace gets no pod."""
        kind = self.kind_of_pod(namespace, candidate)
        if kind == "model":
            return self.models[namespace, candidate.model]
        if kind == "quota":
            return self.quotas[namespace]
        if kind == "image":
            return (
                f"no node is known to have its image; at most {self.pull_limit} "
                f"{'is' if self.pull_limit == 1 else 'are'} pulled at a time: "
                "sandboxes.maxConcurrentPulls in the chart's values allows more"
            )
        return self.pods.get(namespace) or self.agents.get(namespace, "")

    def kind_of_pod(self, namespace: str, candidate: Candidate) -> str:
        """What an episode of the namespace waits for that requests a pod."""
        if (namespace, candidate.model) in self.models:
            return "model"
        if namespace in self.pods:
            return "slot"
        if namespace in self.quotas:
            return "quota"
        return "image" if candidate.image in self.images else self._kind_of_slot(namespace)

    def of_agent(self, key: Key, candidate: Candidate) -> str:
        """Why the episode, whose sandbox is ready, gets no agent."""
        agents = self.models.get((key[0], candidate.model)) or self.agents.get(key[0], "")
        return agents if candidate.active else self.ready.get(key[0], agents)

    def kind_of_agent(self, key: Key, candidate: Candidate) -> str:
        """What the episode waits for, whose sandbox is ready."""
        if not candidate.active and key[0] in self.ready:
            return "slot"
        return "model" if (key[0], candidate.model) in self.models else self._kind_of_slot(key[0])

    def _kind_of_slot(self, namespace: str) -> str:
        return "store" if self.agents.get(namespace, "").startswith(NO_STORE) else "slot"


def find_stuck(stuck: Mapping[Key, Stuck], limit: int) -> dict[str, str]:
    """Why namespaces with ``limit`` stuck pods get no more of them."""
    counts = Counter(namespace for namespace, _ in stuck)
    full = {namespace for namespace, count in counts.items() if count >= limit}
    oldest: dict[str, Stuck] = {}
    for (namespace, _), each in sorted(stuck.items(), key=lambda item: (item[1].cause.since, item[0])):
        if namespace in full:
            oldest.setdefault(namespace, each)
    return {namespace: _stuck_text(namespace, each, limit) for namespace, each in oldest.items()}


def find_full(namespaces: Iterable[str], active: Mapping[str, int], policies: NamespacePolicies) -> dict[str, str]:
    """Why those of the namespaces that have ``maxActive`` active episodes start no others."""
    return {
        namespace: f"namespace {namespace} has {bound} active episodes (maxActive); "
        f"{policies.place(namespace, 'maxActive')} in the chart's values allows more"
        for namespace in namespaces
        if (bound := policies.of(namespace).max_active) is not None and active.get(namespace, 0) >= bound
    }


def _stuck_text(namespace: str, example: Stuck, limit: int) -> str:
    return (
        f"namespace {namespace} has {limit} pods or more that cannot start, such as {example.pod} "
        f"({example.cause.reason}); correct or cancel their episodes, or raise sandboxes.maxStuckPods"
    )


def find_models_out(
    out: Mapping[tuple[str, str], str],
    namespaces: Iterable[str],
    pools: AgentPools,
    before: Mapping[tuple[str, str], str],
) -> dict[tuple[str, str], str]:
    """Why episodes with the models that are out wait, by namespace and model; the text of an outage does not change."""
    return {
        (name, model): before.get((name, model))
        or f"model {model} is out in every agent pod that could serve it, and is probed ({cause})"
        for name in namespaces
        for (pool, model), cause in out.items()
        if pools.of(name) == pool
    }


def find_agents_causes(
    agents: Agents, namespaces: Iterable[str], pools: AgentPools, before: Mapping[str, str]
) -> dict[str, str]:
    """Why the agents of each namespace's pool serve no more episodes; the text about a store does not change."""
    found = dict.fromkeys(namespaces, "")
    causes = {pool: _cause(agents, pool) for pool in {pools.of(namespace) for namespace in found} if pool is not None}
    for namespace in found:
        pool = pools.of(namespace)
        found[namespace] = _no_pool(namespace, pools) if pool is None else causes[pool]
        if found[namespace].startswith(NO_STORE) and before.get(namespace, "").startswith(NO_STORE):
            found[namespace] = before[namespace]
    return found


def _no_pool(namespace: str, pools: AgentPools) -> str:
    return (
        f"no pool of agents serves namespace {namespace}; add it to the namespaces of one of agents.pools ({pools}) "
        "in the chart's values"
    )


def _cause(agents: Agents, pool: str) -> str:
    known = sorted((agent for agent in agents if agent.pool == pool), key=lambda agent: agent.name)
    if any(agents.open_slots(agent) is not None for agent in known):
        return BUSY
    if not known:
        return f"{_NO_AGENT}{f' of pool {pool}' if pool else ''}"
    draining = [agent for agent in known if agent.draining_since is not None and not agents.is_silent(agent)]
    if draining:
        return f"no agent takes new episodes: pod {draining[0].name} drains"
    stored = next((agent for agent in known if agent.report is not None and agent.report.store_problem), None)
    if stored is not None and stored.report is not None and not agents.is_silent(stored):
        return f"{NO_STORE}: pod {stored.name}: {stored.report.store_problem}"
    failing = next((agent for agent in known if agent.ready and agent.failure), None)
    if failing is not None:
        return f"no agent answers: pod {failing.name}: {failing.failure}"
    if any(agent.ready for agent in known):
        return "no agent has answered yet"
    return f"no agent is ready: see pod {known[0].name} in the namespace of the agents"
