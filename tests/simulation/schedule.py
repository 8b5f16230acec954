"""Runs of the simulation: replicas of the operator, episodes, faults drawn from a seed, and what must hold.

A run depends on its schedule alone. A schedule that fails is shrunk to the faults that it needs to fail.
"""

import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from random import Random
from typing import NamedTuple

from dgym.kube import Access, Credentials
from dgym.wire import EndReason
from dgym_operator.app import Operator
from dgym_operator.app.operator import Network
from dgym_operator.settings import Settings
from tests.simulation import virtual
from tests.simulation.api_server import ApiServer, ReplicaTransport
from tests.simulation.cluster import STEPS, Caller, World
from tests.simulation.pods import NAMESPACE

EPISODES = 4
REPLICAS = 2
AGENTS = 2
FAULTY_SECONDS = 150.0
"""Faults begin within so long; then the cluster is left alone."""
LIMIT_SECONDS = 4 * 3600.0
"""An episode that has not ended by then never will: beyond every back-off and deadline of the policy."""


class Fault(NamedTuple):
    """A fault and its moment; ``choice`` picks what it hits, ``seconds`` is how long it lasts."""

    at: float
    kind: str
    choice: int
    seconds: float


class Schedule(NamedTuple):
    """All that a run depends on."""

    seed: int
    faults: tuple[Fault, ...]
    lossy: float

    def __str__(self):
        lines = [f"seed {self.seed}, {self.lossy:.1%} of requests fail"]
        lines += [f"{each.at:7.2f} s {each.kind} #{each.choice}, {each.seconds:.1f} s" for each in self.faults]
        return "\n  ".join(lines)


KINDS = (
    "leader: killed",
    "leader: stopped",
    "leader: partitioned",
    "leader: slowed",
    "agent: restarted",
    "agent: deleted",
    "agent: partitioned",
    "pod: deleted",
    "pod: without its sidecar",
    "pod: on a lost node",
    "cluster: server away",
    "cluster: watches cut off",
    "cluster: history compacted",
    "cluster: store away",
)


def draw(seed):
    """The schedule of a seed."""
    random = Random(seed)
    faults = []
    for _ in range(random.randrange(5)):
        at = random.uniform(0.0, FAULTY_SECONDS)
        # Faults rarely come alone: what the first leaves half done meets the second.
        faults += [
            Fault(at + random.uniform(0.0, 8.0), random.choice(KINDS), random.randrange(8), random.uniform(1.0, 60.0))
            for _ in range(random.randint(1, 3))
        ]
    return Schedule(seed, tuple(sorted(faults)), random.choice((0.0, 0.02, 0.15)))


def play(schedule, *, limit=LIMIT_SECONDS):
    """Run the schedule for at most ``limit`` virtual seconds; returns what did not hold."""
    try:
        return virtual.run(_run(schedule, limit))
    except virtual.Stuck as error:
        return [str(error)]


async def _run(schedule, limit):
    return await _Run(schedule, limit).run()


def shrink(schedule):
    """The schedule without the faults that its failure does not need."""
    for candidate in _smaller(schedule):
        if play(candidate):
            return shrink(candidate)
    return schedule


def _smaller(schedule):
    faults = schedule.faults
    for index in range(len(faults)):
        yield schedule._replace(faults=faults[:index] + faults[index + 1 :])
    if schedule.lossy:
        yield schedule._replace(lossy=0.0)


class _Run:
    def __init__(self, schedule, limit):
        self._schedule = schedule
        self._limit = limit
        random = Random(schedule.seed)
        self._random = random
        self._api = ApiServer(random, faults=schedule.lossy)
        self._world = World(self._api, random)
        self._observed = []
        self._api.observers.append(self._observe)
        self._replicas = [_Replica(self._world, number) for number in range(REPLICAS)]

    async def run(self):
        async with asyncio.TaskGroup() as group:
            self._world.open(group)
            for _ in range(AGENTS):
                self._world.start_agent()
            for number in range(EPISODES):
                self._world.add_episode(f"episode-{number}")
            replicas = [group.create_task(replica.run()) for replica in self._replicas]
            others = [group.create_task(self._do(fault)) for fault in self._schedule.faults]
            ended = await self._until_finished()
            await asyncio.gather(*others)
            if ended:
                cut = max(agent.cut_until for agent in self._world.agents)
                await asyncio.sleep(max(0.0, cut - asyncio.get_running_loop().time()) + 120.0)
            found = self._violations(ended=ended)
            for task in replicas:
                task.cancel()
            await asyncio.wait(replicas)
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
        return found

    async def _until_finished(self):
        loop = asyncio.get_running_loop()
        while loop.time() < self._limit:
            await asyncio.sleep(5.0)
            if loop.time() > FAULTY_SECONDS:
                self._api.faults = 0.0
            if loop.time() > FAULTY_SECONDS and all(_finished(each) for each in self._api.items("episodes")):
                return True
        return False

    async def _do(self, fault):
        await asyncio.sleep(fault.at)
        pods = [
            each["metadata"]["name"]
            for each in self._api.items("pods")
            if each["metadata"].get("labels", {}).get("app.kubernetes.io/component") == "sandbox"
        ]
        agents = [agent for agent in self._world.agents if agent.alive]
        subject, _, verb = fault.kind.partition(": ")
        target = {
            "leader": lambda: next((each for each in self._replicas if each.leads), self._replicas[0]),
            "agent": lambda: _pick(agents, fault.choice),
            "pod": lambda: _pick(pods, fault.choice),
            "cluster": lambda: self._world,
        }[subject]()
        if target is not None:
            await getattr(self, f"_{subject}_{verb.replace(' ', '_')}")(target, fault.seconds)

    async def _leader_killed(self, leader, _seconds):
        leader.kill()

    async def _leader_stopped(self, leader, _seconds):
        leader.stop()

    async def _leader_partitioned(self, leader, seconds):
        leader.transport.cut_until = _after(seconds)

    async def _leader_slowed(self, leader, seconds):
        leader.transport.slow_until = _after(seconds)

    async def _agent_restarted(self, agent, _seconds):
        agent.restart()

    async def _agent_deleted(self, agent, seconds):
        agent.delete()
        await asyncio.sleep(seconds)
        self._world.start_agent()

    async def _agent_partitioned(self, agent, seconds):
        agent.cut_until = _after(seconds)

    async def _pod_deleted(self, pod, _seconds):
        self._api.delete("pods", NAMESPACE, pod)

    async def _pod_without_its_sidecar(self, pod, _seconds):
        sidecar = self._world.sidecar_of(pod)
        if sidecar is not None:
            sidecar.kill()

    async def _pod_on_a_lost_node(self, pod, _seconds):
        self._world.kubelet.lose_node(pod)

    async def _cluster_server_away(self, _world, seconds):
        self._api.away_until = _after(seconds)

    async def _cluster_watches_cut_off(self, _world, _seconds):
        self._api.drop_watches()

    async def _cluster_history_compacted(self, _world, _seconds):
        self._api.compact()

    async def _cluster_store_away(self, world, seconds):
        world.store_away_until = _after(seconds)

    async def _cluster_agent_and_node_lost_after_a_verdict(self, world, seconds):
        agent, assignment = await world.stored_first
        agent.cut_until = _after(seconds)
        world.kubelet.lose_node(assignment.pod_name)

    def _observe(self, _kind, plural, _item):
        """What must hold at every write."""
        if plural != "episodes":
            return
        assigned = Counter(
            episode["status"]["assignment"]["agentPodUID"]
            for episode in self._api.items("episodes")
            if _uses_slot(episode)
        )
        slots = {agent.uid: agent.slots for agent in self._world.agents}
        self._observed += [
            f"agent {uid} has {slots.get(uid)} slots, and {number} episodes are assigned to it"
            for uid, number in assigned.items()
            if number > slots.get(uid, 0)
        ]

    def _violations(self, *, ended):
        """What must hold when all faults are over."""
        found = sorted(set(self._observed))
        for episode in self._api.items("episodes"):
            name, uid = episode["metadata"]["name"], episode["metadata"]["uid"]
            status = episode.get("status", {})
            if not ended and not _finished(episode):
                found.append(f"{name} never ended: {status.get('reason')}: {status.get('message')}")
                continue
            found += [f"{name}: {problem}" for problem in self._wrong(uid, status)]
        found += [
            f"step {number} of attempt {attempt} was executed {times} times"
            for (_, attempt, number), times in self._world.executed.items()
            if times > 1
        ]
        if ended:
            found += self._left_over()
        return found

    def _wrong(self, uid, status):
        made = self._world.verdicts[uid]
        stored = [attempt for (owner, attempt) in self._world.store if owner == uid]
        if len(stored) > 1:
            yield f"{len(stored)} verdicts were stored, of attempts {stored}"
        reason = status.get("reason")
        if reason == EndReason.RESOLVED:
            if (status.get("attempt"), EndReason.RESOLVED) not in made:
                yield f"Resolved in attempt {status.get('attempt')}, and no sidecar said so: {made}"
            elif status["outcome"]["steps"] != STEPS:
                yield f"resolved after {status['outcome']['steps']} steps"
        elif stored:
            yield f"a verdict of attempt {stored} is stored, and the episode ended as {reason}: {status.get('message')}"
        if reason in (EndReason.UNRESOLVED, EndReason.DEADLINE_EXCEEDED, EndReason.SANDBOX_KILLED, EndReason.CANCELLED):
            yield f"the agent is blamed for a fault of the infrastructure: {reason}: {status.get('message')}"

    def _left_over(self):
        for pod in self._api.items("pods"):
            if pod["metadata"].get("labels", {}).get("app.kubernetes.io/component") == "sandbox":
                yield f"pod {pod['metadata']['name']} is left over"
        for agent in self._world.agents:
            if agent.alive and agent.held:
                yield f"{agent.name} still has {sorted(agent.held)}"


class _Replica:
    """An operator process, which its kubelet starts again whenever it ends."""

    def __init__(self, world, number):
        self._world = world
        self._number = number
        self._operator = None
        self._task = None
        self._stop = None
        self.transport = None

    @property
    def leads(self):
        return self._operator is not None and self._operator.elector.is_leader()

    def kill(self):
        """SIGKILL: nothing that it does at its end reaches anybody."""
        self.transport.cut_until = float("inf")
        self._task.cancel()

    def stop(self):
        """SIGTERM."""
        self._stop.set()

    async def run(self):
        while True:
            self._start()
            try:
                await asyncio.wait((self._task,))
            except asyncio.CancelledError:
                self.kill()
                await asyncio.gather(self._task, return_exceptions=True)
                raise
            if not self._task.cancelled():
                self._task.exception()
            await asyncio.sleep(self._world.random.uniform(1.0, 10.0))

    def _start(self):
        random = self._world.random
        self.transport = type("Cut", (ReplicaTransport,), {"server": self._world.api})
        self._stop = asyncio.Event()
        self._operator = Operator(
            Settings(
                namespace=NAMESPACE, watch_namespaces=(NAMESPACE,), sandbox_image="sandbox", sidecar_image="sidecar",
                pod_name=f"operator-{self._number}",
            ),
            Access(server="http://api", namespace=NAMESPACE, credentials=Credentials()),
            clock=virtual.VirtualClock(), random=random, random_bytes=random.randbytes,
            network=_network(self._world, self.transport),
        )  # fmt: skip
        self._task = asyncio.ensure_future(self._operator.run(self._stop))


def _network(world, transport):
    class Simulated(Network):
        @asynccontextmanager
        async def callers(self):
            yield lambda seconds: Caller(world, transport, seconds)

        @staticmethod
        @asynccontextmanager
        async def serve(*_args, **_options):
            yield 0

    network = Simulated()
    network.transport = transport
    return network


def _pick(candidates, choice):
    return candidates[choice % len(candidates)] if candidates else None


def _after(seconds):
    return asyncio.get_running_loop().time() + seconds


def _uses_slot(episode):
    assignment = episode.get("status", {}).get("assignment")
    return assignment is not None and assignment.get("mode") != "recover" and not _finished(episode)


def _finished(episode):
    conditions = episode.get("status", {}).get("conditions", [])
    return any(each["type"] == "Finished" and each["status"] == "True" for each in conditions)


__all__ = ["Fault", "Schedule", "draw", "play", "shrink"]
