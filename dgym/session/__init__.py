"""The episode engine: tools, workspace, sandbox, journal, limits and scoring. Knows no HTTP and no cluster."""

from dgym.session.execution import bounded
from dgym.session.limits import EpisodeLimits
from dgym.session.preparation import SETUP_TIMEOUT_SECONDS, prepare, sandbox_spec, solution_versions
from dgym.session.replay import RecordedHistory, death_observation
from dgym.session.sandboxes import SandboxTermination
from dgym.session.scoring import ChangeSet, verification_plan
from dgym.session.session import Session
from dgym.session.verification import SuiteCache

__all__ = [
    "SETUP_TIMEOUT_SECONDS",
    "ChangeSet",
    "EpisodeLimits",
    "RecordedHistory",
    "SandboxTermination",
    "Session",
    "SuiteCache",
    "bounded",
    "death_observation",
    "prepare",
    "sandbox_spec",
    "solution_versions",
    "verification_plan",
]
