"""Tests of recording rules and alerts: conditions under which each alert fires, descriptions and runbooks."""

import subprocess
from pathlib import Path

import yaml

from tests.integration.monitoring.conftest import ROOT, RULES

CASES = Path(__file__).with_name("rules_test.yaml")
RUNBOOKS = ROOT / "docs" / "runbooks"


def rules(kind):
    groups = yaml.safe_load(RULES.read_text("utf-8"))["groups"]
    return {rule[kind]: rule for group in groups for rule in group["rules"] if kind in rule}


def test_the_rules_pass_promtools_linter(promtool):
    done = subprocess.run(
        [promtool, "check", "rules", "--lint=all", "--lint-fatal", RULES], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_alerts_fire_as_the_cases_expect(promtool):
    done = subprocess.run([promtool, "test", "rules", CASES], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not():
    fires, quiet = set(), set()
    for case in yaml.safe_load(CASES.read_text("utf-8"))["tests"]:
        for each in case["alert_rule_test"]:
            (fires if each["exp_alerts"] else quiet).add(each["alertname"])
    assert fires == quiet == rules("alert").keys()


def test_each_alert_is_described_and_has_a_runbook():
    for name, rule in rules("alert").items():
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}
        assert rule["annotations"]["runbook_url"] == f"docs/runbooks/{name}.md"
        page = (RUNBOOKS / f"{name}.md").read_text("utf-8")
        assert page.startswith(f"# {name}\n")
        for section in ("Meaning", "Impact", "Diagnosis", "Mitigation"):
            assert f"\n## {section}\n" in page
    assert {path.stem for path in RUNBOOKS.glob("*.md")} == rules("alert").keys()


def test_recording_rules_are_named_by_level_metric_and_operations():
    for name, rule in rules("record").items():
        level, metric, operations = name.split(":")
        assert metric.startswith("dgym_")
        assert operations
        # The first aggregation determines the remaining labels.
        assert f"by ({', '.join(level.split('_'))})" in rule["expr"] or level.split("_")[0] == "namespace"
