"""How long a reset takes, by the size of the repository, beside GNU tar, which only unpacks it on the same disk."""

import asyncio
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

import dgym
from dgym.api import DebugTask
from dgym.env import open_source
from tests.perf.measure import Figure, figure, timed

SIZES = ((10, 11, 150.0), (5000, 5, 2000.0))
"""Files, repetitions, aim in milliseconds."""


def reset_figures(scratch: Path) -> list[Figure]:
    """Ten files, and five thousand: the first reset of an environment, and later ones, which remove the last sandbox.

    tar unpacks in the same minute, as often and at the same place as the sandboxes, each time after it removed what it
    unpacked before.
    """
    figures = []
    for count, repeat, aim in SIZES:
        folder = scratch / f"repository-{count}"
        write_repository(folder, count)
        spec = {"source": {"localPath": str(folder)}}
        task = msgspec.convert({"metadata": {"name": "perf"}, "spec": spec}, DebugTask)
        source = asyncio.run(open_source(task))
        assert source is not None
        with dgym.RepoEnv(task) as env:
            first = timed(env.reset, repeat=1, warm_up=0)
            later, tar = interleaved(env.reset, partial(unpacked, source), repeat=repeat)
        compared = {"baseline": statistics.median(tar), "baseline_name": "tar"}
        figures.append(figure(f"first reset, {count:,} files", first, **compared))
        figures.append(figure(f"reset, {count:,} files", later, aim=aim, **compared))
    return figures


def interleaved(
    ours: Callable[[], object], theirs: Callable[[], float], repeat: int
) -> tuple[list[float], list[float]]:
    """Milliseconds of both, in turn: what else the machine does meets both."""
    pairs = [(timed(ours, repeat=1, warm_up=0)[0], theirs()) for _ in range(repeat)]
    return [one for one, _ in pairs], [other for _, other in pairs]


def unpacked(source: Path) -> float:
    """Milliseconds that tar takes to unpack ``source``; the removal is not counted."""
    with tempfile.TemporaryDirectory() as place:
        started = time.perf_counter()
        subprocess.run(["tar", "-xf", source, "-C", place], check=True)
        return (time.perf_counter() - started) * 1000


def write_repository(folder: Path, files: int) -> None:
    """``files`` modules in packages of fifty."""
    for number in range(files):
        file = folder / f"package_{number // 50}" / f"module_{number}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"VALUE = {number}\n\n\ndef value():\n    return VALUE\n" * 4)
