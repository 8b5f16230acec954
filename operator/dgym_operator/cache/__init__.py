"""Observed state: watched objects in indexed stores, the agents' reports, and what the API server does not show."""

from dgym_operator.cache.agents import Agent, Agents
from dgym_operator.cache.cache import World, is_finished
from dgym_operator.cache.informers import Watches
from dgym_operator.cache.memory import Memory

__all__ = [
    "Agent",
    "Agents",
    "Memory",
    "Watches",
    "World",
    "is_finished",
]
