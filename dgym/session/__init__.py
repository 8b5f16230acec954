"""The episode engine: tools, workspace, sandbox, journal, limits and scoring. Knows no HTTP and no cluster."""

from dgym.session.limits import EpisodeLimits
from dgym.session.session import Session

__all__ = ["EpisodeLimits", "Session"]
