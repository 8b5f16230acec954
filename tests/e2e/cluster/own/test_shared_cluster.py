"""Test of three teams that share a cluster. Each has a namespace with Pod Security restricted and a ResourceQuota.

A team has far more episodes than its quota allows. Its quota is used, few pods are rejected, and the other teams'
episodes run at the same time.
"""

import itertools
import json
import re
import subprocess
import threading
import time
from contextlib import contextmanager

import pytest

from tests.e2e.cluster.episodes import REPAIR, SUBMIT, debug_task, episode_set, inline_source, replay, shell, task_spec
from tests.e2e.cluster.release import installed
from tests.e2e.cluster.support import Kubectl, new_namespace, until

ROOM = 9
"""Number of pods that the quota of the crowded namespace allows."""
WAITING = 200
EPISODE_SECONDS = 25.0
WINDOW_SECONDS = 65.0
"""Time for at least two waves of pods."""
VACANT_SECONDS = 6.0
"""Highest unused time of the quota's places for each created pod. A busy machine reaches 4 s."""
RESOURCES = {"requests": {"cpu": "20m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}}
ENDED = ("Succeeded", "Failed")
_FIELDS = r"{.type},{.object.metadata.name},{.object.status.phase},{.object.metadata.deletionTimestamp}{'\n'}"
_METRICS = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:8080/metrics').read().decode())"
_POSTS = re.compile(r'dgym_operator_api_requests_total\{code="(\d+)",resource="pods",verb="create"\} (\S+)')


def quota(**hard):
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "team"}, "spec": {"hard": hard}}


def limit_range(**limits):
    kind = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "team"}}
    return {**kind, "spec": {"limits": [{"type": "Container", **limits}]}}


@pytest.fixture(scope="module")
def crowded():
    """A quota of nine pods and of limits.cpu. The latter requires CPU limits, which the LimitRange sets."""
    with new_namespace("e2e-crowded") as kubectl:
        kubectl.apply(limit_range(default={"cpu": "1"}, defaultRequest={"cpu": "10m"}))
        kubectl.apply(quota(**{"pods": str(ROOM), "limits.cpu": "100"}))
        yield kubectl


@pytest.fixture(scope="module")
def small():
    """A quota of memory for two pods."""
    with new_namespace("e2e-small") as kubectl:
        kubectl.apply(quota(**{"requests.memory": "450Mi"}))
        yield kubectl


@pytest.fixture(scope="module")
def roomy():
    """A quota for all its pods, and a memory limit for each container."""
    with new_namespace("e2e-roomy") as kubectl:
        kubectl.apply(limit_range(max={"memory": "2Gi"}), quota(pods="50"))
        yield kubectl


@pytest.fixture(scope="module")
def release(crowded, small, roomy):
    values = {"watchNamespaces": [each.namespace for each in (crowded, small, roomy)]}
    with installed("teams", watch=crowded.namespace, agents=1, values=values) as release:
        yield release


class Occupancy:
    """Number of a namespace's pods that use the quota, over time."""

    def __init__(self) -> None:
        self._pods: set[str] = set()
        self._counts: list[tuple[float, int]] = [(time.monotonic(), 0)]
        self.running: list[tuple[float, int]] = [(time.monotonic(), 0)]
        self._phases: dict[str, str] = {}

    @property
    def active(self) -> int:
        return len(self._pods)

    def observe(self, line: str) -> None:
        """Count an event of the watch: its type, the pod, the pod's phase and when its deletion was requested.

        A ResourceQuota counts a pod that is being deleted only during its grace period. So such a pod is not counted.
        """
        kind, name, phase, deleted = line.strip().split(",")
        if kind == "DELETED" or phase in ENDED or deleted:
            self._pods.discard(name)
            self._phases.pop(name, None)
        else:
            self._pods.add(name)
            self._phases[name] = phase
        now = time.monotonic()
        self._counts.append((now, len(self._pods)))
        self.running.append((now, sum(each == "Running" for each in self._phases.values())))

    def shares(self, begin: float, end: float, counts: list[tuple[float, int]] | None = None) -> dict[int, float]:
        """The share of the time with each number of pods."""
        found: dict[int, float] = {}
        changes = [*(self._counts if counts is None else counts), (end, 0)]
        for (since, count), (until_, _) in itertools.pairwise(changes):
            seconds = min(until_, end) - max(since, begin)
            if seconds > 0:
                found[count] = found.get(count, 0.0) + seconds / (end - begin)
        return found


@contextmanager
def watching(kubectl: Kubectl):
    """The namespace's pods, counted while the block runs."""
    occupancy = Occupancy()
    command = ("kubectl", "-n", kubectl.namespace, "get", "pods", "--watch", "--output-watch-events")
    with subprocess.Popen((*command, "-o", f"jsonpath={_FIELDS}"), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        reader = threading.Thread(target=lambda: [occupancy.observe(line) for line in process.stdout if line.strip()])
        reader.start()
        try:
            yield occupancy
        finally:
            process.terminate()
            reader.join()


def posts(release):
    """Number of requests of both operators to create pods, by HTTP status."""
    found: dict[int, int] = {}
    for pod in release.kubectl.items("pods", "app.kubernetes.io/component=operator"):
        text = release.kubectl("exec", pod["metadata"]["name"], "--", "python", "-c", _METRICS)
        for code, value in _POSTS.findall(text):
            found[int(code)] = found.get(int(code), 0) + int(float(value))
    return found


def start(kubectl, count, seconds):
    """Create a set of ``count`` episodes that last ``seconds`` each."""
    agent = replay(*[shell(f"sleep {seconds / 2:g}")] * 2, REPAIR, SUBMIT)
    kubectl.apply(debug_task("sums", task_spec(inline_source())))
    template = {"agent": agent, "podOverrides": {"resources": RESOURCES}}
    spec = {"tasks": [{"name": "sums"}], "samples": count, "parallelism": count, "template": template}
    kubectl.apply(episode_set("crowd", **spec))


def status(kubectl):
    return (kubectl.get("episodeset", "crowd") or {}).get("status", {})


def test_a_full_quota_is_fully_used_with_few_refused_requests(release, crowded, small, roomy):
    with watching(crowded) as pods:
        start(crowded, WAITING, EPISODE_SECONDS)
        start(small, 4, 4.0)
        start(roomy, 3, 4.0)
        until(lambda: pods.active == ROOM, what="the quota to be used")
        begin = time.monotonic()
        waiting = until(
            lambda: status(crowded) if "quota" in status(crowded).get("waiting", "") else None, what="quota"
        )
        assert "ResourceQuota team is used up" in waiting["message"]
        while time.monotonic() < begin + WINDOW_SECONDS:
            time.sleep(0.5)
        end = time.monotonic()
    shares, counts = pods.shares(begin, end), posts(release)
    running = pods.shares(begin, end, pods.running)
    figures = {
        "pods": {count: round(share, 3) for count, share in sorted(shares.items())},
        "running": {count: round(share, 3) for count, share in sorted(running.items())},
        "posts": counts,
        "status": {key: status(crowded).get(key) for key in ("active", "pending", "resolved", "waiting")},
    }
    print(json.dumps(figures))
    for kubectl in (small, roomy):
        done = ("wait", "--for=condition=Finished", "episodeset/crowd", "--timeout=180s")
        kubectl(*done, timeout=200)
        assert status(kubectl)["resolved"] == status(kubectl)["total"], status(kubectl)
    assert figures["status"]["pending"] > 0, "episodes waited to the end"
    crowded("patch", "episodeset", "crowd", "--type=merge", "-p", '{"spec": {"cancel": true}}')
    assert max(shares) == ROOM, figures
    vacant = sum((ROOM - count) * share for count, share in shares.items()) * (end - begin)
    assert vacant / counts[201] <= VACANT_SECONDS, figures
    assert counts.get(403, 0) <= 1.2 * counts[201], figures
