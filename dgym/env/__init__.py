"""The Gymnasium face of an episode: ``RepoEnv`` and, without blocking, ``AsyncRepoEnv``."""

from dgym.env.asynchronous import AsyncRepoEnv
from dgym.env.synchronous import RepoEnv

__all__ = ["AsyncRepoEnv", "RepoEnv"]
