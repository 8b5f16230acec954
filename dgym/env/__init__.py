"""``RepoEnv`` and, without blocking, ``AsyncRepoEnv``: an episode with Gymnasium's vocabulary, here or in a pod.

The environments stand over an ``Episode`` (``dgym.wire.episode``): a session of this process (``LocalEpisodes``) or the
client of a pod's sidecar (``RemoteEpisode``). ``RemotePreparation`` is the client that prepares and releases a pod.
"""

from dgym.env.asynchronous import DEFAULT_TOOLS, AsyncRepoEnv, check_choice
from dgym.env.http_client import HttpClient, Patience
from dgym.env.local import LocalEpisodes, Opening, check_task, open_source, open_task
from dgym.env.remote import RemoteEpisode, RemotePreparation
from dgym.env.synchronous import RepoEnv, connect
from dgym.env.views import (
    BreakpointDict,
    CommandDict,
    FrameDict,
    InfoDict,
    ObservationDict,
    ScoreDict,
    ToolDict,
    observation_view,
)

__all__ = [
    "DEFAULT_TOOLS",
    "AsyncRepoEnv",
    "BreakpointDict",
    "CommandDict",
    "FrameDict",
    "HttpClient",
    "InfoDict",
    "LocalEpisodes",
    "ObservationDict",
    "Opening",
    "Patience",
    "RemoteEpisode",
    "RemotePreparation",
    "RepoEnv",
    "ScoreDict",
    "ToolDict",
    "check_choice",
    "check_task",
    "connect",
    "observation_view",
    "open_source",
    "open_task",
]
