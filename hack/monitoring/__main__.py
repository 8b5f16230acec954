"""Writes what is made from the catalogues of metrics: docs/metrics.md and the dashboards of the chart.

python -m hack.monitoring            write them
python -m hack.monitoring --check    exit status 1 if that would change anything
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from hack.monitoring.dashboards import dashboards
from hack.monitoring.page import page

ROOT = Path(__file__).resolve().parents[2]


def outputs() -> Iterator[tuple[Path, str]]:
    """Every file and what it ought to hold."""
    yield ROOT / "docs" / "metrics.md", page()
    for name, text in dashboards():
        yield ROOT / "charts" / "dgym" / "files" / "dashboards" / f"{name}.json", text


def main(arguments: list[str]) -> int:
    """Write, or with ``--check`` name what is out of date."""
    wanted = dict(outputs())
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text("utf-8") != text]
    for path in stale:
        if arguments != ["--check"]:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(wanted[path], "utf-8")
        print(f"{path.relative_to(ROOT)} {'is out of date' if arguments else 'written'}")
    return 1 if stale and arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
