"""The process of an agent pod. The operator assigns episodes to it, and it plays many of them in one event loop."""

from dgym.episodes.agent_pod._assignments import Assignments, Breakers
from dgym.episodes.agent_pod._server import AgentPodApi, AgentPodSettings
from dgym.episodes.agent_pod._telemetry import CATALOGUE, EpisodeLog, Metrics
from dgym.episodes.agent_pod._tokens import Tokens

__all__ = [
    "CATALOGUE",
    "AgentPodApi",
    "AgentPodSettings",
    "Assignments",
    "Breakers",
    "EpisodeLog",
    "Metrics",
    "Tokens",
]
