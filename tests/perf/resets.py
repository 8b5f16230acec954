"""Benchmark of resets: by the size of the repository, compared with GNU tar, which only unpacks it, and with an
installed project, compared with the same files without a project."""

import asyncio
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest.mock import patch

import msgspec

import dgym
from dgym.api import DebugTask
from dgym.env import open_source
from tests.perf.measure import Figure, figure, timed
from tests.support.wheels import HATCHLING, PYTEST, write_index

SIZES = ((10, 11, 150.0), (5000, 5, 2000.0))
"""Files, repetitions, aim in milliseconds."""
PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "measured"
version = "1"
scripts = {measured = "package_0.module_0:value"}
[tool.hatch.build.targets.wheel]
include = ["package_0"]
"""
PROJECT_REPEAT = 15
LAYER_AIM = 150.0
"""Target in milliseconds for the additional start time of a later episode with an installed project."""


def reset_figures(scratch: Path) -> list[Figure]:
    """Time of the first reset and of later resets, which remove the last sandbox, with ten and five thousand files.

    tar alternates with the later resets and unpacks on the same disk as the sandboxes. Each directory is removed before
    the next run.
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


def project_figures(scratch: Path) -> list[Figure]:
    """Time to the first observation of a project that an earlier episode installed, and of the same files alone."""
    folders = [scratch / "project", scratch / "plain"]
    for folder in folders:
        write_repository(folder, 10)
    (folders[0] / "pyproject.toml").write_text(PROJECT)
    (scratch / "index").mkdir()
    index = write_index(scratch / "index", (*PYTEST, *HATCHLING))
    specs = [{"source": {"localPath": str(folder)}} for folder in folders]
    tasks = [msgspec.convert({"metadata": {"name": "perf"}, "spec": spec}, DebugTask) for spec in specs]

    def started(task: DebugTask) -> float:
        with dgym.RepoEnv(task) as env:
            return timed(env.reset, repeat=1, warm_up=0)[0]

    with patch.dict(os.environ, {**index, "XDG_CACHE_HOME": str(scratch / "cache")}):
        first = [started(task) for task in tasks][:1]
        pairs = [tuple(map(started, tasks)) for _ in range(PROJECT_REPEAT)]
    installed, plain = map(list, zip(*pairs, strict=True))
    compared = {"baseline": statistics.median(plain), "baseline_name": "no project"}
    differences = [one - other for one, other in pairs]
    return [
        figure("start with a project, the first time", first, **compared),
        figure("start with a project that is installed", installed, **compared),
        figure("project layer of a later episode", differences, aim=LAYER_AIM),
    ]


def interleaved(
    ours: Callable[[], object], theirs: Callable[[], float], repeat: int
) -> tuple[list[float], list[float]]:
    """Milliseconds of both, measured alternately, so that other load of the machine affects both."""
    pairs = [(timed(ours, repeat=1, warm_up=0)[0], theirs()) for _ in range(repeat)]
    return [one for one, _ in pairs], [other for _, other in pairs]


def unpacked(source: Path) -> float:
    """Milliseconds that tar takes to unpack ``source``. The removal is not counted."""
    with tempfile.TemporaryDirectory() as place:
        started = time.perf_counter()
        subprocess.run(["tar", "-xf", source, "-C", place], check=True)
        return (time.perf_counter() - started) * 1000


def write_repository(folder: Path, files: int) -> None:
    """Write ``files`` modules in packages of fifty."""
    for number in range(files):
        file = folder / f"package_{number // 50}" / f"module_{number}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"VALUE = {number}\n\n\ndef value():\n    return VALUE\n" * 4)
