"""Invariants of the EpisodeSet of a run: its children and its counts."""

from collections import Counter

import msgspec

from dgym.api import (
    INDEX_LABEL,
    RETRY_KEY,
    SAMPLE_LABEL,
    TREATMENTS,
    EpisodeSetSpec,
    Treatment,
    episodes_of,
    place_of,
)
from dgym_operator.controllers import Indexes
from tests.simulation.api_server import is_finished, is_observed, is_running, parse_path, without_generation
from tests.simulation.sidecar import NAMESPACE
from tests.simulation.virtual import VirtualClock

_COUNTED_SECONDS = 20.0
"""Maximum delay of the counts.

The watch may lag for seconds, and the status of a set is written at most once a second.
"""
_CANCELLED = "set: cancelled"
_COUNTS = ("resolved", "unresolved", "failed", "cancelled")


class SetInvariants:
    """Checks the set, its children and their pods."""

    def __init__(self, api, schedule):
        self._api = api
        # After a fault the counts may be late. They are still correct at the end.
        self._calm = not schedule.lossy and all(fault.kind == _CANCELLED for fault in schedule.faults)
        self._made = Counter()
        self._allowed = Counter()
        """Allowed number of creations of each index."""
        self._ends = {}
        """The last finished child of each index that counts."""
        self._status = {}
        self._most = 0
        """Highest parallelism so far. A creation may be in flight when a user lowers the parallelism."""
        self._with_pod = [(0.0, 0)]
        """Times at which the number of unfinished children with a pod changed, with the new number."""
        self._waiting_since = None
        self._clock = VirtualClock()
        self.observed = []

    def observe(self, kind, plural, item):
        """Check the invariants of every write."""
        if plural == "episodes" and _is_child(item):
            self._observe_child(kind, item)
        if plural in ("episodes", "pods"):
            number, waiting = self._count()
            if number != self._with_pod[-1][1]:
                self._with_pod.append((self._clock.monotonic(), number))
            if not waiting or self._waiting_since is None:
                self._waiting_since = self._clock.monotonic() if waiting else None
        if plural == "episodesets" and kind != "DELETED":
            self._most = max(self._most, item["spec"]["parallelism"])
            self._observe_status(item)
            if self._calm:
                self._observe_counts(item.get("status", {}))

    def _observe_child(self, kind, child):
        index = _index_of(child)
        if kind == "ADDED":
            self._observe_creation(child, index)
        elif kind == "DELETED" and not is_finished(child):
            # A user has deleted the child.
            self._allowed[index] += 1
        elif kind == "MODIFIED" and is_finished(child):
            self._ends[index] = child

    def _observe_creation(self, child, index):
        self._made[index] += 1
        self._allowed[index] = max(1, self._allowed[index])
        if self._made[index] > self._allowed[index]:
            self.observed.append(f"the set has made index {index} {self._made[index]} times")
        (each,) = self._api.items("episodesets")
        unfinished = sum(not is_finished(child) for child in self._children())
        if unfinished > self._most:
            self.observed.append(f"{unfinished} episodes of the set are unfinished, of at most {each['spec']}")
        tasks = each["spec"]["tasks"]
        place = place_of(_spec(each), len(tasks), index)
        found = child["spec"]["taskRef"]["name"], child["metadata"]["labels"][SAMPLE_LABEL]
        if found != (tasks[place.task]["name"], str(place.sample)):
            self.observed.append(f"index {index} is of task and sample {found}")

    def _observe_status(self, episode_set):
        before, after = self._status, episode_set.get("status", {})
        self._status = after
        retried = after.get("retry") != before.get("retry")
        same = without_generation(after) == without_generation(before)
        if is_finished({"status": before}) and not retried and not same:
            self.observed.append("the set has ended, and its status has changed since")
        counts = {name: after.get(name, 0) for name in _COUNTS}
        if any(counts[name] < before.get(name, 0) for name in _COUNTS if not (retried and name == "failed")):
            self.observed.append(f"the set counts {counts} after {before}")
        arms = after.get("arms", ())
        if arms and any(sum(arm.get(name, 0) for arm in arms) != counts[name] for name in _COUNTS[:3]):
            self.observed.append(f"the set counts {counts}, and in its arms {arms}")
        failed = [index for each in after.get("failedIndexes", ()) for index in Indexes.parse(each["indexes"])]
        completed = Indexes.parse(after.get("completedIndexes", ""))
        if not len(set(failed)) == len(failed) == counts["failed"] or len(completed) != sum(counts.values()):
            self.observed.append(f"the set counts {counts}, failed are {failed}, completed {completed}")
        others = len(completed) + sum(after.get(name, 0) for name in ("pending", "active", "suspended"))
        if after.get("startTime") and not episode_set["spec"].get("cancel") and others != after["total"]:
            self.observed.append(f"the counts of the set add up to {others}, and it has {after['total']} episodes")
        present = {_index_of(child) for child in self._children()}
        for index in Indexes.parse(before.get("completedIndexes", "")):
            if index not in completed:
                if index in present or _reason_is_counted(self._ends.pop(index)):
                    self.observed.append(f"index {index} has an Episode or an outcome, and is to run again")
                self._allowed[index] += 1

    def observe_request(self, _transport, request):
        """Check that a deleted Episode of the set failed and will run again, or is counted and has expired."""
        _, plural, name, _ = parse_path(request.path)
        child = self._api.get(plural, NAMESPACE, name) if (request.method, plural) == ("DELETE", "episodes") else None
        if child is None or not _is_child(child):
            return
        counted = _index_of(child) in Indexes.parse(self._status.get("completedIndexes", ""))
        expires = counted and child["spec"].get("ttlSecondsAfterFinished") is not None
        same = msgspec.json.decode(request.body)["preconditions"]["uid"] == child["metadata"]["uid"]
        if same and (not is_finished(child) or (_reason_is_counted(child) and not expires)):
            self.observed.append(f"{name} is deleted, and is not to run again: {child.get('status')}")

    def _observe_counts(self, status):
        now = self._clock.monotonic()
        since = [
            max(0, number - 1) for number, (begun, _) in enumerate(self._with_pod) if begun >= now - _COUNTED_SECONDS
        ]
        recent = [count for _, count in self._with_pod[min(since, default=-1) :]]
        if not min(recent) <= status.get("active", 0) <= max(recent):
            self.observed.append(f"active is {status.get('active', 0)}, and {recent} children had a pod of late")
        late = self._waiting_since is not None and now > self._waiting_since + _COUNTED_SECONDS
        if late and not status.get("waiting") and not is_finished({"status": status}):
            self.observed.append("children wait for pods, and the set does not show for what")

    def _count(self):
        """Return the numbers of unfinished children with a pod and without a pod."""
        owners = {
            reference["uid"]
            for pod in self._api.items("pods")
            if is_running(pod)
            for reference in pod["metadata"].get("ownerReferences", ())
        }
        unfinished = [child for child in self._children() if not is_finished(child)]
        number = sum(
            child["metadata"]["uid"] in owners or bool(child.get("status", {}).get("podName")) for child in unfinished
        )
        return number, len(unfinished) - number

    def _children(self):
        return [each for each in self._api.items("episodes") if _is_child(each)]

    def is_finished(self):
        """Return True if the set has ended and its status follows its spec, or if there is no set."""
        found = self._api.items("episodesets")
        return all(is_finished(each) and is_observed(each) and not _is_to_retry(each) for each in found)

    def violations(self):
        """Yield the violations, including those of invariants that hold only at the end of a run."""
        yield from sorted(set(self.observed))
        for each in self._api.items("episodesets"):
            status = each.get("status", {})
            if not self.is_finished():
                yield f"the set never ended: {status.get('reason')}: {status.get('message')}"
                continue
            ends = Counter(map(_end_of, self._ends.values()))
            counts = {name: status.get(name, 0) for name in _COUNTS}
            if counts != {name: ends[name] for name in counts}:
                yield f"the set counts {counts}, and its children ended as {dict(ends)}"
            left = {name: status[name] for name in ("active", "pending", "unfinished", "waiting") if status.get(name)}
            if left:
                yield f"the set has ended, and still has {left}"
            outcomes = counts["resolved"] + counts["unresolved"]
            if status.get("passAt1", "") != (f"{counts['resolved'] / outcomes:.4f}" if outcomes else ""):
                yield f"passAt1 is {status.get('passAt1')} after {counts}"
            yield from self._wrong_arms(status.get("arms", ()))
            total = episodes_of(_spec(each), len(each["spec"]["tasks"]))
            if not each["spec"].get("cancel") and (len(self._ends) != total or self._made != self._allowed):
                yield f"the set has made {dict(self._made)} of {total} episodes"

    def _wrong_arms(self, arms):
        for number, arm in enumerate(arms):
            children = [child for index, child in self._ends.items() if index % len(arms) == number]
            ends = Counter(map(_end_of, children))
            if arm["total"] != len(children) or any(arm.get(name, 0) != ends[name] for name in _COUNTS[:3]):
                yield f"the set counts {arm}, and its children ended as {dict(ends)}"


def _spec(episode_set):
    return msgspec.convert(episode_set["spec"], EpisodeSetSpec)


def _index_of(child):
    return int(child["metadata"]["labels"][INDEX_LABEL])


def _is_child(episode):
    return any(each["kind"] == "EpisodeSet" for each in episode["metadata"].get("ownerReferences", ()))


def _is_to_retry(episode_set):
    wanted = episode_set["metadata"].get("annotations", {}).get(RETRY_KEY, "")
    return wanted != episode_set.get("status", {}).get("retry", "")


def _reason_is_counted(child):
    return TREATMENTS.get(child.get("status", {}).get("reason")) is Treatment.COUNTED


def _end_of(child):
    """Return the name of the count that a finished child belongs to."""
    status = child["status"]
    resolved = next((each for each in status["conditions"] if each["type"] == "Resolved"), {})
    if resolved.get("reason") == "NotScored":
        return "cancelled" if status["reason"] == "Cancelled" else "failed"
    return "resolved" if resolved.get("status") == "True" else "unresolved"
