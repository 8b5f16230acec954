"""Many episodes on a handful of slots, and a random fault every few seconds: none is lost, each has one verdict."""

import contextlib
import os
import random
import time

from tests.e2e.cluster.faults import kinds
from tests.e2e.cluster.faults.cells import check_invariants
from tests.e2e.cluster.faults.designs import OF_ONE_AGENT, OF_ONE_EPISODE, Fault
from tests.e2e.cluster.faults.moments import held_episode
from tests.e2e.cluster.support import Failed, unique, until

EPISODES = int(os.environ.get("SOAK_EPISODES", "200"))
SECONDS = float(os.environ.get("SOAK_SECONDS", "300"))
SEED = int(os.environ.get("SOAK_SEED") or random.randrange(2**32))
FAULTS = (
    *OF_ONE_EPISODE,
    *(fault for fault in OF_ONE_AGENT if fault is not Fault.AGENT_PARTITIONED),
    Fault.LEADER_KILLED,
    Fault.API_SERVER_RESTARTED,
    Fault.ETCD_RESTARTED,
)
WEIGHTS = [4] * len(OF_ONE_EPISODE) + [1] * (len(FAULTS) - len(OF_ONE_EPISODE))


def test_soak(stage):
    print(f"SOAK_SEED={SEED}", flush=True)
    chance = random.Random(SEED)
    prefix = unique("soak")
    patient = {"backoffLimit": 100, "maxDisruptions": 1000}
    stage.episodes.apply(*(held_episode(f"{prefix}-{index:03}", None, **patient) for index in range(EPISODES)))
    made = strike(stage, prefix, chance)
    finished = until(lambda: all_finished(stage, prefix), what="all episodes", seconds=1200, pause=3)
    print(f"seed {SEED}: {made}")
    for episode in finished:
        status = episode["status"]
        # A step under which the sandbox died twice is a verdict about the agent.
        assert status["reason"] in ("Resolved", "SandboxKilled"), status
        check_invariants(stage, episode["metadata"]["name"], status, set())
    until(lambda: not stage.episodes.items("pods"), what="all pods to go")


def strike(stage, prefix, chance):
    """Faults until the time is over or the episodes are; how many of each."""
    made = {}
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        time.sleep(chance.uniform(1, 4))
        (fault,) = chance.choices(FAULTS, WEIGHTS)
        running = sorted(each["metadata"]["name"] for each in stage.episodes.items("episodes") if is_running(each))
        if not running:
            if all_finished(stage, prefix):
                break
            continue
        # The victim may end meanwhile, or have no sandbox any more.
        with contextlib.suppress(Failed, AssertionError, LookupError, OSError, StopIteration, KeyError):
            if fault in (*OF_ONE_EPISODE, *OF_ONE_AGENT):
                context = kinds.of_one(fault)(stage, chance.choice(running))
            else:
                context = kinds.of_all(fault)(stage)
            with context:
                made[fault.value] = made.get(fault.value, 0) + 1
    return made


def is_running(episode):
    status = episode.get("status", {})
    return status.get("state") == "Running" and bool(status.get("assignment")) and bool(status.get("podName"))


def all_finished(stage, prefix):
    """All episodes, once all have finished."""
    found = [each for each in stage.episodes.items("episodes") if each["metadata"]["name"].startswith(prefix)]
    assert len(found) == EPISODES, "an Episode is lost"
    return found if all(each.get("status", {}).get("state") == "Finished" for each in found) else None
