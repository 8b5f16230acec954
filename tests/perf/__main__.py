"""``python -m tests.perf [NAME…]``: measure, print a table with ratios, write ``perf-results/*.json``."""

import os
import platform
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from tests.perf.agents import agent_figures
from tests.perf.cluster import cluster_figures
from tests.perf.containers import container_figures
from tests.perf.measure import Figure
from tests.perf.parallel import parallel_figures
from tests.perf.report import report_figures
from tests.perf.resets import project_figures, reset_figures
from tests.perf.runtimes import runtime_figures
from tests.perf.sandboxpools import sandboxpool_figures
from tests.perf.scale import active_figures, throughput_figures
from tests.perf.startup import startup_figures
from tests.perf.steps import step_figures
from tests.perf.views import view_figures

CLUSTER = ("cluster", "sandboxpools")
"""Benchmarks that need a cluster that hack/e2e prepares."""
SCALE = ("throughput", "active")
"""Benchmarks that need the API server of ``make binaries``."""
BENCHMARKS: dict[str, Callable[[Path], list[Figure]]] = {
    "startup": startup_figures,
    "steps": step_figures,
    "resets": reset_figures,
    "projects": project_figures,
    "runtimes": runtime_figures,
    "containers": container_figures,
    "parallel": parallel_figures,
    "agents": agent_figures,
    "report": report_figures,
    "views": view_figures,
    "throughput": throughput_figures,
    "active": active_figures,
    "cluster": cluster_figures,
    "sandboxpools": sandboxpool_figures,
}


def main(names: list[str]) -> None:
    """Run the named benchmarks (default: all that need neither a cluster nor ``make binaries``)."""
    console = Console(stderr=True)
    figures: dict[str, list[Figure]] = {}
    for name in names or [each for each in BENCHMARKS if each not in (*CLUSTER, *SCALE)]:
        with console.status(f"measuring {name} …"), tempfile.TemporaryDirectory(prefix="dgym-perf-") as scratch:
            figures[name] = BENCHMARKS[name](Path(scratch))
    Console(width=None if sys.stdout.isatty() else 140).print(_table(figures))
    target = Path("perf-results") / f"{'-'.join(names) or 'perf'}.json"
    target.parent.mkdir(exist_ok=True)
    machine = {"python": platform.python_version(), "cores": os.cpu_count(), "system": platform.platform()}
    target.write_bytes(msgspec.json.format(msgspec.json.encode({"machine": machine, "figures": figures})))
    console.print(f"written to {target}")


def _table(figures: dict[str, list[Figure]]) -> Table:
    table = Table(title="dgym perf")
    for heading in ("what", "median", "p95", "aim", "baseline", "ratio", "samples"):
        table.add_column(heading, justify="left" if heading in ("what", "baseline") else "right")
    for group in figures.values():
        for one in group:
            baseline = f"{one.baseline:,.2f} ({one.baseline_name})" if one.baseline is not None else ""
            table.add_row(
                one.name,
                f"{one.median:,.2f} {one.unit}",
                f"{one.p95:,.2f}" if one.p95 is not None else "",
                f"{one.aim:.4g}" if one.aim is not None else "",
                baseline,
                f"{one.ratio:,.1f}x" if one.ratio is not None else "",
                str(one.samples),
            )
        table.add_section()
    return table


if __name__ == "__main__":
    main(sys.argv[1:])
