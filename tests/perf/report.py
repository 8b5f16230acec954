"""Benchmark of ``dgym report`` with a thousand results, as a process and as function calls."""

import asyncio
import subprocess
import sys
from pathlib import Path

from dgym.results import Record, StoredResult, TrajectoryHeader, episode_path
from dgym.results.report import compare, make_report, read_run
from dgym.wire import EndReason, Observation, Step, ToolCall
from tests.perf.measure import Figure, figure, timed

EPISODES = 1000
STEPS = 30
OBSERVATION = "    total = sum(price * number for price, number in basket)\n" * 35
"""Text of two kilobytes, the usual size of an observation."""


def report_figures(scratch: Path) -> list[Figure]:
    """Time to read the results of a thousand episodes of thirty steps, and to report them."""
    results = scratch / "results"
    for number in range(EPISODES):
        _play(results, number)
    size = sum(path.stat().st_size for path in results.rglob("*.json*")) / 1e6
    run = read_run([results])
    dgym = str(Path(sys.executable).with_name("dgym"))

    def report() -> None:
        subprocess.run([dgym, "report", str(results)], check=True, cwd=scratch, stdout=subprocess.DEVNULL)

    return [
        figure(f"read 1,000 results ({size:,.0f} MB)", timed(lambda: read_run([results]), repeat=5, warm_up=1)),
        figure("report on 1,000 results", timed(lambda: make_report(run), repeat=10, warm_up=1)),
        figure("compare 1,000 results with 1,000", timed(lambda: compare(run, run), repeat=10, warm_up=1)),
        figure("dgym report, 1,000 results (whole process)", timed(report, repeat=5, warm_up=1)),
    ]


def _play(results: Path, number: int) -> None:
    record = Record.new(results, episode_path("local", f"episode-{number}", "0123456789abcdef"))
    record.begin(TrajectoryHeader(episode=f"episode-{number}"))
    record.write(Step(seq=0, call=None, observation=Observation(text=OBSERVATION, tool="reset")))
    for seq in range(1, STEPS + 1):
        tool = ("pdb", "view", "eval", "rewrite")[seq % 4]
        observation = Observation(text=OBSERVATION, tool=tool, duration_seconds=0.004 * seq)
        record.write(Step(seq=seq, call=ToolCall(tool=tool, arguments={"command": "n"}), observation=observation))
    reason = EndReason.RESOLVED if number % 3 else EndReason.UNRESOLVED
    result = StoredResult(
        resolved=reason is EndReason.RESOLVED,
        reason=reason,
        steps=STEPS,
        episode=f"episode-{number}",
        task=f"task-{number // 4}",
        agent="debug",
        model="model",
        sample=number % 4,
    )
    asyncio.run(record.finish(result))
