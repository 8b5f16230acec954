"""Measurement of all sizes, which writes the tables of docs/scale.md.

``python -m tests.perf.scale`` takes about an hour on two cores. ``python -m tests.perf.scale 100 1000`` measures these
sizes again and keeps the other rows.
"""

import sys
import tempfile
from pathlib import Path

from tests.perf.scale import page
from tests.perf.scale.active import measure_active
from tests.perf.scale.comparison import compare

SIZES = (100, 300, 1000, 2000, 5000, 10_000)
_ACTIVE_FROM = 1000
"""With fewer episodes, the replacement of a leader is too fast to be measured."""


def main(arguments: list[str]) -> None:
    """Measure the sizes. Write each row as soon as it is measured."""
    for number in map(int, arguments or SIZES):
        with tempfile.TemporaryDirectory(prefix="dgym-perf-") as scratch:
            page.write_comparison(number, compare(Path(scratch), number))
            if number >= _ACTIVE_FROM:
                page.write_active(number, measure_active(Path(scratch) / "active", number))


if __name__ == "__main__":
    main(sys.argv[1:])
