"""Benchmark of the start of dgym in a fresh interpreter, less the interpreter's own start time."""

import statistics
import subprocess
import sys
from pathlib import Path

from tests.perf.measure import Figure, figure, timed


def startup_figures(scratch: Path) -> list[Figure]:
    """Time of ``import dgym`` and ``dgym --help``."""
    dgym = str(Path(sys.executable).with_name("dgym"))

    def run(*command: str) -> list[float]:
        return timed(lambda: subprocess.run(command, check=True, cwd=scratch, stdout=subprocess.DEVNULL), repeat=15)

    bare = statistics.median(run(sys.executable, "-c", "pass"))
    importing = [max(0.0, duration - bare) for duration in run(sys.executable, "-c", "import dgym")]
    return [
        figure("import dgym (without the interpreter's start)", importing, aim=50.0),
        figure("dgym --help (whole process)", run(dgym, "--help"), aim=150.0),
    ]
