"""Builds dashboards: variables, panels and their queries."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeVar

from grafana_foundation_sdk.builders import bargauge, common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.models.common import LegendDisplayMode, LegendPlacement, StackingMode
from grafana_foundation_sdk.models.dashboard import (
    Dashboard,
    DashboardCursorSync,
    DataSourceRef,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

from dgym.episodes.agent_pod import CATALOGUE as AGENTS
from dgym.metric_types import NAMESPACE
from dgym_operator.app import CATALOGUE as OPERATOR

_DATASOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
P = TypeVar("P", timeseries.Panel, stat.Panel, bargauge.Panel)
_HEIGHT = 8
_WIDTH = 12
HERE = 'namespace="$namespace"'
"""Matcher for the namespace of the installation."""
_OF_NAMESPACE = {NAMESPACE: f'{NAMESPACE}=~"${NAMESPACE}"', "set": f'set=~"${NAMESPACE}/.*"'}
"""Matchers for the namespaces of Episodes, by label. ``All`` also matches series without the label."""
_LABELS = {
    series: metric.labels
    for metric in (*OPERATOR.metrics.values(), *AGENTS.metrics.values())
    for series in metric.series
}


class Query(NamedTuple):
    """A query and the legend of its series."""

    expression: str
    legend: str = ""


class Panel(NamedTuple):
    """A panel. ``unit`` is a unit of Grafana. ``kind`` is ``lines``, ``stack``, ``number`` or ``bars``."""

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    kind: str = "lines"


class Board(NamedTuple):
    """A dashboard. A row has four panels of kind ``number``, which come first, or two other panels."""

    name: str
    title: str
    description: str
    panels: tuple[Panel, ...]


def build(board: Board) -> Dashboard:
    """Return the dashboard in Grafana's schema."""
    made = (
        dashboard.Dashboard(board.title)
        .uid(f"dgym-{board.name}")
        .description(board.description)
        .tags(["dgym"])
        .editable()
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .refresh("30s")
        .time("now-3h", "now")
        .timezone("browser")
        .with_variable(dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
        .with_variable(
            dashboard.QueryVariable("namespace")
            .label("Namespace of the installation")
            .query("label_values(dgym_operator_build_info, namespace)")
            .datasource(_DATASOURCE)
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
            .sort(VariableSort.ALPHABETICAL_ASC)
        )
    )
    if any(f"${NAMESPACE}" in query.expression for panel in board.panels for query in panel.queries):
        made = made.with_variable(
            dashboard.QueryVariable(NAMESPACE)
            .label("Namespaces of episodes")
            .query(f'label_values(dgym_episodes{{namespace="$namespace"}}, {NAMESPACE})')
            .datasource(_DATASOURCE)
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
            .sort(VariableSort.ALPHABETICAL_ASC)
            .multi(True)
            .include_all(True)
            .all_value(".*")
            .current(VariableOption(selected=True, text=["All"], value=["$__all"]))
        )
    for panel in board.panels:
        made = made.with_panel(_panel(panel))
    return made.build()


def _panel(panel: Panel) -> timeseries.Panel | stat.Panel | bargauge.Panel:
    if panel.kind == "number":
        return _common(stat.Panel(), panel).reduce_options(_last()).span(6).height(4)
    if panel.kind == "bars":
        bars = _common(bargauge.Panel(), panel).reduce_options(_last())
        return bars.span(_WIDTH).height(_HEIGHT).min(0).max(1)
    legend = common.VizLegendOptions().display_mode(LegendDisplayMode.LIST).placement(LegendPlacement.BOTTOM)
    lines = _common(timeseries.Panel(), panel).span(_WIDTH).height(_HEIGHT).min(0).legend(legend.show_legend(True))
    if panel.kind == "stack":
        lines = lines.fill_opacity(40).stacking(common.StackingConfig().mode(StackingMode.NORMAL))
    return lines


def _last() -> common.ReduceDataOptions:
    """Return options that show the last value. Grafana's schema does not allow a panel without options."""
    return common.ReduceDataOptions().calcs(["lastNotNull"])


def _common(builder: P, panel: Panel) -> P:
    described = builder.title(panel.title).description(panel.description).unit(panel.unit).datasource(_DATASOURCE)
    return described.targets(list(_targets(panel)))


def _targets(panel: Panel) -> Iterable[prometheus.Dataquery]:
    for number, query in enumerate(panel.queries):
        target = prometheus.Dataquery().expr(query.expression).ref_id(chr(ord("A") + number)).datasource(_DATASOURCE)
        target = target.legend_format(query.legend or "__auto")
        yield target.instant() if panel.kind in ("number", "bars") else target.range()


def _select(metric: str, labels: Mapping[str, str]) -> str:
    """Return a selector for the chosen namespaces. Values of labels are regular expressions, which ``!`` negates."""
    matchers = [
        f'{name}{"!~" if value.startswith("!") else "=~"}"{value.removeprefix("!")}"' for name, value in labels.items()
    ]
    chosen = [matcher for label, matcher in _OF_NAMESPACE.items() if label in _LABELS.get(metric, {})]
    return f"{metric}{{{', '.join([HERE, *chosen, *matchers])}}}"


def leader(metric: str, **labels: str) -> str:
    """Return a query for a gauge of the operator's leader."""
    return f"({_select(metric, labels)} and on (instance) dgym_operator_is_leader{{{HERE}}} == 1)"


def rate(metric: str, by: str = "", window: str = "$__rate_interval", **labels: str) -> str:
    """Return a query for the rate of a counter, summed over all processes. The labels in ``by`` are kept."""
    grouped = f" by ({by})" if by else ""
    return f"sum{grouped} (rate({_select(metric, labels)}[{window}]))"


def quantile(share: float, metric: str, by: str = "") -> str:
    """Return a query for a quantile of a histogram over all processes."""
    return f"histogram_quantile({share}, {rate(metric + '_bucket', f'le, {by}' if by else 'le')})"


def quantiles(metric: str, by: str = "") -> tuple[Query, ...]:
    """Return queries for the median and the 95th percentile."""
    suffix = f" {{{{{by}}}}}" if by else ""
    return (Query(quantile(0.5, metric, by), f"p50{suffix}"), Query(quantile(0.95, metric, by), f"p95{suffix}"))


def resolve_rate(metric: str, by: str) -> str:
    """Return a query for the share of resolved episodes among the counted episodes.

    ``metric`` is a gauge with the label ``state``. The labels in ``by`` are kept.
    """
    resolved, scored = (f"sum by ({by}) ({leader(metric, state=each)})" for each in ("resolved", "resolved|unresolved"))
    return f"{resolved} / ({scored} > 0)"
