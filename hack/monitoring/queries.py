"""The queries of dashboards: over all replicas, in the namespaces that the dashboard's variables name."""

from collections.abc import Mapping

from dgym.episodes.pod import CATALOGUE as AGENTS
from dgym.metrics import NAMESPACE
from dgym_operator.app import CATALOGUE as OPERATOR
from hack.monitoring.panels import Query

HERE = 'namespace="$namespace"'
"""Matcher of the installation."""
_OF_NAMESPACE = {NAMESPACE: f'{NAMESPACE}=~"${NAMESPACE}"', "set": f'set=~"${NAMESPACE}/.*"'}
"""Matchers of the namespaces of Episodes, by the label that has them. ``All`` matches series without the label, too."""
_LABELS = {
    series: metric.labels
    for metric in (*OPERATOR.metrics.values(), *AGENTS.metrics.values())
    for series in metric.series
}


def _select(metric: str, labels: Mapping[str, str]) -> str:
    """The metric in the chosen namespaces; labels match regular expressions, a ``!`` before one negates it."""
    matchers = [
        f'{name}{"!~" if value.startswith("!") else "=~"}"{value.removeprefix("!")}"' for name, value in labels.items()
    ]
    chosen = [matcher for label, matcher in _OF_NAMESPACE.items() if label in _LABELS.get(metric, {})]
    return f"{metric}{{{', '.join([HERE, *chosen, *matchers])}}}"


def leader(metric: str, **labels: str) -> str:
    """A gauge of the operator, of the replica that leads."""
    return f"({_select(metric, labels)} and on (instance) dgym_operator_is_leader{{{HERE}}} == 1)"


def rate(metric: str, by: str = "", window: str = "$__rate_interval", **labels: str) -> str:
    """The rate of a counter, summed over all processes; ``by`` are the labels that are kept."""
    grouped = f" by ({by})" if by else ""
    return f"sum{grouped} (rate({_select(metric, labels)}[{window}]))"


def quantile(share: float, metric: str, by: str = "") -> str:
    """A quantile of a histogram over all processes."""
    return f"histogram_quantile({share}, {rate(metric + '_bucket', f'le, {by}' if by else 'le')})"


def quantiles(metric: str, by: str = "") -> tuple[Query, ...]:
    """Median and 95th percentile."""
    suffix = f" {{{{{by}}}}}" if by else ""
    return (Query(quantile(0.5, metric, by), f"p50{suffix}"), Query(quantile(0.95, metric, by), f"p95{suffix}"))


def resolve_rate(metric: str, by: str) -> str:
    """The resolved episodes among those with a verdict, of a gauge by state; ``by`` are the labels that are kept."""
    resolved, scored = (f"sum by ({by}) ({leader(metric, state=each)})" for each in ("resolved", "resolved|unresolved"))
    return f"{resolved} / ({scored} > 0)"
