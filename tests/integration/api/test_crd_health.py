"""Tests of the health that Flux, Helm and Argo CD compute from the statuses of the operator, on a real API server."""

import json
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
import yaml
from lupa.lua51 import LuaRuntime

from dgym.api import Condition, EpisodeSetStatus, EpisodeStatus, SandboxPoolStatus
from dgym_operator.controllers import set_with_readiness, with_derived
from dgym_operator.controllers._conditions import with_readiness
from tests.support.required import built

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
SPECS = {
    "DebugTask": {"image": "example.com/calc:1"},
    "Episode": {"taskRef": {"name": "calc"}, "agent": {"name": "debug_agent"}},
    "EpisodeSet": {"tasks": [{"name": "calc"}]},
    "SandboxPool": {"taskRef": {"name": "calc"}},
}
HEALTH = Path(__file__).parents[3] / "docs" / "argocd-health.yaml"
NEW = None
"""An object without status: the operator has not processed it yet."""


def finished(status="True"):
    return Condition(type="Finished", status=status, reason="R", last_transition_time=NOW)


def episode(reason, *conditions, generation=1, **more):
    status = EpisodeStatus(reason=reason, conditions=conditions, observed_generation=generation, **more)
    return with_derived(status, NOW)


def episode_set(reason, *conditions, **counts):
    status = EpisodeSetStatus(reason=reason, conditions=conditions, observed_generation=1, **counts)
    return set_with_readiness(status, NOW)


def pool(reason, *, ready=False, stalled=False):
    conditions = with_readiness((), ready=ready, stalled=stalled, reason=reason, message="m", at=NOW)
    return SandboxPoolStatus(reason=reason, conditions=conditions, observed_generation=1)


SUSPENDED = Condition(type="Suspended", status="True", reason="Suspended", last_transition_time=NOW)
OVER, GOES_ON = finished(), finished("False")
CASES = [
    ("DebugTask", NEW, "Current"),
    ("Episode", NEW, "InProgress"),
    ("Episode", episode("Pending"), "InProgress"),
    ("Episode", episode("WaitingForSlot"), "InProgress"),
    ("Episode", episode("Unschedulable"), "InProgress"),
    ("Episode", episode("Running", pod_name="a-1"), "InProgress"),
    ("Episode", episode("Terminating", pod_name="a-1"), "InProgress"),
    ("Episode", episode("Suspended", SUSPENDED), "Current"),
    ("Episode", episode("Resolved", OVER), "Current"),
    ("Episode", episode("Unresolved", OVER), "Current"),
    ("Episode", episode("Cancelled", OVER), "Current"),
    ("Episode", episode("Unschedulable", OVER), "Failed"),
    ("Episode", episode("ModelError", OVER), "Failed"),
    ("Episode", episode("InvalidSpec", OVER), "Failed"),
    ("Episode", episode("Resolved", OVER, generation=0), "InProgress"),
    ("EpisodeSet", NEW, "InProgress"),
    ("EpisodeSet", episode_set("WaitingForTask", GOES_ON), "InProgress"),
    ("EpisodeSet", episode_set("Running", GOES_ON), "InProgress"),
    ("EpisodeSet", episode_set("EpisodeRefused", GOES_ON), "Failed"),
    ("EpisodeSet", episode_set("Suspended", SUSPENDED), "Current"),
    ("EpisodeSet", episode_set("Resuming", SUSPENDED), "InProgress"),
    ("EpisodeSet", episode_set("Completed", OVER, total=3, resolved=1, failed=2), "Current"),
    ("EpisodeSet", episode_set("Completed", OVER, total=3, failed=3), "Failed"),
    ("EpisodeSet", episode_set("Cancelled", OVER), "Current"),
    ("EpisodeSet", episode_set("MaxFailedReached", GOES_ON), "InProgress"),
    ("EpisodeSet", episode_set("MaxFailedReached", OVER), "Failed"),
    ("EpisodeSet", episode_set("TaskListLost", OVER), "Failed"),
    ("SandboxPool", NEW, "InProgress"),
    ("SandboxPool", pool("Starting"), "InProgress"),
    ("SandboxPool", pool("Ready", ready=True), "Current"),
    ("SandboxPool", pool("Disabled", ready=True), "Current"),
    ("SandboxPool", pool("Refused", stalled=True), "Failed"),
]


@pytest.fixture
def stored(kinds, api_namespace):
    """The objects of ``CASES`` as the API server returns them."""

    def store(number, kind, status):
        name = f"case-{number}"
        kinds.create(api_namespace, kinds.manifest(kind, SPECS[kind], name))
        change = {} if status is NEW else {"status": msgspec.to_builtins(status)}
        code, answer = kinds.patch(api_namespace, kind, name, change, below="" if status is NEW else "/status")
        assert code == 200, answer
        return answer

    return [store(number, kind, status) for number, (kind, status, _) in enumerate(CASES)]


def test_kstatus_reports_the_expected_status(stored):
    program = built("kstatus")
    objects = json.dumps({"apiVersion": "v1", "kind": "List", "items": stored})
    done = subprocess.run([program], input=objects, capture_output=True, text=True, check=True, timeout=60)
    statuses = [status for status, _ in json.loads(done.stdout)]
    assert [*zip(_names(), statuses, strict=True)] == [*zip(_names(), (case[2] for case in CASES), strict=True)]


def test_argo_cd_reports_the_expected_health(stored):
    found = [argo_health(each)["status"] for each in stored]
    assert [*zip(_names(), found, strict=True)] == [*zip(_names(), map(_in_argo_cd, CASES), strict=True)]


def test_argo_cd_shows_reason_and_message():
    shown = argo_health({"kind": "Episode", "metadata": {"generation": 2}, "status": {"observedGeneration": 1}})
    assert shown["message"] == "the operator has not seen this version yet"
    status = {"observedGeneration": 1, "reason": "ModelError", "message": "model m: 503", "conditions": []}
    shown = argo_health({"kind": "Episode", "metadata": {"generation": 1}, "status": status})
    assert (shown["status"], shown["message"]) == ("Progressing", "ModelError: model m: 503")


def argo_health(item):
    """Return the health in Argo CD, which runs the script of the kind with the object as the global ``obj``."""
    checks = yaml.safe_load(HEALTH.read_text())["data"]
    check = checks.get(f"resource.customizations.health.dgym.dev_{item['kind']}")
    if check is None:
        # Without a script, Argo CD reports an existing object as healthy.
        return {"status": "Healthy", "message": ""}
    # The interpreter of Argo CD implements Lua 5.1.
    lua = LuaRuntime(register_builtins=False)
    lua.globals().obj = lua.table_from(item, recursive=True)
    return dict(lua.execute(check))


def _in_argo_cd(case):
    _, status, expected = case
    if status is not NEW and status.reason == "Suspended":
        return "Suspended"
    return {"Current": "Healthy", "InProgress": "Progressing", "Failed": "Degraded"}[expected]


def _names():
    return [f"{kind} {'new' if status is NEW else status.reason}" for kind, status, _ in CASES]
