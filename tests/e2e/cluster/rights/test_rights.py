"""Tests of the rights in the chart's roles against all API requests of a run. They run after all other tests."""

import os
from pathlib import Path

import pytest
import yaml

from tests.e2e.cluster.release import CHART
from tests.e2e.cluster.support import run
from tests.security.rights import denied, granted, requests, unused

NAMESPACE = "dgym-system"
WHOLE = "DGYM_E2E_WHOLE"
START = "DGYM_E2E_AUDIT_START"
_CONFLICT = "a deletion met a conflict: whether another object has the name by now"
_REPEATED = "the same happens again within minutes: the count of the Event grows"
_INSTALLATION = "something is wrong with the installation, which no run brings about on purpose"
SELDOM = {
    "operator (served): get dgym.dev/episodesets": _CONFLICT,
    "operator (served): get dgym.dev/sandboxpools": f"the answer to the creation of a set's pool was lost; {_CONFLICT}",
    "operator (served): get /pods": f"a pod that is not in view; {_CONFLICT}",
    "operator (served): patch dgym.dev/episodes": "a set is suspended or cancelled, as in the tests of the chart",
    "operator (served): delete dgym.dev/episodesets": "a set whose time to live has passed",
    "operator (served): patch events.k8s.io/events": _REPEATED,
    "operator (own): create events.k8s.io/events": _INSTALLATION,
    "operator (own): patch events.k8s.io/events": _INSTALLATION,
}
"""Rights that a run may not use, with their purpose."""


@pytest.fixture(scope="module")
def asked():
    """The requests of this run."""
    path = os.environ.get("DGYM_E2E_AUDIT_LOG")
    if not path:
        pytest.skip("this cluster's audit log cannot be read (DGYM_E2E_AUDIT_LOG names it where it can)")
    with Path(path).open("rb") as log:
        log.seek(int(os.environ.get(START, 0)))
        lines = log.read().decode().splitlines(keepends=True)
    # The last line may be incomplete.
    return requests(line for line in lines if line.endswith("\n"))


@pytest.mark.attack("rights")
def test_no_request_was_denied(asked):
    assert {each.right.component for each in asked} >= {"operator"}
    refused = denied(asked)
    assert not refused, "\n".join(refused)


@pytest.mark.attack("rights")
def test_every_right_was_used(asked):
    if os.environ.get(WHOLE) != "1" or os.environ.get("E2E_SECURITY") != "all":
        # A sample of the faults uses a random part of the rights.
        pytest.skip("only some of the tests were run: make e2e-security runs all")
    rendered = yaml.safe_load_all(run("helm", "template", "dgym", CHART, "--namespace", NAMESPACE))
    rights = granted([each for each in rendered if each], NAMESPACE)
    never = {str(right) for right in unused(rights, asked)} - set(SELDOM)
    assert not never, "granted and never used:\n" + "\n".join(sorted(never))
