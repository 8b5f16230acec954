"""What an episode leaves behind: trajectory, patch, result and log, in a directory that a later run resumes."""

from dgym.results.attempts import Attempt, EpisodeFolder, ResultsStore, StoredResult
from dgym.results.trajectory import Trajectory, TrajectoryHeader, TrajectoryWriter, read_trajectory

__all__ = [
    "Attempt",
    "EpisodeFolder",
    "ResultsStore",
    "StoredResult",
    "Trajectory",
    "TrajectoryHeader",
    "TrajectoryWriter",
    "read_trajectory",
]
