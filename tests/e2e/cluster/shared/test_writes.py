"""Test of the number of writes by the operator, counted in the API server's audit log."""

import json
import os
from collections import Counter
from pathlib import Path

import pytest

from tests.e2e.cluster.episodes import debug_task, episode_set, inline_source, task_spec
from tests.e2e.cluster.support import until

WRITES = {"create", "update", "patch", "delete"}
TRANSITIONS = {"assignment", "completionTime"}
"""A patch of an Episode's status without these fields reports progress, which has a separate budget."""
EPISODES = 4


@pytest.fixture
def audit_log():
    path = os.environ.get("DGYM_E2E_AUDIT_LOG")
    if not path:
        pytest.skip("this cluster's audit log cannot be read (DGYM_E2E_AUDIT_LOG names it where it can)")
    return Path(path)


def test_six_writes_for_an_episode_of_a_set(namespace, system, audit_log):
    """POST Episode, POST pod, PATCH assigned, PATCH finished, DELETE pod, DELETE Episode. The limit is 8."""
    namespace.apply(debug_task("sums", task_spec(inline_source()), counted="yes"))
    template = {"agent": {"name": "solution"}, "ttlSecondsAfterFinished": 0}
    chosen = {"taskSelector": {"matchLabels": {"counted": "yes"}}, "samples": EPISODES, "parallelism": EPISODES}
    namespace.apply(episode_set("counted", **chosen, template=template))
    namespace("wait", "--for=condition=Finished", "episodeset/counted", "--timeout=180s")
    until(lambda: not namespace.items("episodes"), what="the episodes to go")
    until(lambda: not namespace.items("pods"), what="the pods to go")
    writes = Counter(written(audit_log, namespace.namespace, system.namespace))
    by_episode = {kind: number for kind, number in writes.items() if kind[1] in ("episodes", "pods")}
    print(json.dumps({" ".join(kind): number for kind, number in sorted(writes.items())}, indent=2))
    assert sum(by_episode.values()) == 6 * EPISODES, by_episode


def written(audit_log, namespace, system):
    """Verb and resource of every write by the operator's account in the namespace, except Events and progress."""
    for line in audit_log.read_text().splitlines():
        event = json.loads(line)
        what = event.get("objectRef", {})
        by_operator = event.get("user", {}).get("username", "").startswith(f"system:serviceaccount:{system}:")
        done = event["stage"] == "ResponseComplete" and event["verb"] in WRITES
        if by_operator and done and what.get("namespace") == namespace and what.get("resource") != "events":
            status = event.get("requestObject", {}).get("status")
            if status is not None and TRANSITIONS.isdisjoint(status):
                continue
            yield event["verb"], what["resource"], what.get("subresource", "")
