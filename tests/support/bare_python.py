"""A Python for the programs of tasks: pytest, and none of the plugins that the development environment imports."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from dgym.sandbox.local import ensure_environment


@cache
def bare_python() -> str:
    """The path of an interpreter whose pytest starts in a ninth of the time."""
    with ThreadPoolExecutor(1) as thread:
        environment = thread.submit(lambda: asyncio.run(ensure_environment([]))).result()
    return str(Path(environment) / "bin" / "python")
