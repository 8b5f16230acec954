"""What episodes leave behind: trajectory, patch, result and log of each attempt, in a directory or a bucket.

An agent pod and ``dgym run`` write the same files through one ``Record``; the next attempt, reports and replays read
them.
"""

from pathlib import Path

from dgym.errors import ManifestError, PluginError
from dgym.results.attempts import (
    TRAJECTORY_LIMIT,
    Attempt,
    EpisodeFolder,
    StoredResult,
    TimedStep,
    Trajectory,
    TrajectoryHeader,
    UnansweredStep,
    decode_result,
    episode_path,
    read_trajectory,
    trajectory_lines,
)
from dgym.results.directory import DirectoryStore
from dgym.results.left_out import LeftOut, read_left_out, record_left_out
from dgym.results.planned import Planned, is_plan, read_plan, write_plan
from dgym.results.record import Record
from dgym.results.store import (
    FILES,
    LOG,
    PATCH,
    RESULT,
    TRAJECTORY,
    Store,
    StoredItem,
    StoreUnavailable,
    attempt_path,
    checked_path,
)

__all__ = [
    "FILES",
    "LOG",
    "PATCH",
    "RESULT",
    "TRAJECTORY",
    "TRAJECTORY_LIMIT",
    "Attempt",
    "DirectoryStore",
    "EpisodeFolder",
    "LeftOut",
    "Planned",
    "Record",
    "Store",
    "StoreUnavailable",
    "StoredItem",
    "StoredResult",
    "TimedStep",
    "Trajectory",
    "TrajectoryHeader",
    "UnansweredStep",
    "attempt_path",
    "checked_path",
    "decode_result",
    "episode_path",
    "is_plan",
    "open_store",
    "read_left_out",
    "read_plan",
    "read_trajectory",
    "record_left_out",
    "trajectory_lines",
    "write_plan",
]

_SCHEME = "s3://"


def open_store(location: str) -> Store:
    """The store at ``location``: a directory, or ``s3://bucket/prefix`` with AWS_* variables of the environment.

    Raises:
        ManifestError: The location is wrong.
        PluginError: The bucket needs a library that is not installed.
    """
    if location.startswith(_SCHEME):
        bucket, _, prefix = location.removeprefix(_SCHEME).partition("/")
        if not bucket:
            raise ManifestError(f"{location}: the results store has no bucket; write s3://BUCKET/PREFIX")
        try:
            from dgym.results.bucket import open_bucket
        except ImportError as error:
            raise PluginError(f"{location}: needs obstore: pip install 'dgym[s3]' ({error})") from error
        return open_bucket(bucket, prefix.strip("/"))
    if "://" in location:
        raise ManifestError(f"{location}: a results store is a directory or s3://BUCKET/PREFIX")
    return DirectoryStore(Path(location))
