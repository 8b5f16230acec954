"""Benchmark of the start of a container up to the first observation, against bubblewrap in the same run."""

import asyncio
import statistics
import sys
import time
from pathlib import Path

import dgym
from dgym.errors import SandboxStartFailed
from dgym.sandbox import SandboxKind
from tests.perf.measure import Figure, figure
from tests.perf.steps import TEST, make_task
from tests.support.calc import FIXED

REPEAT = 7


def container_figures(_scratch: Path) -> list[Figure]:
    """The figures. Empty if no engine answers or dgym's image is not built."""
    try:
        durations = asyncio.run(_resets("container"))
    except SandboxStartFailed as error:
        print(f"containers are not measured: {error}", file=sys.stderr)
        return []
    return [
        figure(
            "container: start to first observation",
            durations,
            baseline=statistics.median(asyncio.run(_resets("bubblewrap"))),
            baseline_name="bubblewrap",
        )
    ]


async def _resets(kind: SandboxKind) -> list[float]:
    task = make_task({"calc.py": FIXED, "test_calc.py": TEST})
    durations = []
    for _ in range(REPEAT + 1):
        async with dgym.AsyncRepoEnv(task, sandbox=kind) as env:
            started = time.perf_counter()
            await env.reset()
            durations.append((time.perf_counter() - started) * 1000)
    return durations[1:]
