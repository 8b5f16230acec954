"""The expressions of all rules and dashboards, and the names of metrics and labels in an expression."""

import json
import re
from collections.abc import Iterator
from typing import NamedTuple

import yaml

from dgym.episodes.agent_pod import CATALOGUE as AGENTS
from dgym.metric_types import NAMESPACE
from dgym_operator.app import CATALOGUE as OPERATOR
from tests.integration.monitoring.conftest import DASHBOARDS, RULES

TARGET_LABELS = {"namespace", "instance", "pod", "component", "job", "le"}
"""Labels that Prometheus or the discovery of targets adds."""
_PREFIXES = ("dgym_", "process_")
_PROCESS = {"process_resident_memory_bytes": set(), "process_cpu_seconds_total": set()}
_STRINGS = re.compile(r'"(?:[^"\\\\]|\\\\.)*"')
_NAMES = re.compile(r"[a-zA-Z_][a-zA-Z0-9_:]*(?:\s*\{)?")
_MATCHERS = re.compile(r"\{([^{}]*)\}")
_GROUPS = re.compile(r"\b(?:by|on|ignoring|without|group_left)\s*\(([^()]*)\)")


class Expression(NamedTuple):
    """The query of a panel or of a rule."""

    where: str
    text: str


def queries(*, namespace: str = "dgym", episodes: str = ".*", interval: str = "5m") -> Iterator[Expression]:
    """The queries of all panels, with values in place of Grafana's variables."""
    for path in sorted(DASHBOARDS.glob("*.json")):
        for panel in json.loads(path.read_text("utf-8"))["panels"]:
            for target in panel["targets"]:
                text = target["expr"].replace("$namespace", namespace).replace("$__rate_interval", interval)
                text = text.replace(f"${NAMESPACE}", episodes)
                assert "$" not in text
                yield Expression(f"{path.stem}: {panel['title']}", text)


def rules() -> Iterator[Expression]:
    """The expressions of all rules."""
    for group in yaml.safe_load(RULES.read_text("utf-8"))["groups"]:
        for rule in group["rules"]:
            yield Expression(rule.get("alert") or rule["record"], rule["expr"])


def known() -> dict[str, set[str]]:
    """Labels by name of the series: from the catalogues of metrics, the process metrics and the recording rules."""
    found = dict(_PROCESS)
    for metric in (*OPERATOR.metrics.values(), *AGENTS.metrics.values()):
        found |= {name: set(metric.labels) for name in metric.series}
    for group in yaml.safe_load(RULES.read_text("utf-8"))["groups"]:
        for rule in group["rules"]:
            if "record" in rule:
                found[rule["record"]] = set(rule["record"].partition(":")[0].split("_"))
    return found


def names(text: str) -> set[str]:
    """The series in an expression: names with matchers, names with a prefix of dgym's metrics, and recording rules."""
    found = _NAMES.findall(_MATCHERS.sub("{", _STRINGS.sub("", text)))
    return {each.rstrip("{ ") for each in found if each.endswith("{") or each.startswith(_PREFIXES) or ":" in each}


def labels(text: str) -> set[str]:
    """The labels in an expression."""
    bare = _STRINGS.sub("", text)
    matched = {each.strip().rstrip("=!~ ") for part in _MATCHERS.findall(bare) for each in part.split(",")}
    grouped = {each.strip() for part in _GROUPS.findall(bare) for each in part.split(",")}
    return {each for each in matched | grouped if each}
