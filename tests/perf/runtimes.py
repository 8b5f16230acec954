"""Benchmark of a sandbox's start, shell, write and read, against swe-rex's local runtime, which does not isolate."""

import asyncio
import json
import os
import statistics
import subprocess
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from dgym.sandbox import SandboxSpec
from dgym.sandbox.local import LocalProvider
from tests.perf.measure import Figure, figure

LINES = 100
NAMES = {
    "start": "sandbox start to first shell command, and stop",
    "shell": "persistent shell: true",
    "write": "write a file",
    "read": "read a file",
}


def runtime_figures(scratch: Path) -> list[Figure]:
    """Figures of dgym. swe-rex's medians are the baseline if ``PERF_PYTHON`` is an interpreter that has swe-rex."""
    ours = asyncio.run(_ours("x\n" * LINES))
    theirs = _theirs(scratch)
    return [
        figure(
            name,
            ours[key],
            baseline=statistics.median(theirs[key]) if theirs else None,
            baseline_name="swe-rex local" if theirs else "",
        )
        for key, name in NAMES.items()
    ]


def _theirs(scratch: Path) -> dict[str, list[float]]:
    python = os.environ.get("PERF_PYTHON")
    if not python:
        return {}
    driver = Path(__file__).with_name("swerex_driver.py")
    command = [python, str(driver), str(LINES)]
    output = subprocess.run(command, check=True, capture_output=True, text=True, cwd=scratch, timeout=300).stdout
    figures: dict[str, list[float]] = json.loads(output)
    return figures


async def _timed(action: Callable[[], Awaitable[object]], repeat: int) -> list[float]:
    await action()
    durations = []
    for _ in range(repeat):
        started = time.perf_counter()
        await action()
        durations.append((time.perf_counter() - started) * 1000)
    return durations


async def _ours(content: str) -> dict[str, list[float]]:
    provider = LocalProvider(SandboxSpec())

    async def start() -> None:
        sandbox = await provider.sandbox()
        await sandbox.shell("true")
        await sandbox.stop()

    figures = {"start": await _timed(start, 15)}
    sandbox = await provider.sandbox()
    try:
        figures["shell"] = await _timed(lambda: sandbox.shell("true"), 100)
        figures["write"] = await _timed(lambda: sandbox.write_file("file.txt", content.encode()), 100)
        figures["read"] = await _timed(lambda: sandbox.read_file("file.txt"), 100)
    finally:
        await sandbox.stop()
    return figures
