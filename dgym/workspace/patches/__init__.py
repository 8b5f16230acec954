"""Parse, apply and write patches in the format of ``git apply``, in memory and without git."""

from dgym.workspace.patches._apply import apply_patch, parse_patch, patched_paths
from dgym.workspace.patches._write import FileVersion, unified_diff, write_patch

__all__ = ["FileVersion", "apply_patch", "parse_patch", "patched_paths", "unified_diff", "write_patch"]
