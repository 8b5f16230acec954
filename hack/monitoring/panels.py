"""The shape that all dashboards have in common: variables, panels and their queries."""

from collections.abc import Iterable
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

from dgym.metrics import NAMESPACE

_DATASOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
P = TypeVar("P", timeseries.Panel, stat.Panel, bargauge.Panel)
_HEIGHT = 8
_WIDTH = 12


class Query(NamedTuple):
    """A query and the legend of its series."""

    expression: str
    legend: str = ""


class Panel(NamedTuple):
    """A panel: ``unit`` is one of Grafana's, ``kind`` is ``lines``, ``stack``, ``number`` or ``bars``."""

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    kind: str = "lines"


class Board(NamedTuple):
    """A dashboard: panels two in a row; numbers come first, four in a row."""

    name: str
    title: str
    description: str
    panels: tuple[Panel, ...]


def build(board: Board) -> Dashboard:
    """The dashboard as Grafana's schema has it."""
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
    """The newest value; without it a panel has no options at all, which Grafana's schema does not allow."""
    return common.ReduceDataOptions().calcs(["lastNotNull"])


def _common(builder: P, panel: Panel) -> P:
    described = builder.title(panel.title).description(panel.description).unit(panel.unit).datasource(_DATASOURCE)
    return described.targets(list(_targets(panel)))


def _targets(panel: Panel) -> Iterable[prometheus.Dataquery]:
    for number, query in enumerate(panel.queries):
        target = prometheus.Dataquery().expr(query.expression).ref_id(chr(ord("A") + number)).datasource(_DATASOURCE)
        target = target.legend_format(query.legend or "__auto")
        yield target.instant() if panel.kind in ("number", "bars") else target.range()
