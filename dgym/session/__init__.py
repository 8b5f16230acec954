"""The engine of one episode: tools, workspace, sandbox, journal, limits and scoring.

It does not use HTTP or a cluster.
"""

from dgym.session._execution import EpisodeLimits, bounded
from dgym.session._journal import RecordedTrajectory, death_observation
from dgym.session._outcome import ChangeSet, scoring_plan
from dgym.session._preparation import SETUP_TIMEOUT_SECONDS, prepare, sandbox_spec, solution_versions
from dgym.session._sandboxes import SandboxTermination
from dgym.session._session import Session

__all__ = [
    "SETUP_TIMEOUT_SECONDS",
    "ChangeSet",
    "EpisodeLimits",
    "RecordedTrajectory",
    "SandboxTermination",
    "Session",
    "bounded",
    "death_observation",
    "prepare",
    "sandbox_spec",
    "scoring_plan",
    "solution_versions",
]
