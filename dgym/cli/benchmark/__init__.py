"""`dgym benchmark`: import, show, check and run benchmarks such as SWE-bench, and render them as manifests."""

import click

from dgym.cli.app import LazyGroup

_MODULES = {
    "estimate": "benchmark.estimating",
    "health": "benchmark.health",
    "import": "benchmark.running",
    "list": "benchmark.running",
    "predictions": "benchmark.running",
    "render": "benchmark.running",
    "run": "benchmark.running",
    "show": "benchmark.running",
    "verify": "benchmark.running",
}


@click.group("benchmark", cls=LazyGroup, modules=_MODULES)
def benchmark_command() -> None:
    """Import benchmarks such as SWE-bench, and run them or render manifests."""
