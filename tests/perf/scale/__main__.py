"""Measures all sizes and records the results, from which ``hack/scale.py`` writes docs/scale.md.

``python -m tests.perf.scale`` takes about an hour on two cores. ``python -m tests.perf.scale 100 1000`` measures these
sizes again and keeps the others.
"""

import os
import platform
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from tests.perf.scale.active import Active, measure_active
from tests.perf.scale.comparison import Comparison, compare

RESULTS = Path(__file__).with_name("results.json")
SIZES = (100, 300, 1000, 2000, 5000, 10_000)
_ACTIVE_FROM = 1000
"""With fewer, leaders are replaced in less than can be measured."""


class Results(msgspec.Struct, kw_only=True):
    """What was measured, by the number of episodes, and on what."""

    machine: dict[str, Any] = {}
    compared: dict[int, Comparison] = {}
    active: dict[int, Active] = {}


def main(arguments: list[str]) -> None:
    """Measure the sizes, and write each as soon as it is there."""
    results = msgspec.json.decode(RESULTS.read_bytes(), type=Results) if RESULTS.exists() else Results()
    results.machine = {"cores": os.cpu_count(), "python": platform.python_version()}
    for number in map(int, arguments or SIZES):
        with tempfile.TemporaryDirectory(prefix="dgym-perf-") as scratch:
            results.compared[number] = compare(Path(scratch), number)
            _write(results)
            if number >= _ACTIVE_FROM:
                results.active[number] = measure_active(Path(scratch) / "active", number)
                _write(results)


def _write(results: Results) -> None:
    found = msgspec.to_builtins(results, str_keys=True)
    RESULTS.write_bytes(msgspec.json.format(msgspec.json.encode(found, order="sorted")) + b"\n")


if __name__ == "__main__":
    main(sys.argv[1:])
