"""Driver for the work of ``runtimes.py`` with swe-rex's local runtime, in a separate environment. It prints JSON."""

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from swerex.runtime.abstract import BashAction, CreateBashSessionRequest, ReadFileRequest, WriteFileRequest
from swerex.runtime.local import LocalRuntime


async def timed(action: Callable[[], Awaitable[object]], repeat: int) -> list[float]:
    """Milliseconds of each run, after a first run that is not counted."""
    await action()
    durations = []
    for _ in range(repeat):
        started = time.perf_counter()
        await action()
        durations.append((time.perf_counter() - started) * 1000)
    return durations


async def start() -> None:
    """Start a runtime with a shell, and stop it."""
    runtime = LocalRuntime()
    await runtime.create_session(CreateBashSessionRequest())
    await runtime.close()


async def main(content: str) -> dict[str, list[float]]:
    """Measure start, shell command, write and read."""
    figures = {"start": await timed(start, 5)}
    runtime = LocalRuntime()
    await runtime.create_session(CreateBashSessionRequest())
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "file.txt"))
        figures["shell"] = await timed(lambda: runtime.run_in_session(BashAction(command="true")), 30)
        figures["write"] = await timed(lambda: runtime.write_file(WriteFileRequest(path=path, content=content)), 100)
        figures["read"] = await timed(lambda: runtime.read_file(ReadFileRequest(path=path)), 100)
    await runtime.close()
    return figures


if __name__ == "__main__":
    json.dump(asyncio.run(main("x\n" * int(sys.argv[1]))), sys.stdout)
