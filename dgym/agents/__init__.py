"""Agents: they decide the next call of an episode.

The interface is imported at once; the agents that come with dgym when first used.
"""

from typing import TYPE_CHECKING

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
from dgym.agents.requests import SentRequest, asking_steps, message_parts, sent_requests
from dgym.lazy import lazy_names

if TYPE_CHECKING:
    from dgym.agents.human import HumanAgent, HumanModel
    from dgym.agents.model_agent import ModelAgent

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
    "SentRequest",
    "StopEpisode",
    "Tools",
    "agent_names",
    "asking_steps",
    "load_agent",
    "message_parts",
    "sent_requests",
]

__getattr__ = lazy_names(
    __name__,
    {"dgym.agents.human": ("HumanAgent", "HumanModel"), "dgym.agents.model_agent": ("ModelAgent",)},
)
