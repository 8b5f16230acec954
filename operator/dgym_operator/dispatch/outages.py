"""Models that agents report as out: no episode with such a model is assigned to them but a probe.

The circuit breaker in the agent pod decides when a probe may begin and when the model is back.
"""

from collections.abc import Iterator, Mapping

from dgym.wire.assignments import ModelOutage
from dgym_operator.cache import Agent, Cache
from dgym_operator.dispatch.admission import ModelsOut
from dgym_operator.pools import AgentPools

_PROBE_SECONDS = 10.0
"""A report that was on its way when the probe was granted may still ask for one."""


class Outages:
    """The models that are out, by agent, and the probes that were granted."""

    def __init__(self, cache: Cache, pools: AgentPools) -> None:
        self._cache = cache
        self._pools = pools
        self._probes: dict[tuple[str, str], float] = {}

    def of_agents(self) -> ModelsOut:
        """Whether a probe is due, by the UID of the agent and the model."""
        now = self._cache.clock.monotonic()
        self._probes = {each: since for each, since in self._probes.items() if now - since < _PROBE_SECONDS}
        return ModelsOut(
            {
                (agent.uid, each.model): each.probe and (agent.uid, each.model) not in self._probes
                for agent in self._cache.agents
                for each in _outages(agent)
            }
        )

    def record_probes(self, out: ModelsOut) -> None:
        """Record the probes that were granted."""
        now = self._cache.clock.monotonic()
        self._probes.update(dict.fromkeys(out.probed, now))

    def everywhere(self) -> Mapping[tuple[str, str], str]:
        """The last failure of each model that is out in every agent that takes episodes, by pool and model."""
        found: dict[tuple[str, str], str] = {}
        for pool in self._pools.names:
            agents = self._cache.agents
            open_ones = sorted((a for a in agents if a.pool == pool and agents.open_slots(a) is not None), key=_name)
            for each in _outages(open_ones[0]) if open_ones else ():
                if all(each.model in {other.model for other in _outages(agent)} for agent in open_ones[1:]):
                    found[pool, each.model] = f"agent pod {open_ones[0].name}: {each.message}"
        return found


def _outages(agent: Agent) -> Iterator[ModelOutage]:
    # An agent that asks no model has the name "".
    return (each for each in (agent.report.outages if agent.report is not None else ()) if each.model)


def _name(agent: Agent) -> str:
    return agent.name
