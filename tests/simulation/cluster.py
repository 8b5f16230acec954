"""Models of agents, of a store of results and of the network between pods.

An agent stores a verdict before it releases the pod, and forgets everything when its process ends.
"""

import asyncio
import json
from collections import Counter

import msgspec

from dgym.wire import EndReason
from dgym.wire.assignments import AgentReport, Assignment, AssignmentMode, AssignmentState, AssignmentStatus
from dgym.wire.http import Path
from dgym.wire.signing import sign_answer
from dgym_operator.calls import Answer, PodCaller, Unreachable
from tests.simulation.pods import NAMESPACE, Kubelet, SandboxDied, Sidecar, Superseded

AGENT_LABELS = {"app.kubernetes.io/name": "dgym", "app.kubernetes.io/component": "agent"}
STEPS = 4
GIVE_UP_SECONDS = 120.0
"""For so long an agent tries to reach a sidecar."""


class Gone(Exception):
    """No answer from a sidecar."""


class AgentPod:
    """One agent: a process that runs what it is assigned, in a pod of its own."""

    def __init__(self, world, name):
        self.world = world
        self.name = name
        self.slots = 2
        self.cut_until = 0.0
        self.incarnation = 0
        self.alive = True
        self._assignments = {}
        self._states = {}
        self._tasks = {}
        pod = world.api.create(
            "pods", NAMESPACE, {"metadata": {"name": name, "labels": dict(AGENT_LABELS)}, "spec": {}}
        )
        self.uid = pod["metadata"]["uid"]
        self.address = world.listen(self)
        status = {
            "phase": "Running", "podIP": self.address,
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
        }  # fmt: skip
        world.api.patch("pods", NAMESPACE, name, {"status": status}, status=True)

    @property
    def held(self):
        """UIDs of the assigned episodes."""
        return set(self._assignments)

    def restart(self):
        """The process dies and starts again, without memory."""
        for task in self._tasks.values():
            task.cancel()
        self._assignments.clear()
        self._states.clear()
        self._tasks.clear()
        self.incarnation += 1

    def delete(self):
        """The pod is deleted; its process dies."""
        self.alive = False
        self.restart()
        self.world.api.delete("pods", NAMESPACE, self.name, grace=False)

    def report(self):
        """``GET /v1/assignments``."""
        return AgentReport(
            incarnation=str(self.incarnation), slots=self.slots, assignments=tuple(self._states.values())
        )

    def assign(self, assignment):
        """``PUT``: a higher term supersedes the present one."""
        self.world.record_assignment(assignment, self.uid)
        known = self._assignments.get(assignment.episode_uid)
        if known is not None and (known.attempt, known.epoch) >= (assignment.attempt, assignment.epoch):
            return
        self.withdraw(assignment.episode_uid)
        self._assignments[assignment.episode_uid] = assignment
        self._set(assignment, AssignmentState.PREPARING)
        self._tasks[assignment.episode_uid] = self.world.spawn(self._run(assignment))

    def withdraw(self, uid):
        """``DELETE``."""
        task = self._tasks.pop(uid, None)
        if task is not None:
            task.cancel()
        self._assignments.pop(uid, None)
        self._states.pop(uid, None)

    def _set(self, assignment, state, **more):
        self._states[assignment.episode_uid] = AssignmentStatus(
            episode_uid=assignment.episode_uid, attempt=assignment.attempt, epoch=assignment.epoch, state=state, **more
        )

    async def _run(self, assignment):
        try:
            found = await self._stored(assignment)
            if found is not None:
                if assignment.mode is AssignmentMode.RUN:
                    await self._release(assignment)
                self._finished(assignment, found)
            elif assignment.mode is AssignmentMode.RECOVER:
                self._failed(assignment, "the store holds no result of this attempt")
            else:
                await self._play(assignment)
        except Gone:
            self._failed(assignment, "the sidecar does not answer")
        except SandboxDied:
            self._failed(assignment, "the sandbox is gone")
        except Superseded:
            self._assignments.pop(assignment.episode_uid, None)
            self._states.pop(assignment.episode_uid, None)

    async def _play(self, assignment):
        epoch, result = assignment.epoch, None
        for number in range(1, STEPS + 1):
            seconds = {"steps": number - 1, "active_seconds": number}
            self._set(assignment, AssignmentState.RUNNING, step_in_flight=number, **seconds)
            await self._call(assignment, lambda sidecar, number=number: sidecar.step(epoch, number))
            await asyncio.sleep(self.world.random.uniform(0.05, 4.0))
            result = await self._call(assignment, lambda sidecar: sidecar.observe(epoch))
            self._set(assignment, AssignmentState.RUNNING, steps=number, active_seconds=number)
            if result is not None:
                break
            await asyncio.sleep(self.world.random.uniform(0.5, 6.0))
        self._set(assignment, AssignmentState.CLOSING, steps=STEPS)
        result = await self._call(assignment, lambda sidecar: sidecar.close(epoch))
        self._set(assignment, AssignmentState.STORING, steps=STEPS)
        await self._store(assignment, result)
        await self._release(assignment)
        self._finished(assignment, result)

    async def _release(self, assignment):
        await self._call(assignment, lambda sidecar: sidecar.release(assignment.epoch, stored=True), ended=True)

    async def _stored(self, assignment):
        """The stored verdict of the attempt, once the store answers."""
        while True:
            await asyncio.sleep(self.world.random.uniform(0.05, 2.0))
            if asyncio.get_running_loop().time() >= self.world.store_away_until:
                return self.world.store.get((assignment.episode_uid, assignment.attempt))
            await asyncio.sleep(self.world.random.uniform(5.0, 15.0))

    def _failed(self, assignment, message):
        flight = self._states[assignment.episode_uid].step_in_flight
        reason = EndReason.SANDBOX_LOST
        self._set(assignment, AssignmentState.FAILED, reason=reason, message=message, step_in_flight=flight)

    def _finished(self, assignment, result):
        reason, outcome = result
        self._set(assignment, AssignmentState.FINISHED, reason=reason, outcome=outcome, steps=outcome.steps)

    async def _store(self, assignment, result):
        while True:
            await asyncio.sleep(self.world.random.uniform(0.05, 2.0))
            if asyncio.get_running_loop().time() >= self.world.store_away_until:
                self.world.store[assignment.episode_uid, assignment.attempt] = result
                if not self.world.stored_first.done():
                    self.world.stored_first.set_result((self, assignment))
                return
            self._set(assignment, AssignmentState.STORE_UNAVAILABLE, message="the store does not answer", steps=STEPS)
            await asyncio.sleep(self.world.random.uniform(5.0, 15.0))

    async def _call(self, assignment, ask, *, ended=False):
        """Call the sidecar until it answers; with ``ended``, a sidecar that is gone is as good as an answer."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + GIVE_UP_SECONDS
        while True:
            await asyncio.sleep(self.world.random.expovariate(1 / 0.05))
            sidecar = self.world.peers.get(assignment.sidecar_url)
            if sidecar is not None and sidecar.reachable and loop.time() >= self.cut_until:
                return ask(sidecar)
            if ended:
                return None
            if loop.time() > deadline:
                raise Gone
            await asyncio.sleep(self.world.random.uniform(0.5, 5.0))


class World:
    """Everything around the operator's replicas."""

    def __init__(self, api, random):
        self.api = api
        self.random = random
        self.store = {}
        self.store_away_until = 0.0
        self.stored_first = asyncio.get_running_loop().create_future()
        """The agent that stored the first result, and its assignment."""
        self.executed = Counter()
        self.poisoned = set()
        """Steps under which a sandbox died, by UID and attempt."""
        self.used_twice = []
        """Epochs that were given to two agents."""
        self._agents_by_epoch = {}
        self.verdicts = {}
        self.peers = {}
        self.agents = []
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
        """The sidecar of the pod, if it runs."""
        return next((each for each in self.peers.values() if isinstance(each, Sidecar) and each.pod == pod), None)

    def record_assignment(self, assignment, agent):
        """Record which agent got this epoch of the episode."""
        key = (assignment.episode_uid, assignment.epoch)
        if self._agents_by_epoch.setdefault(key, (assignment.attempt, agent)) != (assignment.attempt, agent):
            self.used_twice.append(f"epoch {assignment.epoch} of {assignment.episode} was used twice")

    def start_agent(self):
        """A new agent pod, as a Deployment makes one."""
        self._agents_made += 1
        agent = AgentPod(self, f"agent-{self._agents_made}")
        self.agents.append(agent)
        return agent

    def add_episode(self, name):
        """An Episode, as a user applies it."""
        task = {"entrypoint": "pytest", "source": {"files": [{"path": "a.py", "content": "x = 1\n"}]}}
        body = {
            "apiVersion": "dgym.dev/v1alpha1",
            "kind": "Episode",
            "metadata": {"name": name},
            "spec": {"task": task, "agent": {"name": "solution"}},
        }
        made = self.api.create("episodes", NAMESPACE, body)
        self.verdicts[made["metadata"]["uid"]] = []


class Caller(PodCaller):
    """The operator's calls to agents and sidecars, over the simulated network."""

    def __init__(self, world, transport, deadline_seconds):
        self._world = world
        self._transport = transport
        self._deadline_seconds = deadline_seconds

    async def call(self, method, url, *, authorization, body=None):
        random, loop = self._world.random, asyncio.get_running_loop()
        await self._transport.thaw()
        await asyncio.sleep(random.expovariate(1 / 0.02))
        base, slash, path = url.removeprefix("http://").partition("/")
        peer = self._world.peers.get(f"http://{base}")
        lost = random.random() < self._world.api.faults
        if lost and random.random() < 0.5:
            raise Unreachable("lost before it had an effect")
        status, content = self._answered(peer, method, slash + path, body, loop.time())
        signature = sign_answer(peer.key, authorization, status, content) if isinstance(peer, Sidecar) else ""
        await asyncio.sleep(random.expovariate(1 / 0.02))
        await self._transport.thaw()
        if lost:
            await asyncio.sleep(self._deadline_seconds)
            raise Unreachable("the answer was lost")
        return Answer(status, content, signature)

    def _answered(self, peer, method, path, body, now):
        if isinstance(peer, Sidecar):
            if not peer.reachable:
                raise Unreachable("no sidecar")
            if path == Path.CANCEL:
                peer.cancel()
            if path == Path.VERIFY:
                return 200, json.dumps({"expected": peer.result is not None, "poisonedStep": peer.poisoned}).encode()
            return 200, b"{}"
        if peer is None or not peer.alive or now < peer.cut_until:
            raise Unreachable("no agent")
        if method == "GET":
            return 200, msgspec.json.encode(peer.report())
        uid = path.rpartition("/")[2]
        if method == "DELETE":
            if uid not in peer.held:
                return 404, b"unknown"
            peer.withdraw(uid)
        else:
            peer.assign(msgspec.json.decode(body, type=Assignment))
        return 200, json.dumps({}).encode()
