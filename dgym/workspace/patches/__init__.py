"""Patches as ``git apply`` takes them: read, applied and written in memory, without git."""

from dgym.workspace.patches.apply import apply_patch, patched_paths
from dgym.workspace.patches.parse import parse_patch
from dgym.workspace.patches.write import FileVersion, unified_diff, write_patch

__all__ = ["FileVersion", "apply_patch", "parse_patch", "patched_paths", "unified_diff", "write_patch"]
