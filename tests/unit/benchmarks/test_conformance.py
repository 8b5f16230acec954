"""Tests against outcomes of SWE-bench's own harness, a sample that ``make conformance RECORD=--record`` writes."""

import json
from pathlib import Path

import pytest

from tests.conformance.cases import REPOSITORIES, Case
from tests.conformance.graders import Graded, ours

SAMPLE = Path(__file__).parents[2] / "conformance" / "sample.jsonl"
HEADER, *RECORDED = [json.loads(line) for line in SAMPLE.read_text("utf-8").splitlines()]


@pytest.mark.parametrize("parser", sorted(REPOSITORIES))
def test_outcomes_are_those_of_the_official_harness(parser):
    found = [dict(one) for one in RECORDED if one["parser"] == parser]
    assert len(found) >= 10
    for one in found:
        official = Graded(*one.pop("official"))
        assert ours(Case(**one)) == official, (HEADER, one)


def test_the_sample_records_the_grader_and_every_kind_of_outcome():
    assert HEADER == {"swebench": "5.0.2"}
    outcomes = [Graded(*one["official"]) for one in RECORDED]
    assert {(one.resolved, one.graded) for one in outcomes} == {(True, True), (False, True), (False, False)}


def test_where_dgym_differs():
    """The harness ignores ``FAILED:`` with a colon: it counts the test in neither list, and may resolve the task."""
    text = "+ : '>>>>> Start Test Output'\nFAILED: t::a\nPASSED t::b\n+ : '>>>>> End Test Output'\n"
    outcome = ours(Case(0, "pytest", "pass_and_fail", text, ["t::a"], ["t::b"]))
    assert (outcome.resolved, outcome.good) == (False, ["t::b"])
