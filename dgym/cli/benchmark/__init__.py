"""`dgym benchmark`: import, show, check and run benchmarks such as SWE-bench, and render them as manifests."""

import click

from dgym.cli.app import LazyGroup

_MODULES = {
    "estimate": "benchmark.estimating",
    "health": "benchmark.health",
    "import": "benchmark.commands",
    "list": "benchmark.commands",
    "predictions": "benchmark.commands",
    "render": "benchmark.commands",
    "run": "benchmark.commands",
    "show": "benchmark.commands",
    "verify": "benchmark.commands",
}


@click.group("benchmark", cls=LazyGroup, modules=_MODULES)
def benchmark_command() -> None:
    """Import benchmarks such as SWE-bench, and run them or render manifests."""
