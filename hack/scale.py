"""Writes docs/scale.md's tables from the results of ``python -m tests.perf.scale``.

``python hack/scale.py`` writes them; ``--check`` fails when they are not what would be written.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "scale.md"
RESULTS = ROOT / "tests" / "perf" / "scale" / "results.json"


def tables(results: dict[str, Any]) -> dict[str, str]:
    """The tables by the name in their markers."""
    return {"compared": _table(_compared(results["compared"])), "active": _table(_active(results["active"]))}


def _table(rows: Iterator[tuple[str, ...]]) -> str:
    heading, *others = rows
    lines = [f"| {' | '.join(heading)} |", "|---" * len(heading) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in others), ""])


def _compared(sizes: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    yield (
        "number",
        "a second: episodes, Jobs",
        "API server and etcd, ms each",
        "operator, Job controller, ms each",
        "writes each",
        "operator, MB",
    )
    for number, found in sorted(sizes.items(), key=lambda item: int(item[0])):
        ours, theirs = found["episodes"], found["jobs"]
        yield (
            f"{int(number):,}",
            _pair(1 / _each(ours, "seconds"), 1 / _each(theirs, "seconds"), 1),
            _pair(_server(ours), _server(theirs), 1),
            _pair(1e3 * _each(ours, "controller"), 1e3 * _each(theirs, "controller"), 2),
            f"{_writes(ours):.2f}, {_writes(theirs):.2f}",
            f"{ours['memory']:.0f}",
        )


def _active(sizes: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    yield (
        "active",
        "starts a second",
        "operator, ms a start",
        "idle, % of a core",
        "at 50 ends a second, % of a core",
        "MB",
        "pause of a handover, s",
        "first decision of a new leader, s",
    )
    for number, found in sorted(sizes.items(), key=lambda item: int(item[0])):
        yield (
            f"{int(number):,}",
            f"{found['starts']:.0f}",
            f"{found['start_ms']:.2f}",
            f"{100 * found['idle']:.1f}",
            f"{100 * found['ending']:.1f}" + ("" if found["rate"] > 45 else f" (at {found['rate']:.0f})"),
            f"{found['memory']:.0f}",
            f"{found['handover']:.2f}",
            f"{found['takeover']:.2f}",
        )


def _pair(ours: float, theirs: float, digits: int) -> str:
    """Both figures, and how many times the second the first is."""
    return f"{ours:.{digits}f}, {theirs:.{digits}f} ({ours / theirs:.2f} x)"


def _each(side: dict[str, Any], name: str) -> float:
    return float(side["usage"][name]) / float(side["number"])


def _server(side: dict[str, Any]) -> float:
    return 1e3 * (_each(side, "api_server") + _each(side, "etcd"))


def _writes(side: dict[str, Any]) -> float:
    return float(sum(side["writes"].values())) / float(side["number"])


def main(arguments: list[str]) -> int:
    """Write or check the page; exit status 1 when a check fails."""
    written = wanted = PAGE.read_text(encoding="utf-8")
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {"compared": {}, "active": {}}
    for name, table in tables(results).items():
        begin, end = f"<!-- {name}: written by hack/scale.py -->\n", f"<!-- /{name} -->\n"
        before, _, rest = wanted.partition(begin)
        _, _, after = rest.partition(end)
        wanted = f"{before}{begin}{table}{end}{after}"
    if "--check" not in arguments:
        PAGE.write_text(wanted, encoding="utf-8")
    elif written != wanted:
        sys.stdout.write("docs/scale.md is out of date: run python hack/scale.py\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
