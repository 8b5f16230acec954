"""Results of episodes: trajectory, patch, result and log of each attempt, in a directory or a bucket.

An agent pod and ``dgym run`` write the same files with a ``Record``. To read them, ``find_episodes`` lists the
``Attempt`` objects of each episode of a directory, and ``read_trajectory`` reads the steps of an attempt. A
``Library`` is an index of a directory, a bucket or a cluster that is kept up to date.
"""

from pathlib import Path

from dgym.errors import ManifestError, PluginError
from dgym.results._attempts import (
    Attempt,
    EpisodeFolder,
    StoredResult,
    TimedStep,
    Trajectory,
    TrajectoryHeader,
    UnansweredStep,
    decode_header,
    decode_result,
    episode_path,
    parse_trajectory,
    read_left_out,
    read_plan,
    read_trajectory,
    record_left_out,
    trajectory_lines,
    write_plan,
)
from dgym.results._library import (
    DirectoryLibrary,
    EpisodeEntry,
    Library,
    RunProgress,
    StoreLibrary,
    check_directory,
    find_episodes,
    is_attempt,
    is_live,
    seconds_of,
)
from dgym.results._record import Record
from dgym.results._rows import UNREADABLE, AttemptFields, EpisodeRow, StageDurations, TimedCall, run_of
from dgym.results._store import (
    FILES,
    LOG,
    PATCH,
    RESULT,
    TRAJECTORY,
    DirectoryStore,
    ResultsStore,
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
    "UNREADABLE",
    "Attempt",
    "AttemptFields",
    "DirectoryLibrary",
    "DirectoryStore",
    "EpisodeEntry",
    "EpisodeFolder",
    "EpisodeRow",
    "Library",
    "Record",
    "ResultsStore",
    "RunProgress",
    "StageDurations",
    "StoreUnavailable",
    "StoredResult",
    "TimedCall",
    "TimedStep",
    "Trajectory",
    "TrajectoryHeader",
    "UnansweredStep",
    "attempt_path",
    "checked_path",
    "decode_header",
    "decode_result",
    "episode_path",
    "find_episodes",
    "is_attempt",
    "is_live",
    "open_library",
    "open_store",
    "parse_trajectory",
    "read_left_out",
    "read_plan",
    "read_trajectory",
    "record_left_out",
    "run_of",
    "seconds_of",
    "trajectory_lines",
    "write_plan",
]

_SCHEME = "s3://"


def open_store(location: str) -> ResultsStore:
    """The store at ``location``: a directory or ``s3://BUCKET/PREFIX``.

    A bucket takes endpoint, region and credentials from the ``AWS_*`` environment variables.

    Raises:
        ManifestError: The location is invalid.
        PluginError: The bucket needs a library that is not installed.
    """
    if location.startswith(_SCHEME):
        bucket, _, prefix = location.removeprefix(_SCHEME).partition("/")
        if not bucket:
            raise ManifestError(f"{location}: the results store has no bucket; write s3://BUCKET/PREFIX")
        try:
            from dgym.results._bucket import open_bucket
        except ImportError as error:
            raise PluginError(f"{location}: requires obstore: pip install 'dgym[s3]' ({error})") from error
        return open_bucket(bucket, prefix.strip("/"))
    if "://" in location:
        raise ManifestError(f"{location}: a results store is a directory or s3://BUCKET/PREFIX")
    return DirectoryStore(Path(location))


def open_library(location: str) -> Library:
    """The library of a results directory, or of a bucket at ``s3://BUCKET/PREFIX``.

    Raises:
        ManifestError: The directory does not exist, or the address is invalid.
        PluginError: The bucket needs a library that is not installed.
    """
    if "://" in location:
        return StoreLibrary(open_store(location), location)
    path = Path(location)
    check_directory(path)
    return DirectoryLibrary(path)
