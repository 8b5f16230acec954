"""Runs of the simulation: replicas of the operator, episodes, and faults drawn from a seed.

A run depends on its schedule alone. A schedule that fails is shrunk to the faults and episodes that it needs to fail.
"""

import asyncio
from random import Random
from typing import NamedTuple

from tests.simulation import virtual
from tests.simulation.api_server import ApiServer, is_finished
from tests.simulation.cluster import World
from tests.simulation.faults import CANCELLED_SET, KINDS, STRANGER, USERS, Fault, Injector
from tests.simulation.invariants import Invariants
from tests.simulation.replicas import Replica

EPISODES = 4
KINDS_OF_EPISODES = {"agent": 60, "driver": 10, "deadly once": 5, "deadly twice": 5, "endless": 2, "stuck": 1}
"""And how often each is drawn. What is stuck takes the operator, and a run, a long time to end."""
STRANGERS = 0.2
"""The share of schedules in which a tenant takes the name of a pod."""
POOLS = 0.4
"""The share of schedules with a SandboxPool."""
SETS = 0.25
"""The share of schedules with an EpisodeSet, of which every other one is cancelled."""
QUOTAS = 0.3
"""The share of schedules with a ResourceQuota, of those without a SandboxPool."""
_UNNOTICED = ("leader", "cluster: watches", "cluster: history")
"""Beginnings of kinds that only the operator notices."""
FILLING_SECONDS = 22.0
"""So long before the episodes the SandboxPool is created: the pods of a quiet cluster are ready by then."""
REPLICAS = 2
AGENTS = 2
FAULTY_SECONDS = 60.0
"""Faults begin, and requests fail, within so long: without faults the episodes take 40 s."""
LEFT_OVER_SECONDS = 300.0
"""What is left over may take so long to disappear: the pods of lost nodes are deleted late."""
QUIET_SECONDS = 20.0
"""The operator is observed for so long when all is over."""
LIMIT_SECONDS = 4 * 3600.0
"""An episode that has not ended by then never will: beyond every back-off and deadline of the policy."""


class Schedule(NamedTuple):
    """All that a run depends on.

    ``episodes`` are the kinds of them, ``slots`` those of each agent, ``max_active`` bounds active episodes, and a
    SandboxPool has ``idle`` pods ready, unless that is 0. A ``quota`` bounds sandboxes. An EpisodeSet has so many
    ``samples``, unless that is 0, or so many in each of its ``arms``. Finished episodes are deleted after ``ttl``
    seconds, unless that is None.
    """

    seed: int
    faults: tuple[Fault, ...]
    lossy: float
    episodes: tuple[str, ...] = ("agent",) * EPISODES
    slots: int = 2
    max_active: int | None = None
    idle: int = 0
    quota: int | None = None
    samples: int = 0
    arms: int = 0
    ttl: int | None = None

    @property
    def is_calm(self):
        """Whether no request fails, and no fault is inflicted."""
        return not self.lossy and not self.faults

    def __str__(self):
        limits = f"{self.slots} slots an agent, maxActive {self.max_active}, {self.idle} idle pods, quota {self.quota}"
        limits += f", a set of {self.samples}, {self.arms} arms, ttl {self.ttl}"
        lines = [f"seed {self.seed}, {self.lossy:.1%} of requests fail, {', '.join(self.episodes)}; {limits}"]
        lines += [f"{each.at:7.2f} s {each.kind} #{each.choice}, {each.seconds:.1f} s" for each in self.faults]
        return "\n  ".join(lines)


def draw(seed):
    """The schedule of a seed."""
    random = Random(seed)
    faults = []
    for _ in range(random.randint(1, 4)):
        at = random.uniform(0.0, FAULTY_SECONDS)
        # Faults rarely come alone: what the first leaves half done meets the second.
        faults += [
            Fault(at + random.uniform(0.0, 8.0), random.choice(KINDS), random.randrange(8), random.uniform(1.0, 60.0))
            for _ in range(random.randint(1, 3))
        ]
    kinds = random.choices(tuple(KINDS_OF_EPISODES), tuple(KINDS_OF_EPISODES.values()), k=EPISODES)
    lossy, slots, most = random.choice((0.0, 0.02, 0.15)), random.choice((1, 2)), random.choice((None, 2, 3))
    if random.random() < STRANGERS:
        # Drawn behind the others, so that it changes nothing of the schedules without.
        at, seconds = random.uniform(0.0, FAULTY_SECONDS), random.uniform(1.0, 60.0)
        faults.append(Fault(at, STRANGER, random.randrange(8), seconds))
    idle = random.choice((1, 2)) if random.random() < POOLS else 0
    quota = random.choice((1, 2, 3)) if random.random() < QUOTAS and not idle else None
    samples = random.choice((2, 4, 6)) if random.random() < SETS else 0
    if samples and random.random() < 0.5:
        faults.append(Fault(random.uniform(0.0, FAULTY_SECONDS), CANCELLED_SET, 0, 0.0))
        kinds = kinds[:2]
    return Schedule(seed, tuple(sorted(faults)), lossy, tuple(kinds), slots, most, idle, quota, samples)


def draw_users(seed):
    """The schedule of a seed in which users change an EpisodeSet, while leaders change and watches fail."""
    random = Random(seed)
    others = [kind for kind in KINDS if kind.startswith(_UNNOTICED)]
    faults = [
        Fault(
            random.uniform(0.0, FAULTY_SECONDS), random.choice(USERS if random.random() < 0.7 else others),
            random.randrange(8), random.uniform(1.0, 30.0),
        )
        for _ in range(random.randint(1, 5))
    ]  # fmt: skip
    samples, arms, ttl = random.choice((1, 2)), random.choice((1, 2, 3)), random.choice((None, 5, 60))
    lossy, slots = random.choice((0.0, 0.0, 0.02)), random.choice((1, 2, 4))
    return Schedule(seed, tuple(sorted(faults)), lossy, (), slots, samples=samples, arms=arms, ttl=ttl)


def schedules(seed):
    """All schedules of a seed."""
    return draw(seed), draw_users(seed)


def play(schedule, *, limit=LIMIT_SECONDS, prepare=lambda api: None):
    """Run the schedule for at most ``limit`` virtual seconds; returns what did not hold.

    ``prepare`` is called with the API server before anything else happens.
    """
    try:
        return virtual.run(_run(schedule, limit, prepare))
    except virtual.Stuck as error:
        return [str(error)]


async def _run(schedule, limit, prepare):
    return await _Run(schedule, limit, prepare).run()


def shrink(schedule):
    """The schedule without the faults and episodes that its failure does not need."""
    for candidate in _smaller(schedule):
        if play(candidate):
            return shrink(candidate)
    return schedule


def _smaller(schedule):
    faults, episodes = schedule.faults, schedule.episodes
    for index in range(len(faults)):
        yield schedule._replace(faults=faults[:index] + faults[index + 1 :])
    if schedule.lossy:
        yield schedule._replace(lossy=0.0)
    if schedule.max_active is not None:
        yield schedule._replace(max_active=None)
    if schedule.quota:
        yield schedule._replace(quota=None)
    if schedule.idle:
        yield schedule._replace(idle=0)
    if schedule.ttl is not None:
        yield schedule._replace(ttl=None)
    if schedule.samples and schedule.episodes:
        yield schedule._replace(samples=0)
    for index in range(len(episodes) if len(episodes) > 1 or schedule.samples else 0):
        yield schedule._replace(episodes=episodes[:index] + episodes[index + 1 :])


class _Run:
    def __init__(self, schedule, limit, prepare):
        self._schedule = schedule
        self._limit = limit
        random = Random(schedule.seed)
        self._api = ApiServer(random, faults=schedule.lossy)
        prepare(self._api)
        self._world = World(self._api, random)
        self._invariants = Invariants(self._api, self._world, schedule)
        self._replicas = [Replica(self._world, number, schedule.max_active) for number in range(REPLICAS)]

    async def run(self):
        schedule = self._schedule
        injector = Injector(self._api, self._world, self._replicas, schedule.slots)
        async with asyncio.TaskGroup() as group:
            self._world.open(group)
            for _ in range(AGENTS):
                self._world.start_agent(schedule.slots)
            replicas = [group.create_task(replica.run()) for replica in self._replicas]
            faults = [group.create_task(injector.inflict(fault)) for fault in schedule.faults]
            if schedule.idle:
                self._world.add_pool(schedule.idle)
                await asyncio.sleep(FILLING_SECONDS)
            if schedule.quota:
                self._world.add_quota(schedule.quota)
            for number, kind in enumerate(schedule.episodes):
                self._world.add_episode(f"episode-{number}", kind, schedule.ttl)
            if schedule.samples:
                self._world.add_set(schedule.samples, schedule.arms, schedule.ttl)
            ended = await self._until(self._all_finished, self._limit)
            # A fault that waits for its occasion may have waited in vain.
            if faults:
                await asyncio.wait(faults, timeout=FAULTY_SECONDS)
            if ended:
                cut = max(agent.cut_until for agent in self._world.agents)
                deadline = max(cut, asyncio.get_running_loop().time()) + LEFT_OVER_SECONDS
                await self._until(lambda: not any(self._invariants.left_over()), deadline)
                if all(fault.done() for fault in faults):
                    self._invariants.attempts.is_over = True
                    await asyncio.sleep(QUIET_SECONDS)
            found = self._invariants.violations(ended=ended)
            for task in replicas:
                task.cancel()
            await asyncio.wait(replicas)
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
        return found

    async def _until(self, condition, deadline):
        loop = asyncio.get_running_loop()
        while loop.time() < deadline:
            await asyncio.sleep(2.0)
            if loop.time() > FAULTY_SECONDS:
                self._api.faults = 0.0
            if condition():
                return True
        return False

    def _all_finished(self):
        return self._invariants.sets.is_finished() and all(map(is_finished, self._api.items("episodes")))


__all__ = ["Fault", "Schedule", "draw", "draw_users", "play", "schedules", "shrink"]
