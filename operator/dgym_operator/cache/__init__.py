"""Observed state: watched objects in indexed stores, reports of agent pods, and state that the API server lacks."""

from dgym_operator.cache._agent_pods import AgentPod, AgentPods
from dgym_operator.cache._cache import Cache, Memory
from dgym_operator.cache._informers import Informers

__all__ = ["AgentPod", "AgentPods", "Cache", "Informers", "Memory"]
