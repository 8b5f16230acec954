"""Invariants of the status and the pods of an Episode, and of the requests that the operator sends."""

from collections import Counter, defaultdict

import msgspec

from dgym.api import TREATMENTS, ProgressReason
from dgym.wire import EndReason
from tests.simulation.api_server import is_finished, is_running, parse_path, without_generation
from tests.simulation.merging import merged
from tests.simulation.sidecar import NAMESPACE

_REASONS = {"", *ProgressReason, *TREATMENTS}
_STAGES = {"attempt", "assignment", "completionTime", "ending"}
"""The operator's write of the status is a progress report if it changes none of these fields."""
_COST = {"POST pods": 1, "PATCH episodes": 2, "DELETE pods": 1}
"""Expected requests of an episode in a run without faults, without progress reports.

The status is patched twice, for the assignment and at the end.
"""


class AttemptInvariants:
    """Observes Episodes, their pods, and the requests that change them."""

    def __init__(self, api, world, schedule):
        self._api = api
        self._world = world
        self._schedule = schedule
        # A claim without an answer may have succeeded. The Episode then has two pods until one is deleted.
        self._has_one_pod = not schedule.idle
        self._before = {}
        """The last status of each Episode, by UID."""
        self._requests = defaultdict(Counter)
        """Requests by UID of the Episode."""
        self.is_over = False
        """True when the operator has no work left."""
        self.observed = []

    def observe(self, kind, plural, item):
        """Check the invariants of every write."""
        if plural == "episodes" and kind != "DELETED":
            self._observe_status(item)
        elif plural == "pods" and kind != "DELETED" and item["spec"] and self._has_one_pod:
            self._observe_pod(item)

    def _observe_status(self, episode):
        metadata, spec, status = episode["metadata"], episode["spec"], episode.get("status", {})
        name, before = metadata["name"], self._before.get(metadata["uid"], {})
        self._before[metadata["uid"]] = status
        if status.get("reason", "") not in _REASONS:
            self.observed.append(f"{name} has the reason {status['reason']}")
        if status.get("attempt", 0) - before.get("attempt", 0) not in (0, 1):
            self.observed.append(f"attempt {before.get('attempt', 0)} of {name} is followed by {status['attempt']}")
        if is_finished({"status": before}) and without_generation(status) != without_generation(before):
            self.observed.append(f"{name} ended as {before['reason']}, and its status has changed since")
        if is_finished(episode) and not status.get("completionTime"):
            self.observed.append(f"{name} has ended, and its status has no time of that")
        for field, limit, default in (("failures", "backoffLimit", 2), ("disruptions", "maxDisruptions", 10)):
            if is_finished(episode) and status.get(field, 0) > spec.get(limit, default):
                self.observed.append(f"{name} has ended with {status[field]} {field}")
        if status.get("reason") == EndReason.SANDBOX_LOST and before.get("podName") and not status.get("podName"):
            self._observe_loss(metadata, before)

    def _observe_loss(self, metadata, before):
        """Check that the operator abandons an attempt only if its pod, its node or its agent pod has failed."""
        pod, sidecar = self._api.get("pods", NAMESPACE, before["podName"]), self._world.sidecar_of(before["podName"])
        runs = pod is not None and "deletionTimestamp" not in pod["metadata"] and is_running(pod)
        runs = runs and sidecar is not None and sidecar.reachable and "running" in sidecar.sandbox
        served = (metadata["uid"], before["attempt"]) == (sidecar.uid, sidecar.attempt) if runs else False
        if served and not any(agent.has_failed(metadata["uid"]) for agent in self._world.agents):
            self.observed.append(f"attempt {before['attempt']} of {metadata['name']} is given up, and goes on")

    def _observe_pod(self, pod):
        """Check that an Episode has one pod at a time."""
        uid = _episode_of(pod)
        present = [each for each in self._api.items("pods") if uid and _episode_of(each) == uid and self._is_open(each)]
        if len(present) > 1:
            self.observed.append(f"{', '.join(each['metadata']['name'] for each in present)} run at the same time")

    def _is_open(self, pod):
        sidecar = self._world.sidecar_of(pod["metadata"]["name"])
        over = sidecar is not None and sidecar.ending is not None
        return bool(pod["spec"]) and is_running(pod) and "deletionTimestamp" not in pod["metadata"] and not over

    def observe_request(self, _transport, request):
        """Check the invariants of a request when the operator begins to send it."""
        _, plural, name, subresource = parse_path(request.path)
        if request.method == "GET" or plural in ("leases", "events"):
            return
        # The status of a SandboxPool may still change, because it counts the pods.
        if self.is_over and plural != "sandboxpools":
            self.observed.append(f"{request.method} {plural} is sent when all is over")
        found = self._api.get(plural, NAMESPACE, name) if name is not None else None
        body = msgspec.json.decode(request.body) if request.body else {}
        if plural == "pods" and (found is not None or request.method == "POST"):
            self._count_pod(request.method, found or body)
        if found is None or plural not in ("episodes", "episodesets", "pods"):
            return
        version = body.get("metadata", {}).get("resourceVersion")
        if subresource == "status" and version in (None, found["metadata"]["resourceVersion"]):
            if merged(found, {"status": body["status"]}) == found:
                self.observed.append(f"a write of {plural} {name} changes nothing")
            if plural == "episodes" and not _STAGES.isdisjoint(body["status"]):
                self._requests[found["metadata"]["uid"]]["PATCH episodes"] += 1
        if (request.method, plural) == ("DELETE", "episodes"):
            self._requests[found["metadata"]["uid"]]["DELETE episodes"] += 1
        if (request.method, plural) == ("DELETE", "pods") and self._has_one_pod:
            self._observe_deletion(found, body)

    def _count_pod(self, method, pod):
        uid = _episode_of(pod)
        if uid is not None:
            self._requests[uid][f"{method} pods"] += 1

    def _observe_deletion(self, pod, body):
        """Check that the operator does not delete the pod of an attempt that continues."""
        uid = _episode_of(pod)
        status = self._before.get(uid)
        if status is None or body.get("preconditions", {}).get("uid") != pod["metadata"]["uid"]:
            return
        attempt, current = int(pod["metadata"]["labels"]["dgym.dev/attempt"]), status.get("attempt", 0)
        over = is_finished({"status": status}) or current > attempt
        closed = current == attempt and not status.get("podName")
        if not over and not closed and not status.get("ending"):
            self.observed.append(f"the pod {pod['metadata']['name']} of an attempt that goes on is deleted")

    def violations(self):
        """Yield the violations, including those of invariants that hold only at the end of a run."""
        yield from sorted(set(self.observed))
        if not self._schedule.is_calm or self._schedule.quota or self._schedule.idle:
            return
        expected = _COST | ({"DELETE episodes": 1} if self._schedule.ttl is not None else {})
        for uid, status in self._before.items():
            cost = self._requests[uid]
            if status.get("reason") != EndReason.RESOLVED or status["attempt"] > 1:
                continue
            if cost != expected:
                yield f"an Episode that was resolved at once has cost {dict(cost)}"


def _episode_of(pod):
    """Return the UID of the Episode that owns the pod, or None for an idle pod."""
    owners = pod["metadata"].get("ownerReferences", ())
    return next((each["uid"] for each in owners if each["kind"] == "Episode"), None)
