"""Obtain repositories: every kind of source is packed as an uncompressed tar in a cache directory."""

from typing import TYPE_CHECKING

from dgym.lazy import lazy_names
from dgym.workspace.sources._fetch import SourceHosts
from dgym.workspace.sources._tree import RESULTS_MARKER, forget_members, walk_repository

if TYPE_CHECKING:
    from dgym.workspace.sources._archive import shown_url
    from dgym.workspace.sources._pack import SourceCache, extract, last_tag, pack_source, unpack_archive

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

# Imported lazily: packing imports asyncio and HTTP, which walking a repository does not need.
__getattr__ = lazy_names(
    __name__,
    {
        "dgym.workspace.sources._archive": ("shown_url",),
        "dgym.workspace.sources._pack": ("SourceCache", "extract", "last_tag", "pack_source", "unpack_archive"),
    },
)
