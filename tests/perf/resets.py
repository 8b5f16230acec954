"""How long a reset takes, by the size of the repository."""

from pathlib import Path

import msgspec

import dgym
from dgym.api import DebugTask
from tests.perf.measure import Figure, figure, timed

SIZES = ((10, 11, 150.0), (5000, 5, 2000.0))
"""Files, repetitions, aim in milliseconds."""


def reset_figures(scratch: Path) -> list[Figure]:
    """Ten files, and five thousand."""
    figures = []
    for count, repeat, aim in SIZES:
        folder = scratch / f"repository-{count}"
        write_repository(folder, count)
        spec = {"source": {"localPath": str(folder)}}
        task = msgspec.convert({"metadata": {"name": "perf"}, "spec": spec}, DebugTask)
        with dgym.RepoEnv(task) as env:
            figures.append(figure(f"reset, {count:,} files", timed(env.reset, repeat=repeat, warm_up=1), aim=aim))
    return figures


def write_repository(folder: Path, files: int) -> None:
    """``files`` modules in packages of fifty."""
    for number in range(files):
        file = folder / f"package_{number // 50}" / f"module_{number}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"VALUE = {number}\n\n\ndef value():\n    return VALUE\n" * 4)
