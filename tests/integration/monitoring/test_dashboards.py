"""Tests of dashboards and rules: their metrics exist, Prometheus parses their PromQL, and panels have descriptions."""

import json
import subprocess

import pytest
import yaml

from dgym.wire import EndReason
from dgym_operator.app._metrics import END_REASONS, WAIT_REASONS
from hack.monitoring.__main__ import outputs
from tests.integration.monitoring.conftest import DASHBOARDS, ROOT
from tests.integration.monitoring.expressions import TARGET_LABELS, known, labels, names, queries, rules

NAMES = ("failures", "latency", "model", "operator", "progress")


def test_generated_files_are_up_to_date():
    assert [path.relative_to(ROOT) for path, text in outputs() if path.read_text("utf-8") != text] == []


def test_no_field_of_a_dashboard_is_null():
    """In Grafana's schema, fields may be missing but not null."""
    for path in sorted(DASHBOARDS.glob("*.json")):
        assert [line for line in path.read_text("utf-8").splitlines() if line.endswith((": null,", ": null"))] == []


def test_promtool_parses_every_query_of_a_panel(promtool, tmp_path):
    found = [{"record": f"query:{number}", "expr": each.text} for number, each in enumerate(queries())]
    assert len(found) > 40
    file = tmp_path / "queries.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": found}]}))
    done = subprocess.run([promtool, "check", "rules", "--lint=none", file], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(found)} rules found" in done.stdout


def test_every_metric_and_label_exists():
    there = known()
    for each in (*queries(), *rules()):
        asked = names(each.text)
        assert asked, each
        assert asked <= there.keys(), each
        of_metrics = set().union(*(there[name] for name in asked))
        assert labels(each.text) <= of_metrics | TARGET_LABELS, each


def test_a_metric_or_a_label_that_does_not_exist_is_found():
    assert names('sum by (reason) (rate(dgym_things_total{a="b"}[5m])) / other{x=~"dgym_no"}') == {
        "dgym_things_total",
        "other",
    }
    assert labels('sum by (reason) (rate(dgym_things_total{a="b, c", d!~"e"}[5m])) and on (x, y) z') == set("adxy") | {
        "reason"
    }


def test_failures_are_the_ends_that_are_not_counted():
    outcomes = "|".join(reason.value for reason in EndReason if reason.is_counted)
    (failed,) = (each for each in rules() if each.where.endswith("dgym_episodes_failed:ratio_increase30m"))
    assert f'reason!~"{outcomes}"' in failed.text
    assert f'reason!~"{outcomes}"' in "".join(each.text for each in queries())


def test_reasons_in_rules_and_dashboards_exist():
    reasons = {*END_REASONS, *WAIT_REASONS}
    for each in (*queries(), *rules()):
        for part in each.text.split("reason")[1:]:
            value = part.lstrip("=!~").split('"')[1] if part.startswith(("=", "!")) else ""
            assert set(filter(None, value.split("|"))) <= reasons, each


@pytest.mark.parametrize("name", NAMES)
def test_a_dashboard_has_its_variables_and_its_panels_units_and_descriptions(name):
    board = json.loads((DASHBOARDS / f"{name}.json").read_text("utf-8"))
    assert board["uid"] == f"dgym-{name}"
    assert [each["name"] for each in board["templating"]["list"]] == [
        "datasource",
        "namespace",
        *(["episode_namespace"] if name != "operator" else []),
    ]
    assert len({panel["title"] for panel in board["panels"]}) == len(board["panels"])
    for panel in board["panels"]:
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        for target in panel["targets"]:
            assert 'namespace="$namespace"' in target["expr"]


def test_the_dashboards_are_those_five():
    assert sorted(path.stem for path in DASHBOARDS.glob("*.json")) == sorted(NAMES)
