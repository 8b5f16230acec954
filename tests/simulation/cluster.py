"""Models of what surrounds the operator: agents, their store, pods, and the network between them."""

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
"""Of episodes that do not end by themselves."""
_TASK = {"entrypoint": "pytest", "source": {"files": [{"path": "a.py", "content": "x = 1\n"}]}}
_SILENT_SECONDS = 20.0
"""An agent that was cut off for less is not lost."""


class World:
    """Everything around the operator's replicas."""

    def __init__(self, api, random):
        self.api = api
        self.random = random
        self.store = ResultsStore()
        self.stored_first = asyncio.get_running_loop().create_future()
        """The agent that stored the first result, and its assignment."""
        self.model_away_until = 0.0
        self.refused_by_breakers = 0
        """Assignments that failed because the model was known to be out."""
        self.executed = Counter()
        self.poisoned = set()
        """Steps under which a sandbox or sidecar died, by UID and attempt."""
        self.sandbox_died = {}
        """When the sandbox of an attempt has died by itself, by UID and attempt."""
        self.deadly = {}
        """Steps that kill the sandbox, by UID."""
        self.endless = {}
        """Episodes with a step that does not end, by UID; whether their sidecars forget the deadline."""
        self.unsolved = set()
        """UIDs of Episodes whose tests fail in the end."""
        self.broken = set()
        """UIDs of Episodes whose sandbox cannot be set up."""
        self.clocks = {}
        """How long the deadline has run in each attempt whose sidecar has ended, by UID and attempt."""
        self.cancelled = set()
        self.drivers = {}
        """External drivers, by UID of their episode."""
        self.shown = set()
        """Attempts whose verdict stood in the status of a pod, by UID."""
        self.strangers = []
        """UIDs of pods that a tenant has made in the place of an episode's."""
        self.problems = []
        """What models have observed that must not be."""
        self.verdicts = defaultdict(list)
        """Attempts and reasons that sidecars have signed, by UID of the episode."""
        self.peers = {}
        self.agents = []
        self._agents_by_epoch = {}
        self._group = None
        self._addresses = 0
        self._agents_made = 0
        self.kubelet = Kubelet(self)

    def open(self, group):
        """Run the models' tasks in this group."""
        self._group = group

    def spawn(self, coroutine):
        """Run a model's task."""
        return self._group.create_task(coroutine)

    def listen(self, peer):
        """The address of a new pod."""
        self._addresses += 1
        address = f"10.0.{self._addresses // 250}.{self._addresses % 250 + 1}"
        port = 8080 if isinstance(peer, Sidecar) else 8081
        self.peers[f"http://{address}:{port}"] = peer
        return address

    def sidecar_of(self, pod):
        """The sidecar of the pod, if it runs; of several pods with the name that of the last."""
        return next(
            (each for each in reversed(self.peers.values()) if isinstance(each, Sidecar) and each.pod == pod), None
        )

    def is_strangers(self, pod):
        """Whether a tenant has made the pod that has this name now."""
        found = self.api.get("pods", NAMESPACE, pod)
        return found is not None and found["metadata"]["uid"] in self.strangers

    def record_assignment(self, assignment, agent):
        """Record which agent got this epoch of the episode."""
        sidecar = self.sidecar_of(assignment.pod_name)
        if sidecar is not None and sidecar.attempt != assignment.attempt:
            self.problems.append(f"an agent was given the pod {assignment.pod_name} of attempt {sidecar.attempt}")
        if self.is_strangers(assignment.pod_name):
            self.problems.append(f"an agent was given the pod {assignment.pod_name}, which the operator has not made")
        key = (assignment.episode_uid, assignment.epoch)
        if self._agents_by_epoch.setdefault(key, (assignment.attempt, agent)) != (assignment.attempt, agent):
            self.problems.append(f"epoch {assignment.epoch} of {assignment.episode} was used twice")

    def stored(self, agent, assignment):
        """Record that the agent has stored a result."""
        if not self.stored_first.done():
            self.stored_first.set_result((agent, assignment))

    def give_up(self, agent, key):
        """The stored result, which an agent looks for; None: the attempt is given up."""
        found = self.store.give_up(key)
        self.problems += [
            f"{agent.name} gave up attempt {key[1]}, whose verdict {each.name}, which is not lost, was storing"
            for each in self.agents
            if found is None and each.is_storing(*key) and not each.draining and each.longest_cut < _SILENT_SECONDS
        ]
        return found

    def start_agent(self, slots):
        """A new agent pod, as a Deployment makes one."""
        self._agents_made += 1
        agent = AgentPod(self, f"agent-{self._agents_made}", slots)
        self.agents.append(agent)
        return agent

    def add_episode(self, name, kind, ttl=None):
        """An Episode, as a user applies it: for an ``agent`` or a ``driver``.

        Steps that are ``deadly`` kill their sandbox. One is ``endless``, and ``stuck`` where the sidecar does not end
        it, either, when the deadline has passed.
        """
        # Every other one has a task of its own.
        spec = {"driverIdleTimeoutSeconds": DRIVER_IDLE_SECONDS, "ttlSecondsAfterFinished": ttl} | (
            {"task": _TASK} if len(self.verdicts) % 2 else {"taskRef": {"name": "bug"}}
        )
        if kind in ("endless", "stuck"):
            spec["activeDeadlineSeconds"] = DEADLINE_SECONDS
        self._add_task()
        if kind != "driver":
            spec["agent"] = {"name": "solution", "model": MODEL}
        body = {"apiVersion": "dgym.dev/v1alpha1", "kind": "Episode", "metadata": {"name": name}, "spec": spec}
        uid = self.api.create("episodes", NAMESPACE, body)["metadata"]["uid"]
        self.verdicts[uid] = []
        if kind.startswith("deadly"):
            self.deadly[uid] = (2,) if kind == "deadly once" else (2, 3)
        if kind in ("endless", "stuck"):
            self.endless[uid] = kind == "stuck"
        if kind == "driver":
            self.drivers[uid] = Driver(self, name)
            self.spawn(self.drivers[uid].run())

    def add_set(self, samples, arms=0, ttl=None):
        """An EpisodeSet of so many episodes, two thirds of them at a time.

        With ``arms`` there are so many episodes in each arm of each of two tasks, and they end in several ways.
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
        """A SandboxPool for all episodes."""
        self._add_task()
        spec = {"taskRef": {"name": "bug"}, "minIdle": idle}
        body = {"apiVersion": "dgym.dev/v1alpha1", "kind": "SandboxPool", "metadata": {"name": POOL}, "spec": spec}
        self.api.create("sandboxpools", NAMESPACE, body)

    def add_quota(self, pods):
        """A ResourceQuota for so many sandboxes; its controller counts them again some time after one has ended."""
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
    """The operator's calls to agents and sidecars, over the simulated network."""

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
