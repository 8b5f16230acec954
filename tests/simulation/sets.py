"""What must hold of the EpisodeSet of a run: its children, and its counts of them."""

from collections import Counter

from tests.simulation.api_server import is_running
from tests.simulation.virtual import VirtualClock

_COUNTED_SECONDS = 20.0
"""Counts follow so soon: a watch may lag for seconds, and a set's status is written at most every second."""
_CANCELLED = "set: cancelled"


class SetInvariants:
    """Observes the set, its children and their pods."""

    def __init__(self, api, schedule):
        self._api = api
        # After a fault the counts may be late, and are right in the end.
        self._calm = not schedule.lossy and all(fault.kind == _CANCELLED for fault in schedule.faults)
        self._indexes = Counter()
        self._with_pod = [(0.0, 0)]
        """Since when how many unfinished children have a pod."""
        self._waiting_since = None
        self._clock = VirtualClock()
        self.observed = []

    def observe(self, kind, plural, item):
        """What must hold at every write."""
        if plural == "episodes" and kind == "ADDED" and _is_child(item):
            self._observe_child(item)
        if plural in ("episodes", "pods"):
            number, waiting = self._count()
            if number != self._with_pod[-1][1]:
                self._with_pod.append((self._clock.monotonic(), number))
            if not waiting or self._waiting_since is None:
                self._waiting_since = self._clock.monotonic() if waiting else None
        if plural == "episodesets" and self._calm:
            self._observe_counts(item.get("status", {}))

    def _observe_child(self, child):
        index = child["metadata"]["labels"]["dgym.dev/index"]
        self._indexes[index] += 1
        if self._indexes[index] > 1:
            self.observed.append(f"the set has made index {index} {self._indexes[index]} times")
        (each,) = self._api.items("episodesets")
        unfinished = sum(not _is_finished(child) for child in self._children())
        if unfinished > each["spec"]["parallelism"]:
            self.observed.append(f"{unfinished} episodes of the set are unfinished, of at most {each['spec']}")

    def _observe_counts(self, status):
        now = self._clock.monotonic()
        since = [
            max(0, number - 1) for number, (begun, _) in enumerate(self._with_pod) if begun >= now - _COUNTED_SECONDS
        ]
        recent = [count for _, count in self._with_pod[min(since, default=-1) :]]
        if not min(recent) <= status.get("active", 0) <= max(recent):
            self.observed.append(f"active is {status.get('active', 0)}, and {recent} children had a pod of late")
        late = self._waiting_since is not None and now > self._waiting_since + _COUNTED_SECONDS
        if late and not status.get("waiting") and not _is_finished({"status": status}):
            self.observed.append("children wait for pods, and the set does not show for what")

    def _count(self):
        """How many unfinished children have a pod, and have none."""
        owners = {
            reference["uid"]
            for pod in self._api.items("pods")
            if is_running(pod)
            for reference in pod["metadata"].get("ownerReferences", ())
        }
        unfinished = [child for child in self._children() if not _is_finished(child)]
        number = sum(
            child["metadata"]["uid"] in owners or bool(child.get("status", {}).get("podName")) for child in unfinished
        )
        return number, len(unfinished) - number

    def _children(self):
        return [each for each in self._api.items("episodes") if _is_child(each)]

    def is_finished(self):
        """Whether the set has ended, where there is one."""
        return all(map(_is_finished, self._api.items("episodesets")))

    def violations(self):
        """What must hold when all is over."""
        yield from sorted(set(self.observed))
        for each in self._api.items("episodesets"):
            status = each.get("status", {})
            if not _is_finished(each):
                yield f"the set never ended: {status.get('reason')}: {status.get('message')}"
                continue
            ends = Counter(map(_end_of, self._children()))
            counts = {name: status.get(name, 0) for name in ("resolved", "unresolved", "failed", "cancelled")}
            if counts != {name: ends[name] for name in counts}:
                yield f"the set counts {counts}, and its children ended as {dict(ends)}"
            left = {name: status[name] for name in ("active", "pending", "unfinished", "waiting") if status.get(name)}
            if left:
                yield f"the set has ended, and still has {left}"
            verdicts = counts["resolved"] + counts["unresolved"]
            if status.get("passAt1", "") != (f"{counts['resolved'] / verdicts:.4f}" if verdicts else ""):
                yield f"passAt1 is {status.get('passAt1')} after {counts}"
            if not each["spec"].get("cancel") and len(self._indexes) != each["spec"]["samples"]:
                yield f"the set has made {len(self._indexes)} episodes of {each['spec']['samples']}"


def _is_child(episode):
    return any(each["kind"] == "EpisodeSet" for each in episode["metadata"].get("ownerReferences", ()))


def _is_finished(item):
    conditions = item.get("status", {}).get("conditions", [])
    return any(each["type"] == "Finished" and each["status"] == "True" for each in conditions)


def _end_of(child):
    """In which count a finished child belongs."""
    status = child["status"]
    resolved = next((each for each in status["conditions"] if each["type"] == "Resolved"), {})
    if resolved.get("reason") == "NotScored":
        return "cancelled" if status["reason"] == "Cancelled" else "failed"
    return "resolved" if resolved.get("status") == "True" else "unresolved"
