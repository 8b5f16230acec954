"""What must hold in every run of the simulation: at every write, and when all faults are over."""

from collections import Counter

import msgspec

from dgym.wire import EndReason
from dgym_operator.controllers.episode._finish import MOST_POISONED
from tests.simulation.agents import STEPS
from tests.simulation.api_server import is_finished, is_observed, is_running, is_sandbox, parse_path
from tests.simulation.attempts import AttemptInvariants
from tests.simulation.replicas import WORKERS
from tests.simulation.sets import SetInvariants
from tests.simulation.sidecar import NAMESPACE
from tests.simulation.virtual import VirtualClock

LEASE = "dgym-operator"
_READ_SECONDS = 5.0
"""An Episode is read so long before its pod is created, at most."""
_SLOW_SECONDS = 40.0
_UNLED = ("leases", "events")
"""Writes that a replica may make without leading."""
_LOCAL = (
    "pod: deleted",
    "pod: without its sidecar",
    "pod: out of memory",
    "pod: without its sandbox",
    "pod: with a sidecar that hangs",
    "agent: restarted",
)
"""Faults after which each attempt leaves its clock."""
_OF_SANDBOXES = ("pod: out of memory", "pod: without its sandbox")
_NOTICED_SECONDS = 15.0
"""A watch may lag for seconds, and a sidecar that does not know the cause yet is asked again."""
_RESTORED_SECONDS = 30.0
"""A watch may lag for seconds; a server that is away, or a change of leaders, takes longer."""
_BUSY = 0.75
"""The share of a quota that is used while episodes wait: a watch may lag for seconds."""
_REFUSED = 1.2
"""Pods that a quota may refuse for each that is made, beside those of the first workers."""
_IN_VAIN = 8
"""Assignments that may be on their way when an agent notices that a model is out."""
_CUT_SECONDS = 1.0
"""Seconds that are cut from the clock of an attempt."""


class Invariants:
    """Observes every write to the API server, and every request of the operator."""

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
        """Record an exception of a check: the operator would take it for one of the server, and try again."""

        def check(*args):
            try:
                observe(*args)
            except Exception as error:
                self._observed.append(f"{observe.__qualname__}: {error!r}")

        return check

    def _observe(self, kind, plural, item):
        """What must hold at every write."""
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
        """How much of the quota is used, while there are more episodes than it has room for."""
        now, (since, running, unfinished) = self._clock.monotonic(), self._quota
        if unfinished > self._schedule.quota:
            self._room_seconds += self._schedule.quota * (now - since)
            self._busy_seconds += running * (now - since)
        self._made += (kind, plural) == ("ADDED", "pods") and is_sandbox(item)
        running = sum(is_sandbox(pod) and is_running(pod) for pod in self._api.items("pods"))
        self._quota = now, running, sum(not is_finished(episode) for episode in self._api.items("episodes"))

    def _quota_problems(self):
        """Whether the quota was used, and not tried in vain."""
        if not self._schedule.quota or self._schedule.faults or self._schedule.lossy:
            return
        if self._busy_seconds < _BUSY * self._room_seconds:
            yield f"{self._busy_seconds / self._room_seconds:.0%} of the quota were used while episodes waited"
        if self._api.refused > _REFUSED * self._made + WORKERS:
            yield f"the quota has refused {self._api.refused} pods, and {self._made} were made"

    def _outage_problems(self):
        """Whether episodes were assigned to agents that had reported their model as out."""
        calm = not self._schedule.lossy and all(fault.kind == "cluster: model away" for fault in self._schedule.faults)
        if calm and self._world.refused_by_breakers > _IN_VAIN:
            yield f"{self._world.refused_by_breakers} assignments failed because the model was known to be out"

    def _observe_policy(self, kind, policy):
        """Since when the namespace has no policy, or another."""
        closed = kind != "DELETED" and not policy["spec"]["egress"]
        if closed or self._open_since is None:
            self._open_since = None if closed else self._clock.monotonic()

    def _observe_network(self, pod):
        """A sandbox is made under its policy; it may have been deleted or changed a moment ago."""
        calm = not self._schedule.lossy and all(fault.kind.startswith("policy") for fault in self._schedule.faults)
        if self._open_since is None or not (calm or self._open_since == 0.0):
            return
        if self._open_since == 0.0 or self._clock.monotonic() > self._open_since + _RESTORED_SECONDS:
            self._observed.append(f"the pod {pod} is made without its NetworkPolicy")

    def _observe_active(self, episodes):
        """Assigned episodes are bounded always, those with a sandbox where each creation of a pod is answered.

        A pod of an attempt that the status has closed is deleted next. What it takes until then, and while it ends, is
        not counted: nobody could start another in the very moment of its end.
        """
        most, quiet = self._schedule.max_active, not self._schedule.lossy and len(self._leaders) <= 1
        # An answer is lost as well when server or leader is cut off.
        quiet = quiet and not any(
            fault.kind.startswith(("cluster: server", "leader")) for fault in self._schedule.faults
        )
        if most is None:
            return
        pods = {
            (pod["metadata"]["ownerReferences"][0]["uid"], int(pod["metadata"]["labels"]["dgym.dev/attempt"]))
            for pod in self._api.items("pods")
            if quiet and _owner_kind(pod) == "Episode" and "deletionTimestamp" not in pod["metadata"]
            if pod["spec"]  # A stranger's has none.
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
        """A pod is of one attempt: that of a pool is claimed once."""
        owner = next(iter(pod.get("ownerReferences", ())), None)
        if owner is not None and owner["kind"] == "Episode":
            attempt = owner["uid"], pod["labels"]["dgym.dev/attempt"]
            if self._attempts.setdefault(pod["uid"], attempt) != attempt:
                self._observed.append(f"the pod {pod['name']} of {self._attempts[pod['uid']]} is of {attempt} now")

    def _observe_loss(self, episode):
        """An attempt ends soon after its sandbox, whatever its agent does meanwhile."""
        uid, status = episode["metadata"]["uid"], episode.get("status", {})
        died = self._world.sandbox_died.get((uid, status.get("attempt")))
        calm = not self._schedule.lossy and all(fault.kind in _OF_SANDBOXES for fault in self._schedule.faults)
        if calm and died is not None and (status.get("ending") or {}).get("reason") == EndReason.SANDBOX_LOST:
            late = self._ending.setdefault((uid, status["attempt"]), self._clock.monotonic()) - died
            if late > _NOTICED_SECONDS:
                self._observed.append(f"{episode['metadata']['name']} lost its sandbox {late:.0f} s before its end")

    def _observe_wanted(self, episode):
        """Since when which attempt needs a pod."""
        name, spec, status = episode["metadata"]["name"], episode["spec"], episode.get("status", {})
        by_status = None if is_finished(episode) or status.get("podName") else status.get("attempt", 0) + 1
        by_all = None if spec.get("cancel") or spec.get("suspend") else by_status
        for wanted, attempt in ((self._wanted, by_all), (self._wanted_by_status, by_status)):
            if wanted.get(name, ("", 0.0))[0] != attempt:
                wanted[name] = attempt, self._clock.monotonic()

    def _observe_request(self, transport, request):
        """What must hold when the operator begins to send a request."""
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
        # A pod that is created for a pool is of no episode yet.
        if "dgym.dev/episode" in labels and now > slow:
            name, attempt = labels["dgym.dev/episode"], int(labels["dgym.dev/attempt"])
            # A leader that has written the status reads no Episode again: that a user suspends or cancels it shows as
            # late as the watch does.
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
        """What must hold when all faults are over."""
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
        made = self._world.verdicts[uid]
        stored = {attempt: found for (owner, attempt), found in self._world.store.results.items() if owner == uid}
        reason, attempt = status.get("reason"), status.get("attempt")
        if len(stored) > 1:
            yield f"{len(stored)} verdicts were stored, of attempts {sorted(stored)}"
        for number, outcome in stored.items():
            verdict = outcome.reason
            if (number, verdict) != (attempt, reason):
                yield (
                    f"{verdict} of attempt {number} is stored, and attempt {attempt} ended as {reason}: "
                    + status.get("message", "")
                )
        if len(self._leaders) == 1 and not self._has("cluster: history compacted"):
            # A leader that has seen no message may overlook one, and so may a watch that lost a part of the history.
            shown = [number for owner, number in self._world.shown if owner == uid and number != attempt]
            if shown:
                yield f"pods of attempts {shown} have shown verdicts, and attempt {attempt} ended as {reason}"
        yield from self._blame(uid, owners, status, made)
        yield from self._clocks(uid, status)

    def _blame(self, uid, owners, status, made):
        """Whether the end has the cause that it names."""
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
                # Without the record of an attempt the next numbers its steps anew, and a death under a number that is
                # poisoned already proves nothing.
                lost = 0
            if reason != expected or lost:
                yield f"not {expected} but {reason} after {lost} lost attempts, and no fault hit the episode"

    def _has(self, kind):
        return any(fault.kind == kind for fault in self._schedule.faults)

    def _cancelled(self, uid, status, made):
        """Whether an episode that was cancelled while its pod ran was scored by its sidecar."""
        calm = all(fault.is_harmless or fault.kind.endswith(": cancelled") for fault in self._schedule.faults)
        begun, deadly = status.get("podName"), uid in self._world.deadly
        if not calm or not begun or deadly or status.get("reason") != EndReason.CANCELLED:
            return
        if (status["attempt"], EndReason.CANCELLED) not in made or not status["outcome"].get("maxScore"):
            yield "cancelled, and not scored"

    def _clocks(self, uid, status):
        """Whether the time that an episode is charged is the time that its attempts were active."""
        if self._schedule.lossy or not all(fault.kind in _LOCAL for fault in self._schedule.faults):
            return
        known = {attempt: seconds for (owner, attempt), seconds in self._world.clocks.items() if owner == uid}
        over = [seconds for attempt, seconds in known.items() if attempt < status.get("attempt", 0)]
        charged = status.get("activeSeconds", 0)
        if not sum(over) - _CUT_SECONDS * len(over) <= charged <= sum(over):
            yield f"{charged} s are charged for {over}"

    def left_over(self):
        """What should be gone by now, or back."""
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
