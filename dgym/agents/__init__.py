"""Agents: they decide the next call of an episode.

The interface is imported with the package. The agents that are part of dgym are imported when they are first used.
"""

from typing import TYPE_CHECKING

from dgym.agents._base import AgentContext, BaseAgent, Env, Tools, agent_names, load_agent
from dgym.agents._chat import Chat, Exchange, StopEpisode
from dgym.agents._prompt import SentRequest, asking_steps, message_parts, read_exchanges, sent_before, sent_requests
from dgym.lazy import lazy_names
from dgym.wire.episode import Action

if TYPE_CHECKING:
    from dgym.agents.human import HumanAgent, HumanModel
    from dgym.agents.model_agent import ModelAgent

__all__ = [
    "Action",
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
    "read_exchanges",
    "sent_before",
    "sent_requests",
]

__getattr__ = lazy_names(
    __name__,
    {"dgym.agents.human": ("HumanAgent", "HumanModel"), "dgym.agents.model_agent": ("ModelAgent",)},
)
