"""``dgym ui``: a read-only web page over results, served on the loopback interface or exported as files.

Everything that an episode leaves behind is hostile input here: programs, models and clusters have written it. Pages
escape every value, hold no script but their own, and open no file by a name from a request.
"""

from pathlib import Path

from dgym.errors import ManifestError
from dgym.results import open_store
from dgym.ui.bucket import StoreLibrary
from dgym.ui.bundle import export, export_single
from dgym.ui.directory import DirectoryLibrary
from dgym.ui.library import Attempted, Entry, Library, Progress, seconds_of
from dgym.ui.server import serve

__all__ = [
    "Attempted",
    "DirectoryLibrary",
    "Entry",
    "Library",
    "Progress",
    "StoreLibrary",
    "export",
    "export_single",
    "open_library",
    "seconds_of",
    "serve",
]


def open_library(location: str) -> Library:
    """The episodes of a results directory, or of a bucket at ``s3://BUCKET/PREFIX``.

    Raises:
        ManifestError: There is no such directory, or the address is wrong.
        PluginError: The bucket needs a library that is not installed.
    """
    if "://" in location:
        return StoreLibrary(open_store(location), location)
    path = Path(location)
    if not path.is_dir():
        raise ManifestError(f"{location}: there is no such directory; give one that dgym run writes its results to")
    return DirectoryLibrary(path)
