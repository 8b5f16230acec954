"""Invariants of every run of the simulation: at every write, and when all faults are over."""

from collections import Counter

import msgspec

from dgym.wire import EndReason
from dgym.wire.outcome import MOST_POISONED
from tests.simulation.agents import STEPS
from tests.simulation.api_server import is_finished, is_observed, is_running, is_sandbox, parse_path
from tests.simulation.attempts import AttemptInvariants
from tests.simulation.replicas import WORKERS
from tests.simulation.sets import SetInvariants
from tests.simulation.sidecar import NAMESPACE
from tests.simulation.virtual import VirtualClock

LEASE = "dgym-operator"
_READ_SECONDS = 5.0
"""Maximum time between the read of an Episode and the creation of its pod."""
_SLOW_SECONDS = 40.0
_UNLED = ("leases", "events")
"""Writes that a replica may send without leading."""
_LOCAL = (
    "pod: deleted",
    "pod: without its sidecar",
    "pod: out of memory",
    "pod: without its sandbox",
    "pod: with a sidecar that hangs",
    "agent: restarted",
)
"""Faults after which the clock of each attempt is still available."""
_OF_SANDBOXES = ("pod: out of memory", "pod: without its sandbox")
_NOTICED_SECONDS = 15.0
"""Maximum delay of the report that a sandbox was lost.

The watch may lag, and the operator may have to ask the sidecar twice.
"""
_RESTORED_SECONDS = 30.0
"""Maximum time until the NetworkPolicy is restored. The watch may lag.

An absent server or a change of leaders takes longer.
"""
_BUSY = 0.75
"""Minimum used share of a quota while episodes wait. The watch may lag for seconds."""
_REFUSED = 1.2
"""Maximum number of refused pods per created pod. One more refusal per worker is allowed."""
_IN_VAIN = 8
"""Maximum number of assignments that are in flight when an agent pod finds that a model is out."""
_CUT_SECONDS = 1.0
"""Maximum loss of the clock of an attempt by rounding, in seconds."""


class Invariants:
    """Checks every write to the API server and every request of the operator."""

    def __init__(self, api, world, schedule):
        self._api = api
        self._world = world
        self._schedule = schedule
        self._observed = []
        self._epochs = {}
        self._wanted = {}
        self._wanted_by_status = {}
        self._written = set()
        self._attempts = {}
        self._ending = {}
        self._leaders = set()
        self._open_since = 0.0
        self._quota = (0.0, 0, 0)
        self._busy_seconds = self._room_seconds = 0.0
        self._made = 0
        self._clock = VirtualClock()
        self.sets = SetInvariants(api, schedule)
        self.attempts = AttemptInvariants(api, world, schedule)
        api.observers += map(self._checked, (self._observe, self.sets.observe, self.attempts.observe))
        checks = self._observe_request, self.attempts.observe_request, self.sets.observe_request
        api.request_observers += map(self._checked, checks)

    def _checked(self, observe):
        """Record an exception of a check. Otherwise the operator would treat it as a server error and retry."""

        def check(*args):
            try:
                observe(*args)
            except Exception as error:
                self._observed.append(f"{observe.__qualname__}: {error!r}")

        return check

    def _observe(self, kind, plural, item):
        """Check the invariants of every write."""
        if plural == "leases" and item["metadata"]["name"] == LEASE:
            self._leaders.add(item["spec"].get("holderIdentity"))
        if self._schedule.quota and plural in ("episodes", "pods"):
            self._observe_quota(kind, plural, item)
        if plural == "networkpolicies":
            self._observe_policy(kind, item)
        if plural not in ("episodes", "pods"):
            return
        if (kind, plural) == ("ADDED", "pods") and item["spec"] and is_sandbox(item):
            self._observe_network(item["metadata"]["name"])
        episodes = self._api.items("episodes")
        self._observe_active(episodes)
        if plural == "pods":
            self._observe_owner(item["metadata"])
            return
        self._observe_epoch(item["metadata"], item.get("status", {}))
        self._observe_loss(item)
        self._observe_wanted(item)
        assigned = Counter(
            episode["status"]["assignment"]["agentPodUID"] for episode in episodes if _uses_slot(episode)
        )
        slots = {agent.uid: agent.slots for agent in self._world.agents}
        self._observed += [
            f"agent {uid} has {slots.get(uid)} slots, and {number} episodes are assigned to it"
            for uid, number in assigned.items()
            if number > slots.get(uid, 0)
        ]

    def _observe_quota(self, kind, plural, item):
        """Measure the used share of the quota while there are more unfinished episodes than the quota allows."""
        now, (since, running, unfinished) = self._clock.monotonic(), self._quota
        if unfinished > self._schedule.quota:
            self._room_seconds += self._schedule.quota * (now - since)
            self._busy_seconds += running * (now - since)
        self._made += (kind, plural) == ("ADDED", "pods") and is_sandbox(item)
        running = sum(is_sandbox(pod) and is_running(pod) for pod in self._api.items("pods"))
        self._quota = now, running, sum(not is_finished(episode) for episode in self._api.items("episodes"))

    def _quota_problems(self):
        """Check that the quota was used and that few creations were refused."""
        if not self._schedule.quota or self._schedule.faults or self._schedule.lossy:
            return
        if self._busy_seconds < _BUSY * self._room_seconds:
            yield f"{self._busy_seconds / self._room_seconds:.0%} of the quota were used while episodes waited"
        if self._api.refused > _REFUSED * self._made + WORKERS:
            yield f"the quota has refused {self._api.refused} pods, and {self._made} were made"

    def _outage_problems(self):
        """Check that episodes were not assigned to agent pods that had reported an outage of the model."""
        calm = not self._schedule.lossy and all(fault.kind == "cluster: model away" for fault in self._schedule.faults)
        if calm and self._world.refused_by_breakers > _IN_VAIN:
            yield f"{self._world.refused_by_breakers} assignments failed because the model was known to be out"

    def _observe_policy(self, kind, policy):
        """Record when the namespace lost its policy or its policy was changed."""
        closed = kind != "DELETED" and not policy["spec"]["egress"]
        if closed or self._open_since is None:
            self._open_since = None if closed else self._clock.monotonic()

    def _observe_network(self, pod):
        """Check that a sandbox is created under its policy. A very recent change of the policy is allowed."""
        calm = not self._schedule.lossy and all(fault.kind.startswith("policy") for fault in self._schedule.faults)
        if self._open_since is None or not (calm or self._open_since == 0.0):
            return
        if self._open_since == 0.0 or self._clock.monotonic() > self._open_since + _RESTORED_SECONDS:
            self._observed.append(f"the pod {pod} is made without its NetworkPolicy")

    def _observe_active(self, episodes):
        """Check the bound on active episodes.

        If every creation of a pod is answered, episodes with a pod count as active, too.

        The operator deletes the pod of an attempt that the status has closed. This pod is not counted until it has
        ended, because nobody could start another pod at the exact moment of its end.
        """
        most, quiet = self._schedule.max_active, not self._schedule.lossy and len(self._leaders) <= 1
        # A response is also lost if the server or the leader is cut off.
        quiet = quiet and not any(
            fault.kind.startswith(("cluster: server", "leader")) for fault in self._schedule.faults
        )
        if most is None:
            return
        pods = {
            (pod["metadata"]["ownerReferences"][0]["uid"], int(pod["metadata"]["labels"]["dgym.dev/attempt"]))
            for pod in self._api.items("pods")
            if quiet and _owner_kind(pod) == "Episode" and "deletionTimestamp" not in pod["metadata"]
            if pod["spec"]  # The pod of a stranger has no spec.
        }
        active = [
            episode["metadata"]["name"]
            for episode in episodes
            if not is_finished(episode)
            and (
                episode.get("status", {}).get("podName")
                or (episode["metadata"]["uid"], episode.get("status", {}).get("attempt", 0) + 1) in pods
            )
        ]
        if len(active) > most:
            self._observed.append(f"{', '.join(active)} are active, of at most {most}")

    def _observe_owner(self, pod):
        """Check that a pod belongs to one attempt. A pooled pod is claimed once."""
        owner = next(iter(pod.get("ownerReferences", ())), None)
        if owner is not None and owner["kind"] == "Episode":
            attempt = owner["uid"], pod["labels"]["dgym.dev/attempt"]
            if self._attempts.setdefault(pod["uid"], attempt) != attempt:
                self._observed.append(f"the pod {pod['name']} of {self._attempts[pod['uid']]} is of {attempt} now")

    def _observe_loss(self, episode):
        """Check that an attempt ends soon after its sandbox, independently of the agent."""
        uid, status = episode["metadata"]["uid"], episode.get("status", {})
        died = self._world.sandbox_died.get((uid, status.get("attempt")))
        calm = not self._schedule.lossy and all(fault.kind in _OF_SANDBOXES for fault in self._schedule.faults)
        if calm and died is not None and (status.get("ending") or {}).get("reason") == EndReason.SANDBOX_LOST:
            late = self._ending.setdefault((uid, status["attempt"]), self._clock.monotonic()) - died
            if late > _NOTICED_SECONDS:
                self._observed.append(f"{episode['metadata']['name']} lost its sandbox {late:.0f} s before its end")

    def _observe_wanted(self, episode):
        """Record which attempt needs a pod, and the time at which it began to need the pod."""
        name, spec, status = episode["metadata"]["name"], episode["spec"], episode.get("status", {})
        by_status = None if is_finished(episode) or status.get("podName") else status.get("attempt", 0) + 1
        by_all = None if spec.get("cancel") or spec.get("suspend") else by_status
        for wanted, attempt in ((self._wanted, by_all), (self._wanted_by_status, by_status)):
            if wanted.get(name, ("", 0.0))[0] != attempt:
                wanted[name] = attempt, self._clock.monotonic()

    def _observe_request(self, transport, request):
        """Check the invariants of a request when the operator begins to send it."""
        _, plural, requested, _ = parse_path(request.path)
        if request.method == "GET" or plural in _UNLED:
            return
        lease = self._api.get("leases", NAMESPACE, LEASE)
        holder = (lease or {}).get("spec", {}).get("holderIdentity") or ""
        if holder and not holder.startswith(f"{transport.replica}_"):
            self._observed.append(f"{transport.replica} does not lead, and sends {request.method} {plural}")
        if plural == "episodes":
            self._written.add((holder, requested))
        now = self._clock.monotonic()
        slow = max(transport.slow_until, transport.frozen_until) + _SLOW_SECONDS
        writes_pod = plural == "pods" and request.method in ("POST", "PATCH")
        labels = msgspec.json.decode(request.body)["metadata"]["labels"] if writes_pod else {}
        # A pod that is created for a sandbox pool does not belong to an episode.
        if "dgym.dev/episode" in labels and now > slow:
            name, attempt = labels["dgym.dev/episode"], int(labels["dgym.dev/attempt"])
            # A leader that has written the status does not read the Episode again. It sees a suspension or a
            # cancellation only when the watch shows it.
            wanted, since = (self._wanted_by_status if (holder, name) in self._written else self._wanted)[name]
            if wanted != attempt and now > since + _READ_SECONDS:
                self._observed.append(f"a pod of attempt {attempt} of {name} is made, and {wanted} is needed")

    def _observe_epoch(self, metadata, status):
        name, uid = metadata["name"], metadata["uid"]
        epoch, assignment, before = status.get("epoch", 0), status.get("assignment"), self._epochs.get(uid, (0, None))
        agent = assignment["agentPodUID"] if assignment is not None else before[1]
        if epoch < before[0] or (assignment is not None and assignment["epoch"] != epoch):
            self._observed.append(f"{name}: an assignment has epoch {assignment and assignment['epoch']}, not {epoch}")
        if epoch == before[0] and agent != before[1]:
            self._observed.append(f"{name}: epoch {epoch} was used twice")
        self._epochs[uid] = epoch, agent

    def violations(self, *, ended):
        """Return the violations, including those of invariants that hold when all faults are over."""
        found = sorted({*self._observed, *self._world.problems})
        for episode in self._api.items("episodes"):
            name, uid = episode["metadata"]["name"], episode["metadata"]["uid"]
            status = episode.get("status", {})
            if not ended and not is_finished(episode):
                found.append(f"{name} never ended: {status.get('reason')}: {status.get('message')}")
                continue
            owners = [each["uid"] for each in episode["metadata"].get("ownerReferences", ())]
            found += [f"{name}: {problem}" for problem in self._wrong(uid, owners, status)]
        found += [
            f"step {number} of attempt {attempt} was executed {times} times"
            for (_, attempt, number), times in self._world.executed.items()
            if times > 1
        ]
        if ended:
            found += self.left_over()
            found += self.sets.violations()
        found += (*self._quota_problems(), *self._outage_problems(), *self.attempts.violations())
        return found

    def _wrong(self, uid, owners, status):
        made = self._world.outcomes[uid]
        stored = {attempt: found for (owner, attempt), found in self._world.store.results.items() if owner == uid}
        reason, attempt = status.get("reason"), status.get("attempt")
        if len(stored) > 1:
            yield f"{len(stored)} outcomes were stored, of attempts {sorted(stored)}"
        for number, outcome in stored.items():
            if (number, outcome.reason) != (attempt, reason):
                yield (
                    f"{outcome.reason} of attempt {number} is stored, and attempt {attempt} ended as {reason}: "
                    + status.get("message", "")
                )
        if len(self._leaders) == 1 and not self._has("cluster: history compacted"):
            # A leader that has not seen a message may miss it. So may a watch that lost a part of the history.
            shown = [number for owner, number in self._world.shown if owner == uid and number != attempt]
            if shown:
                yield f"pods of attempts {shown} have shown outcomes, and attempt {attempt} ended as {reason}"
        yield from self._blame(uid, owners, status, made)
        yield from self._clocks(uid, status)

    def _blame(self, uid, owners, status, made):
        """Check that the outcome has the cause that its reason names."""
        reason, attempt = status.get("reason"), status.get("attempt")
        yield from self._cancelled(uid, status, made)
        poisoned = [(uid, each.get("attempt"), each["step"]) for each in status.get("poisonedSteps", ())]
        for unproven in set(poisoned) - self._world.poisoned:
            yield f"step {unproven[2]} of attempt {unproven[1]} is poisoned, and no sandbox died under it"
        cancelled = not self._world.cancelled.isdisjoint((uid, *owners))
        driver = self._world.drivers.get(uid)
        if reason == EndReason.RESOLVED:
            if (attempt, reason) not in made:
                yield f"Resolved in attempt {attempt}, and no sidecar said so: {made}"
            elif status["outcome"]["steps"] != STEPS:
                yield f"resolved after {status['outcome']['steps']} steps"
        blamed = (
            (reason == EndReason.UNRESOLVED and uid not in self._world.unsolved)
            or (reason == EndReason.DEADLINE_EXCEEDED and uid not in self._world.endless)
            or (reason == EndReason.CANCELLED and not cancelled)
            or (reason == EndReason.DRIVER_IDLE and not (driver is not None and driver.crashed))
            or (reason == EndReason.SANDBOX_KILLED and len(poisoned) < MOST_POISONED)
        )
        if blamed:
            yield f"the agent is blamed for a fault of the infrastructure: {reason}: {status.get('message')}"
        if all(fault.is_harmless for fault in self._schedule.faults):
            deadly = len(self._world.deadly.get(uid, ())) >= MOST_POISONED
            expected = EndReason.SANDBOX_KILLED if deadly else EndReason.RESOLVED
            if uid in self._world.endless:
                expected = EndReason.DEADLINE_EXCEEDED
            if uid in self._world.unsolved:
                expected = EndReason.UNRESOLVED
            if uid in self._world.broken:
                expected = EndReason.SETUP_FAILED
            lost = status.get("failures", 0) + status.get("disruptions", 0)
            if uid in self._world.deadly and self._has("cluster: store away"):
                # Without the record of an attempt, the next attempt numbers its steps from the start. A death during a
                # step that is already poisoned is then not evidence.
                lost = 0
            if reason != expected or lost:
                yield f"not {expected} but {reason} after {lost} lost attempts, and no fault hit the episode"

    def _has(self, kind):
        return any(fault.kind == kind for fault in self._schedule.faults)

    def _cancelled(self, uid, status, made):
        """Check that the sidecar scored an episode that was cancelled while its pod ran."""
        calm = all(fault.is_harmless or fault.kind.endswith(": cancelled") for fault in self._schedule.faults)
        begun, deadly = status.get("podName"), uid in self._world.deadly
        if not calm or not begun or deadly or status.get("reason") != EndReason.CANCELLED:
            return
        if (status["attempt"], EndReason.CANCELLED) not in made or not status["outcome"].get("maxScore"):
            yield "cancelled, and not scored"

    def _clocks(self, uid, status):
        """Check that the active time of an episode is the sum of the clocks of its attempts."""
        if self._schedule.lossy or not all(fault.kind in _LOCAL for fault in self._schedule.faults):
            return
        known = {attempt: seconds for (owner, attempt), seconds in self._world.clocks.items() if owner == uid}
        over = [seconds for attempt, seconds in known.items() if attempt < status.get("attempt", 0)]
        charged = status.get("activeSeconds", 0)
        if not sum(over) - _CUT_SECONDS * len(over) <= charged <= sum(over):
            yield f"{charged} s are charged for {over}"

    def left_over(self):
        """Yield the objects that should be deleted by now, or restored."""
        if self._open_since:
            yield "the sandboxes' NetworkPolicy was not restored"
        for pod in self._api.items("pods"):
            if is_sandbox(pod) and _owner_kind(pod) != "SandboxPool":
                yield f"pod {pod['metadata']['name']} is left over"
        ready = sum(_owner_kind(pod) == "SandboxPool" and _is_ready(pod) for pod in self._api.items("pods"))
        if ready != self._schedule.idle:
            yield f"the pool has {ready} idle pods in place of {self._schedule.idle}"
        if not self.sets.is_finished():
            yield "the set is not finished"
        for episode in self._api.items("episodes"):
            if not is_observed(episode):
                yield f"the status of {episode['metadata']['name']} does not follow its spec"
        if self._schedule.ttl is not None:
            yield from (f"{each['metadata']['name']} has not expired" for each in self._api.items("episodes"))
        for agent in self._world.agents:
            if agent.alive and agent.held:
                yield f"{agent.name} still has {sorted(agent.held)}"


def _uses_slot(episode):
    assignment = episode.get("status", {}).get("assignment")
    runs = assignment is not None and assignment.get("mode", "run") == "run" and not assignment.get("failedTime")
    return runs and not is_finished(episode)


def _owner_kind(pod):
    owner = next(iter(pod["metadata"].get("ownerReferences", ())), None)
    return owner["kind"] if owner is not None else None


def _is_ready(pod):
    conditions = pod.get("status", {}).get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
