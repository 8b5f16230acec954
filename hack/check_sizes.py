"""Fails when a file holds more than one idea, by the only measure a machine has: its length.

Also guards two traps of the layout: an ``__init__.py`` in ``operator/`` would shadow the standard library's module and
kill every interpreter started in the repository's root, and an image build must never see an unpinned dependency.
"""

import subprocess
import sys
from pathlib import Path

MAXIMUM_LINES = 700
ROOT = Path(__file__).resolve().parent.parent


def tracked_python_files() -> list[Path]:
    """Python files git knows or would add."""
    output = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    return [ROOT / line for line in output.splitlines() if (ROOT / line).is_file()]


def main() -> int:
    """Print what is too long or misplaced; exit status 1 if anything is."""
    problems = []
    for path in tracked_python_files():
        lines = path.read_text(encoding="utf-8").count("\n")
        if lines > MAXIMUM_LINES:
            problems.append(f"{path.relative_to(ROOT)}: {lines} lines, more than {MAXIMUM_LINES}; split it by ideas")
    problems += [f"{path.relative_to(ROOT)}: shadows the standard library's operator module; remove it"
                 for path in (ROOT / "operator").glob("*.py")]  # fmt: skip
    sys.stdout.writelines(f"{problem}\n" for problem in problems)
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
