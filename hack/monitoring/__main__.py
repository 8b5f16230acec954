"""Writes docs/metrics.md and the dashboards of the chart from the catalogues of metrics.

python -m hack.monitoring            write them
python -m hack.monitoring --check    exit status 1 if that would change anything
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from dgym.episodes.agent_pod import CATALOGUE as AGENTS
from dgym.metric_types import Catalogue, HistogramMetric, Metric, Values
from dgym_operator.app import CATALOGUE as OPERATOR
from hack.monitoring.dashboards import dashboards

ROOT = Path(__file__).resolve().parents[2]
_HEAD = """\
# Metrics

Written by `python -m hack.monitoring` from the catalogues beside the code. Names begin with `dgym_`, units are base
units, counters end in `_total`. Labels have closed sets of values: no Episode, pod, user or error text is in a label;
values that are listed begin at 0. `episode_namespace` is the namespace of an Episode, for as many as
[metrics.namespaceLabel](observability.md#by-namespace) names. Both processes also export `process_*` and `python_*` of
the Prometheus client.

Gauges are computed from the cache of watched objects at each scrape and equal the objects after any fault; take those
of the operator from the leader. Counters and histograms begin at 0 with each process: sum rates over replicas. A
process that is killed loses what it counted since the last scrape, and a transition that happens while no replica leads
is not counted; `dgym_episodes` and `dgym_set_episodes` stay exact.

"""
_TABLE = """\
| metric | type | unit | labels | meaning |
|---|---|---|---|---|
"""


def page() -> str:
    """Return the text of docs/metrics.md."""
    return "".join((_HEAD, *_section("Operator", "8080", OPERATOR), "\n", *_section("Agent pods", "8081", AGENTS)))


def _section(title: str, port: str, catalogue: Catalogue) -> Iterator[str]:
    yield f"## {title}\n\n`GET /metrics` on port {port}.\n\n{_TABLE}"
    for metric in catalogue.metrics.values():
        labels = "; ".join(f"`{name}`: {_values(values)}" for name, values in metric.labels.items())
        yield f"| `{metric.name}` | {metric.kind} | {metric.unit} | {labels} | {metric.text}{_buckets(metric)} |\n"


def _values(values: Values) -> str:
    return values if isinstance(values, str) else ", ".join(f"`{value}`" for value in values)


def _buckets(metric: Metric) -> str:
    if not isinstance(metric, HistogramMetric):
        return ""
    return f" Buckets up to {', '.join(f'{bound:g}' for bound in metric.buckets)}."


def outputs() -> Iterator[tuple[Path, str]]:
    """Yield every generated file with its content."""
    yield ROOT / "docs" / "metrics.md", page()
    for name, text in dashboards():
        yield ROOT / "charts" / "dgym" / "files" / "dashboards" / f"{name}.json", text


def main(arguments: list[str]) -> int:
    """Write the files or, with ``--check``, print which are out of date. Return the exit status."""
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
