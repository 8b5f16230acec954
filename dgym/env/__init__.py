"""``RepoEnv`` and, without blocking, ``AsyncRepoEnv``: an episode with Gymnasium's API, in this process or in a pod.

The environments use an ``Episode`` (``dgym.wire.episode``), which is a session of this process (``LocalEpisodes``) or
the client of a pod's sidecar (``RemoteEpisode``). ``prepare`` sends the task to a sidecar.
"""

from dgym.env._asynchronous import AsyncRepoEnv, check_choice
from dgym.env._local import LocalEpisodes, Opening, check_task, open_source, open_task
from dgym.env._remote import RemoteEpisode, prepare, read_steps
from dgym.env._synchronous import RepoEnv, connect
from dgym.env._views import (
    BreakpointDict,
    CommandDict,
    FrameDict,
    InfoDict,
    ObservationDict,
    ScoreDict,
    ToolDict,
    observation_view,
)
from dgym.wire.client import RetryLimits

__all__ = [
    "AsyncRepoEnv",
    "BreakpointDict",
    "CommandDict",
    "FrameDict",
    "InfoDict",
    "LocalEpisodes",
    "ObservationDict",
    "Opening",
    "RemoteEpisode",
    "RepoEnv",
    "RetryLimits",
    "ScoreDict",
    "ToolDict",
    "check_choice",
    "check_task",
    "connect",
    "observation_view",
    "open_source",
    "open_task",
    "prepare",
    "read_steps",
]
