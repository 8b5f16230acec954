"""Runs of the simulation: replicas of the operator, episodes, and faults drawn from a seed.

A run depends only on its schedule. A failing schedule is shrunk to the faults and episodes that are necessary for the
failure.
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
"""Kinds of episodes and their relative frequencies.

A stuck episode takes a long time to end, in the operator and in the run.
"""
STRANGERS = 0.2
"""Share of schedules in which a tenant takes the name of a pod."""
POOLS = 0.4
"""Share of schedules with a SandboxPool."""
SETS = 0.25
"""Share of schedules with an EpisodeSet. Half of these sets are cancelled."""
QUOTAS = 0.3
"""Share of schedules with a ResourceQuota among those without a SandboxPool."""
_UNNOTICED = ("leader", "cluster: watches", "cluster: history")
"""Prefixes of faults that affect only the operator."""
FILLING_SECONDS = 22.0
"""Time between the creation of the SandboxPool and of the episodes. Without faults the pods are ready by then."""
REPLICAS = 2
AGENTS = 2
FAULTY_SECONDS = 60.0
"""Faults begin and requests fail within this time. Without faults the episodes take 40 s."""
LEFT_OVER_SECONDS = 300.0
"""Maximum time until leftover objects disappear. The pods of lost nodes are deleted late."""
WATCH_LAG_SECONDS = 30.0
"""Maximum delay of the events of a watch."""
QUIET_SECONDS = 20.0
"""Time for which the operator is observed after all work has ended."""
LIMIT_SECONDS = 4 * 3600.0
"""An episode that has not ended by then never ends. The time exceeds every back-off and deadline of the policy."""


class Schedule(NamedTuple):
    """All parameters of a run.

    ``episodes`` are the kinds of the episodes. ``slots`` is the number of slots of each agent pod. ``max_active``
    bounds the active episodes. ``idle`` is the number of ready pods of the SandboxPool; with 0 there is no SandboxPool.
    ``quota`` bounds the sandboxes. ``samples`` is the number of episodes of the EpisodeSet, or of each arm and task if
    ``arms`` is not 0; with 0 there is no EpisodeSet. Finished episodes are deleted after ``ttl`` seconds, or never if
    it is None.
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
        """True if all requests succeed and the schedule is free of faults."""
        return not self.lossy and not self.faults

    def __str__(self):
        limits = f"{self.slots} slots an agent, maxActive {self.max_active}, {self.idle} idle pods, quota {self.quota}"
        limits += f", a set of {self.samples}, {self.arms} arms, ttl {self.ttl}"
        lines = [f"seed {self.seed}, {self.lossy:.1%} of requests fail, {', '.join(self.episodes)}; {limits}"]
        lines += [f"{each.at:7.2f} s {each.kind} #{each.choice}, {each.seconds:.1f} s" for each in self.faults]
        return "\n  ".join(lines)


def draw(seed):
    """Return the schedule of a seed."""
    random = Random(seed)
    faults = []
    for _ in range(random.randint(1, 4)):
        at = random.uniform(0.0, FAULTY_SECONDS)
        # Faults rarely come alone. The second fault meets the unfinished work of the first.
        faults += [
            Fault(at + random.uniform(0.0, 8.0), random.choice(KINDS), random.randrange(8), random.uniform(1.0, 60.0))
            for _ in range(random.randint(1, 3))
        ]
    kinds = random.choices(tuple(KINDS_OF_EPISODES), tuple(KINDS_OF_EPISODES.values()), k=EPISODES)
    lossy, slots, most = random.choice((0.0, 0.02, 0.15)), random.choice((1, 2)), random.choice((None, 2, 3))
    if random.random() < STRANGERS:
        # Drawn after the other values, so that schedules without a stranger stay the same.
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
    """Return the schedule of a seed in which users change an EpisodeSet while leaders change and watches fail."""
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
    """Return all schedules of a seed."""
    return draw(seed), draw_users(seed)


def play(schedule, *, limit=LIMIT_SECONDS, prepare=lambda api: None):
    """Run the schedule for at most ``limit`` virtual seconds and return the violations.

    ``prepare`` is called with the API server before anything else happens.
    """
    try:
        return virtual.run(_run(schedule, limit, prepare))
    except virtual.Stuck as error:
        return [str(error)]


async def _run(schedule, limit, prepare):
    return await _Run(schedule, limit, prepare).run()


def shrink(schedule):
    """Return the schedule without the faults and episodes that are not necessary for its failure."""
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
            # A fault that waits for an event may never see it.
            if faults:
                await asyncio.wait(faults, timeout=FAULTY_SECONDS)
            if ended:
                cut = max(agent.cut_until for agent in self._world.agents)
                deadline = max(cut, asyncio.get_running_loop().time()) + LEFT_OVER_SECONDS
                await self._until(lambda: not any(self._invariants.left_over()), deadline)
                if all(fault.done() for fault in faults):
                    # A response that was lost causes a conflict until the watch has delivered the write.
                    await self._until(lambda: False, FAULTY_SECONDS + WATCH_LAG_SECONDS)
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
