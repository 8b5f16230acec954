"""The process of an agent pod: the operator assigns episodes to it, and it plays many of them in one event loop."""

from dgym.episodes.pod.api import AgentApi
from dgym.episodes.pod.assignments import Assignments
from dgym.episodes.pod.breaker import Breakers
from dgym.episodes.pod.logs import EpisodeLog
from dgym.episodes.pod.metrics import CATALOGUE, Metrics
from dgym.episodes.pod.server import PREFIX, AgentSettings, serve
from dgym.episodes.pod.tokens import Tokens

__all__ = [
    "CATALOGUE",
    "PREFIX",
    "AgentApi",
    "AgentSettings",
    "Assignments",
    "Breakers",
    "EpisodeLog",
    "Metrics",
    "Tokens",
    "serve",
]
