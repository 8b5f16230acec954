"""Observed state: watched objects in indexed stores, the agents' reports, and what the API server does not show."""

from dgym_operator.cache.agents import Agent, Agents
from dgym_operator.cache.cache import Cache
from dgym_operator.cache.informers import Informers
from dgym_operator.cache.memory import Memory

__all__ = ["Agent", "Agents", "Cache", "Informers", "Memory"]
