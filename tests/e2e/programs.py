"""Programs with which an agent attacks its own sandbox, and their expected outcome on every platform.

Each program is a call of bash between a repair and the submission. The outcome must be equal on a laptop and a cluster.
"""

from typing import Any, NamedTuple

from tests.e2e.cluster.episodes import REPAIR, SUBMIT, inline_source, shell, task_spec

PROGRAMS = {
    "memory": "python3 -c 'held = [bytearray(1 << 22) for _ in range(1 << 12)]'",
    "terminate": "kill -TERM 1; sleep 1",
    "forks": "timeout 5 bash -c 'bomb() { bomb | bomb & }; bomb; sleep 4'",
    "disk": "mkdir -p /dev/shm/d; head -c 300M /dev/zero > /dev/shm/d/full || true; ls -s /dev/shm/d; exit 0",
    "changes": 'python3 -c \'for n in range(300): open(f"junk-{n}.bin", "wb").write(bytes([n % 250]) * (1 << 20))\'',
}
"""``disk`` fills a file system of 64 MiB that belongs to the sandbox. It must not fill the machine's disk."""


class Outcome(NamedTuple):
    """Fields of the outcome that must be equal on every platform."""

    reason: str
    score: int
    max_score: int
    steps: int
    clean: bool


EXPECTED = dict.fromkeys(PROGRAMS, Outcome("Resolved", 1, 1, 3, clean=True))


def calls(program: str) -> tuple[dict[str, Any], ...]:
    """The tool calls of the episode."""
    attack = shell(PROGRAMS[program])
    attack["arguments"]["timeout_seconds"] = 120
    return REPAIR, attack, SUBMIT


def task() -> dict[str, Any]:
    """The spec of the task."""
    return task_spec(inline_source(), resources={"limits": {"memory": "256Mi"}})
