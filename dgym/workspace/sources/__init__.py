"""Where a repository comes from: every kind of source becomes one uncompressed tar in a cache directory."""

from typing import TYPE_CHECKING

from dgym.lazy import lazy_names
from dgym.workspace.sources.fetch import SourceHosts
from dgym.workspace.sources.tree import RESULTS_MARKER, forget_members, walk_repository

if TYPE_CHECKING:
    from dgym.workspace.sources.archive import shown_url
    from dgym.workspace.sources.pack import SourceCache, extract, last_tag, pack_source, unpack_archive

__all__ = [
    "RESULTS_MARKER",
    "SourceCache",
    "SourceHosts",
    "extract",
    "forget_members",
    "last_tag",
    "pack_source",
    "shown_url",
    "unpack_archive",
    "walk_repository",
]

# Packing imports asyncio and HTTP, which walking a repository does not need.
__getattr__ = lazy_names(
    __name__,
    {
        "dgym.workspace.sources.archive": ("shown_url",),
        "dgym.workspace.sources.pack": ("SourceCache", "extract", "last_tag", "pack_source", "unpack_archive"),
    },
)
