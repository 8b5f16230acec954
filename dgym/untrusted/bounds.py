"""The process of ``ask``: bounds itself, then answers requests by the function ``answer`` of a program of ours.

Of the standard library alone, as the program is: it starts without the packages of this installation.
"""

import json
import resource
import runpy
import sys
from collections.abc import Callable
from typing import Any

MEMORY_BYTES = 96 * 1024**2
"""Address space: a sidecar, in which the program may run, has 128 MiB, of which the program touches less than half."""

SECONDS = 5
ANSWER_CHARACTERS = 256 * 1024


def main(path: str) -> None:
    """Answer the requests of the standard input, one in JSON a line; null where that fails."""
    answer: Callable[[Any], Any] = runpy.run_path(path)["answer"]
    for limit, value in (
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_CPU, SECONDS),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
    ):
        resource.setrlimit(limit, (value, value))
    for line in sys.stdin.buffer:
        sys.stdout.write(f"{_encoded(answer, line)}\n")
        sys.stdout.flush()


def _encoded(answer: Callable[[Any], Any], line: bytes) -> str:
    try:
        text = json.dumps(answer(json.loads(line)), default=str)
    except (Exception, MemoryError):
        return "null"
    return text if len(text) <= ANSWER_CHARACTERS else "null"


if __name__ == "__main__":
    main(sys.argv[1])
