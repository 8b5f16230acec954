"""Agents: they decide the next call of an episode.

The interface is imported at once; the agents that come with dgym when first used.
"""

from typing import TYPE_CHECKING, Any

from dgym.agents.base import (
    STANDARD_TOOLS,
    Action,
    Agent,
    AgentContext,
    BaseAgent,
    Env,
    Tools,
    agent_names,
    load_agent,
)
from dgym.agents.chat import Chat, Exchange, StopEpisode

if TYPE_CHECKING:
    from dgym.agents.human import HumanAgent, HumanModel
    from dgym.agents.model_agent import ModelAgent

_LAZY = {"HumanAgent": "human", "HumanModel": "human", "ModelAgent": "model_agent"}

__all__ = [
    "STANDARD_TOOLS",
    "Action",
    "Agent",
    "AgentContext",
    "BaseAgent",
    "Chat",
    "Env",
    "Exchange",
    "HumanAgent",
    "HumanModel",
    "ModelAgent",
    "StopEpisode",
    "Tools",
    "agent_names",
    "load_agent",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"dgym.agents.{_LAZY[name]}"), name)
