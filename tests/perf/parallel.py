"""Benchmark of fifty whole episodes with ``dgym run``: episodes per second and memory of each."""

import subprocess
import sys
import time
from pathlib import Path

import psutil

from tests.perf.measure import Figure

EPISODES = 50
SAMPLE_EVERY_SECONDS = 0.2


def parallel_figures(scratch: Path) -> list[Figure]:
    """Replay five samples of each task of mini_nightmare, fifty at the same time."""
    results = scratch / "results"
    command = [
        str(Path(sys.executable).with_name("dgym")), "run", "--bundled", "mini_nightmare", "--agent", "replay",
        "-p", f"set.samples={EPISODES // 10}", "-p", f"set.parallelism={EPISODES}",
        "--workers", str(EPISODES), "--results", str(results), "--output", "json",
    ]  # fmt: skip
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        peak = _peak_bytes(run)
    seconds = time.perf_counter() - started
    if run.returncode != 0:
        raise RuntimeError(f"dgym run ended with status {run.returncode}")
    trajectories = list(results.rglob("trajectory.jsonl"))
    lines = sum(path.read_bytes().count(b"\n") - 1 for path in trajectories)
    size = sum(path.stat().st_size for path in trajectories)
    return [
        Figure(name="50 episodes in parallel", unit="episodes/s", median=EPISODES / seconds),
        Figure(name="memory per episode at the peak (proportional set)", unit="MB", median=peak / EPISODES / 1e6),
        Figure(name="trajectory bytes per step", unit="bytes", median=size / max(1, lines), samples=lines),
    ]


def _peak_bytes(run: "subprocess.Popen[bytes]") -> int:
    """The largest proportional set size of the run's whole process tree, sampled."""
    peak = 0
    while run.poll() is None:
        peak = max(peak, _tree_bytes(psutil.Process(run.pid)))
        time.sleep(SAMPLE_EVERY_SECONDS)
    return peak


def _tree_bytes(root: psutil.Process) -> int:
    total = 0
    try:
        processes = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    for process in processes:
        try:
            total += process.memory_full_info().pss
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return total
