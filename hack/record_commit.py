"""A build hook for hatchling: adds ``dgym/commit.txt`` with the commit of the sources to the wheel and the sdist.

Without a checkout nothing is added, because the sources of a release have the file already.
"""

import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_NAME = "dgym/commit.txt"


class RecordCommit(BuildHookInterface[Any]):
    """Adds the file, except to editable installations, which can read the checkout."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the file if the sources are a git checkout."""
        commit = _commit(Path(self.root))
        if version == "editable" or not commit:
            return
        self._directory = tempfile.TemporaryDirectory(prefix="dgym-commit-")
        path = Path(self._directory.name, "commit.txt")
        path.write_text(f"{commit}\n", encoding="ascii")
        build_data["force_include"][str(path)] = _NAME


def _commit(root: Path) -> str:
    """Return the commit, with ``-dirty`` if tracked files have changed. It is empty if ``root`` is not a checkout."""
    if not (root / ".git").exists():
        return ""
    describe = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(describe, check=True, capture_output=True, text=True, timeout=60).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
