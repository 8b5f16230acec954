"""Models of the operator's environment: agent pods, their results store, sandbox pods and the network."""

import asyncio
import json
from collections import Counter, defaultdict

import msgspec

from dgym.api import INDEX_LABEL, RETRY_KEY
from dgym.wire import calls
from dgym.wire.assignments import Assignment
from dgym.wire.client import PodTransport, Unanswered, UncheckedAnswer
from dgym.wire.signing import sign_answer
from tests.simulation.agents import MODEL, AgentPod, Driver
from tests.simulation.api_server import is_running, is_sandbox
from tests.simulation.kubelet import Kubelet
from tests.simulation.sidecar import NAMESPACE, Sidecar
from tests.simulation.store import ResultsStore

DRIVER_IDLE_SECONDS = 150
POOL = "warm"
DEADLINE_SECONDS = 60
"""Deadline of the ``endless`` and ``stuck`` episodes."""
_TASK = {"entrypoint": "pytest", "source": {"files": [{"path": "a.py", "content": "x = 1\n"}]}}
_SILENT_SECONDS = 20.0
"""An agent pod that is cut off for a shorter time does not count as lost."""


class World:
    """Everything outside the operator's replicas."""

    def __init__(self, api, random):
        self.api = api
        self.random = random
        self.store = ResultsStore()
        self.stored_first = asyncio.get_running_loop().create_future()
        """The agent pod that stored the first result, and its assignment."""
        self.model_away_until = 0.0
        self.refused_by_breakers = 0
        """Number of assignments that failed immediately because the circuit breaker of the model was open."""
        self.executed = Counter()
        self.poisoned = set()
        """UID, attempt and number of each step during which a sandbox or sidecar died."""
        self.sandbox_died = {}
        """Time at which the sandbox of an attempt ended by itself, by UID and attempt."""
        self.deadly = {}
        """Numbers of the steps that kill the sandbox, by UID."""
        self.endless = {}
        """UIDs of Episodes with a step that does not end. The value is True if the sidecar ignores the deadline."""
        self.unsolved = set()
        """UIDs of Episodes whose tests fail at the end."""
        self.broken = set()
        """UIDs of Episodes whose setup fails."""
        self.clocks = {}
        """Seconds that the deadline clock ran in each attempt whose sidecar has ended, by UID and attempt."""
        self.cancelled = set()
        self.drivers = {}
        """External drivers, by the UID of their Episode."""
        self.shown = set()
        """UID and attempt of each outcome that the status of a pod has shown."""
        self.strangers = []
        """UIDs of pods that a tenant created under the name of an Episode's pod."""
        self.problems = []
        """Violations that the models have observed."""
        self.outcomes = defaultdict(list)
        """Attempts and reasons that sidecars have signed, by the UID of the Episode."""
        self.peers = {}
        self.agents = []
        self._agents_by_epoch = {}
        self._group = None
        self._addresses = 0
        self._agents_made = 0
        self.kubelet = Kubelet(self)

    def open(self, group):
        """Run the tasks of the models in this group."""
        self._group = group

    def spawn(self, coroutine):
        """Run a task of a model."""
        return self._group.create_task(coroutine)

    def listen(self, peer):
        """Assign an address to a new pod and return it."""
        self._addresses += 1
        address = f"10.0.{self._addresses // 250}.{self._addresses % 250 + 1}"
        port = 8080 if isinstance(peer, Sidecar) else 8081
        self.peers[f"http://{address}:{port}"] = peer
        return address

    def sidecar_of(self, pod):
        """Return the sidecar of the pod, or None. If several pods had the name, return the sidecar of the last pod."""
        return next(
            (each for each in reversed(self.peers.values()) if isinstance(each, Sidecar) and each.pod == pod), None
        )

    def is_strangers(self, pod):
        """Return True if a tenant created the pod that has this name now."""
        found = self.api.get("pods", NAMESPACE, pod)
        return found is not None and found["metadata"]["uid"] in self.strangers

    def record_assignment(self, assignment, agent):
        """Record which agent pod received this epoch of the episode."""
        sidecar = self.sidecar_of(assignment.pod_name)
        if sidecar is not None and sidecar.attempt != assignment.attempt:
            self.problems.append(f"an agent was given the pod {assignment.pod_name} of attempt {sidecar.attempt}")
        if self.is_strangers(assignment.pod_name):
            self.problems.append(f"an agent was given the pod {assignment.pod_name}, which the operator has not made")
        key = (assignment.episode_uid, assignment.epoch)
        if self._agents_by_epoch.setdefault(key, (assignment.attempt, agent)) != (assignment.attempt, agent):
            self.problems.append(f"epoch {assignment.epoch} of {assignment.episode} was used twice")

    def stored(self, agent, assignment):
        """Record that the agent pod has stored a result."""
        if not self.stored_first.done():
            self.stored_first.set_result((agent, assignment))

    def give_up(self, agent, key):
        """Return the result that an agent pod looks for. If the store has none, abandon the attempt and return None."""
        found = self.store.give_up(key)
        self.problems += [
            f"{agent.name} gave up attempt {key[1]}, whose outcome {each.name}, which is not lost, was storing"
            for each in self.agents
            if found is None and each.is_storing(*key) and not each.draining and each.longest_cut < _SILENT_SECONDS
        ]
        return found

    def start_agent(self, slots):
        """Create an agent pod, as a Deployment does."""
        self._agents_made += 1
        agent = AgentPod(self, f"agent-{self._agents_made}", slots)
        self.agents.append(agent)
        return agent

    def add_episode(self, name, kind, ttl=None):
        """Create an Episode. ``kind`` is a key of ``KINDS_OF_EPISODES``.

        A ``deadly`` episode has steps that kill the sandbox. An ``endless`` episode has a step that does not end. In a
        ``stuck`` episode the sidecar also ignores the deadline.
        """
        # Episodes use an inline task and a task reference in turn.
        spec = {"driverIdleTimeoutSeconds": DRIVER_IDLE_SECONDS, "ttlSecondsAfterFinished": ttl} | (
            {"task": _TASK} if len(self.outcomes) % 2 else {"taskRef": {"name": "bug"}}
        )
        if kind in ("endless", "stuck"):
            spec["activeDeadlineSeconds"] = DEADLINE_SECONDS
        self._add_task()
        if kind != "driver":
            spec["agent"] = {"name": "solution", "model": MODEL}
        body = {"apiVersion": "dgym.dev/v1alpha1", "kind": "Episode", "metadata": {"name": name}, "spec": spec}
        uid = self.api.create("episodes", NAMESPACE, body)["metadata"]["uid"]
        self.outcomes[uid] = []
        if kind.startswith("deadly"):
            self.deadly[uid] = (2,) if kind == "deadly once" else (2, 3)
        if kind in ("endless", "stuck"):
            self.endless[uid] = kind == "stuck"
        if kind == "driver":
            self.drivers[uid] = Driver(self, name)
            self.spawn(self.drivers[uid].run())

    def add_set(self, samples, arms=0, ttl=None):
        """Create an EpisodeSet. Its parallelism is two thirds of its episodes.

        ``samples`` is the number of episodes per task. With ``arms`` there are two tasks, each arm has ``samples``
        episodes of each task, and the episodes have different outcomes.
        """
        self._add_task()
        spec = {
            "tasks": [{"name": "bug"}], "samples": samples, "parallelism": max(1, 2 * samples // 3),
            "template": {"agent": {"name": "solution", "model": MODEL}, "ttlSecondsAfterFinished": ttl},
        }  # fmt: skip
        if arms:
            self._add_task("bug-2")
            spec["tasks"] = [{"name": "bug"}, {"name": "bug-2"}]
            spec["arms"] = [{"name": f"arm-{number}", "agent": {"name": "solution"}} for number in range(arms)]
            spec["parallelism"] = max(2, 2 * samples * arms // 3)
            self.api.observers.append(self._choose_end)
        body = {"apiVersion": "dgym.dev/v1alpha1", "kind": "EpisodeSet", "metadata": {"name": "many"}, "spec": spec}
        self.api.create("episodesets", NAMESPACE, body)

    def _choose_end(self, kind, plural, item):
        labels = item["metadata"].get("labels", {})
        if plural == "episodes" and kind == "ADDED" and INDEX_LABEL in labels:
            end = int(labels[INDEX_LABEL]) % 3
            if end == 1:
                self.unsolved.add(item["metadata"]["uid"])
            elif end == 2 and RETRY_KEY not in labels:
                self.broken.add(item["metadata"]["uid"])

    def add_pool(self, idle):
        """Create a SandboxPool for all episodes."""
        self._add_task()
        spec = {"taskRef": {"name": "bug"}, "minIdle": idle}
        body = {"apiVersion": "dgym.dev/v1alpha1", "kind": "SandboxPool", "metadata": {"name": POOL}, "spec": spec}
        self.api.create("sandboxpools", NAMESPACE, body)

    def add_quota(self, pods):
        """Create a ResourceQuota of ``pods`` sandboxes.

        After each change of a sandbox the used number is updated with a delay.
        """
        amount = {"pods": str(pods)}
        body = {"metadata": {"name": "sandboxes"}, "spec": {"hard": amount}, "status": {"hard": amount}}
        body["status"]["used"] = {"pods": "0"}
        self.api.create("resourcequotas", NAMESPACE, body)
        self.api.observers.append(self._recount)

    def _recount(self, _kind, plural, pod):
        if plural == "pods" and is_sandbox(pod):
            self.spawn(self._count())

    async def _count(self):
        await asyncio.sleep(self.random.uniform(0.05, 1.0))
        used = sum(is_sandbox(pod) and is_running(pod) for pod in self.api.items("pods"))
        change = {"status": {"used": {"pods": str(used)}}}
        self.api.patch("resourcequotas", NAMESPACE, "sandboxes", change, status=True)

    def _add_task(self, name="bug"):
        if self.api.get("debugtasks", NAMESPACE, name) is None:
            body = {"apiVersion": "dgym.dev/v1alpha1", "kind": "DebugTask", "metadata": {"name": name}, "spec": _TASK}
            self.api.create("debugtasks", NAMESPACE, body)


class Caller(PodTransport):
    """The operator's calls to agent pods and sidecars through the simulated network."""

    def __init__(self, world, transport, deadline_seconds):
        self._world = world
        self._transport = transport
        self._deadline_seconds = deadline_seconds

    async def send(self, method, url, *, headers, data):
        random, loop = self._world.random, asyncio.get_running_loop()
        await self._transport.thaw()
        await asyncio.sleep(random.expovariate(1 / 0.02))
        base, slash, path = url.removeprefix("http://").partition("/")
        peer = self._world.peers.get(f"http://{base}")
        lost = random.random() < self._world.api.faults
        if lost and random.random() < 0.5:
            raise Unanswered("lost before it had an effect")
        status, content = self._answered(peer, method, slash + path, data.read(), loop.time())
        signature = ""
        if isinstance(peer, Sidecar):
            key = peer.bind_key if slash + path == calls.BIND.path else peer.key
            signature = sign_answer(key, headers["Authorization"], status, content)
        await asyncio.sleep(random.expovariate(1 / 0.02))
        await self._transport.thaw()
        if lost:
            await asyncio.sleep(self._deadline_seconds)
            raise Unanswered("the answer was lost")
        return UncheckedAnswer(status, content, signature)

    def _answered_by_sidecar(self, peer, path, body):
        if self._world.is_strangers(peer.pod):
            self._world.problems.append(f"the pod {peer.pod} was called, which the operator has not made")
        if not peer.reachable:
            raise Unanswered("no sidecar")
        if path == calls.BIND.path:
            return peer.bind(json.loads(body)), b"{}"
        if not peer.is_bound:
            return 401, b"{}"
        if path == calls.CANCEL.path and not peer.cancel():
            return 202, b"{}"
        if path == calls.PAUSE.path and json.loads(body)["epoch"] >= peer.epoch:
            peer.pause()
        answers = {calls.TERMINATED.path: peer.terminated, calls.STATE.path: peer.state}
        return 200, json.dumps(answers[path]() if path in answers else {}).encode()

    def _answered(self, peer, method, path, body, now):
        if isinstance(peer, Sidecar):
            return self._answered_by_sidecar(peer, path, body)
        if peer is None or not peer.alive or now < peer.cut_until:
            raise Unanswered("no agent")
        if method == "GET":
            return 200, msgspec.json.encode(peer.report())
        uid = path.rpartition("/")[2]
        if method == "DELETE":
            if uid in peer.held:
                peer.withdraw(uid)
        elif not peer.assign(msgspec.json.decode(body, type=Assignment)):
            return 409, b"no slot, or outdated"
        return 200, json.dumps({}).encode()
