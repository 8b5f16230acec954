"""Benchmark of single steps through a whole session. The baseline is pexpect with ``python -m pdb``."""

import statistics
import sys
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pexpect

import dgym
from dgym.api import DebugTask
from tests.perf.measure import Figure, figure, timed
from tests.support.calc import FIXED

PROGRAM = """\
import sys


def work(n):
    total = 0
    for i in range(n):
        total += i
    return total


for round in range(100000):
    value = work(3)
"""
TEST = "import calc\n\n\ndef test_add():\n    assert calc.add(1, 2) == 3\n"


def make_task(files: dict[str, str], **spec: Any) -> DebugTask:
    """A task with inline files."""
    source = {"files": [{"path": path, "content": content} for path, content in files.items()]}
    return msgspec.convert({"metadata": {"name": "perf"}, "spec": {"source": source, **spec}}, DebugTask)


def step_figures(scratch: Path) -> list[Figure]:
    """Time of steps with pdb, view, rewrite, bash and eval. pexpect is the baseline of the pdb commands."""
    files = {"prog.py": PROGRAM, "calc.py": FIXED, "test_calc.py": TEST}
    task = make_task(files, debugEntrypoint="python prog.py")
    baseline = pexpect_pdb(scratch)
    with dgym.RepoEnv(task, max_steps=10_000) as env:
        env.reset()
        env.step("pdb b prog.py:7")
        env.step("pdb c")
        figures = [
            figure(
                "pdb command (p value)",
                timed(lambda: env.step("pdb p total"), repeat=200),
                aim=3.0,
                baseline=baseline["p total"],
                baseline_name="pexpect, its defaults",
            ),
            figure(
                "pdb continue to a breakpoint",
                timed(lambda: env.step("pdb c"), repeat=200),
                aim=3.0,
                baseline=baseline["c"],
                baseline_name="pexpect, its defaults",
            ),
            figure("view 12 lines", timed(lambda: env.step("view prog.py 1 12"), repeat=200)),
            figure(
                "rewrite one line", timed(lambda: env.step("rewrite calc.py 2 <c>    return a + b</c>"), repeat=100)
            ),
            figure("patch after a rewrite", patches(env, repeat=40), aim=5.0),
            figure("bash true", timed(lambda: env.step("bash true"), repeat=100)),
            figure("eval (pytest, one test)", timed(lambda: env.step("eval"), repeat=7, warm_up=1)),
        ]
        size = len(msgspec.json.encode(env.trajectory())) / len(env.trajectory())
        figures.append(
            Figure(name="trajectory bytes per step", unit="bytes", median=size, samples=len(env.trajectory()))
        )
    return figures


def patches(env: dgym.RepoEnv, *, repeat: int) -> list[float]:
    """Milliseconds of ``env.patch()``, each time after another rewrite."""
    durations = []
    for number in range(repeat):
        env.step(f"rewrite calc.py 2 <c>    return a + b + {number}</c>")
        durations += timed(env.patch, repeat=1, warm_up=0)
    return durations


def pexpect_pdb(scratch: Path) -> dict[str, float]:
    """Median milliseconds of two commands at pdb's prompt. By default pexpect waits 50 ms before it sends a line."""
    program = scratch / "prog.py"
    program.write_text(PROGRAM)
    child = pexpect.spawn(sys.executable, ["-m", "pdb", str(program)], timeout=30, echo=False)
    child.expect_exact("(Pdb) ")

    def ask(command: str) -> None:
        child.sendline(command)
        child.expect_exact("(Pdb) ")

    ask("b 7")
    ask("c")
    try:
        durations = {command: timed(partial(ask, command), repeat=40) for command in ("p total", "c")}
    finally:
        child.close(force=True)
    return {command: statistics.median(taken) for command, taken in durations.items()}
