"""The process that ``ask`` starts: sets its resource limits, then calls the function ``answer`` for each request.

It imports only the standard library, because it is started without site-packages.
"""

import json
import resource
import runpy
import sys
from collections.abc import Callable
from typing import Any

MEMORY_BYTES = 96 * 1024**2
"""Limit of the address space. The program may run in a sidecar with 128 MiB, and uses less than half of that."""

SECONDS = 5
ANSWER_CHARACTERS = 256 * 1024


def main(path: str) -> None:
    """Answer the requests on standard input, one JSON value per line. The answer is null if a request fails."""
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
