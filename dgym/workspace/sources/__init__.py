"""Where a repository comes from: every kind of source becomes one uncompressed tar in a cache directory."""

from typing import TYPE_CHECKING, Any

from dgym.workspace.sources.fetch import SourceHosts
from dgym.workspace.sources.tree import RESULTS_MARKER, walk_repository

if TYPE_CHECKING:
    from dgym.workspace.sources.pack import SourceCache, pack_source

__all__ = ["RESULTS_MARKER", "SourceCache", "SourceHosts", "pack_source", "walk_repository"]


def __getattr__(name: str) -> Any:
    # Imported at its first use: packing imports asyncio and HTTP, which walking a repository does not need.
    if name not in ("SourceCache", "pack_source"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module("dgym.workspace.sources.pack"), name)
    return value
