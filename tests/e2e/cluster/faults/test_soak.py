"""Test of many episodes on a few slots with a random fault every few seconds: each has exactly one result."""

import os
import random
import time
from collections import Counter
from contextlib import ExitStack
from typing import NamedTuple

from tests.e2e.cluster.faults import kinds, node
from tests.e2e.cluster.faults.cells import check_record, check_removed
from tests.e2e.cluster.faults.designs import OF_ONE_AGENT, OF_ONE_EPISODE, Fault
from tests.e2e.cluster.faults.moments import STEP_PROGRAM, held_episode
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
VICTIM_SECONDS = 120.0
OVER = ("over",)
MISSED = (Failed, AssertionError, LookupError, OSError, StopIteration)
"""Exceptions that a fault raises if its target has ended in the meantime."""


class Strike(NamedTuple):
    """A caused fault, with the name and attempt of its target. ``name`` is "" if it affects all episodes."""

    fault: Fault
    name: str = ""
    attempt: int = 0

    def in_time(self, statuses):
        """True if the fault ended the target's attempt. Faults with more targets always count as in time."""
        if self.fault not in OF_ONE_EPISODE:
            return True
        status = statuses[self.name]
        return status["attempt"] > self.attempt or status["reason"] == "SandboxKilled"


def test_soak(stage):
    print(f"SOAK_SEED={SEED}", flush=True)
    chance = random.Random(SEED)
    prefix = unique("soak")
    patient = {"backoffLimit": 100, "maxDisruptions": 1000}
    stage.episodes.apply(*(held_episode(f"{prefix}-{index:03}", None, **patient) for index in range(EPISODES)))
    pods = set()
    made, missed = strike(stage, prefix, chance, pods)
    statuses = until(lambda: all_finished(stage, prefix, pods), what="all episodes", seconds=1200, pause=3)
    ends = Counter(status["reason"] for status in statuses.values())
    in_time = Counter(each.fault.value for each in made if each.in_time(statuses))
    late = Counter(each.fault.value for each in made if not each.in_time(statuses)) + missed
    print(
        f"SOAK_SEED={SEED}: {len(pods)} pods; ends: {dict(ends)}\n{in_time.total()} faults in time: {dict(in_time)}\n"
        f"{late.total()} too late, the victim had ended: {dict(late)}",
        flush=True,
    )
    for name, status in statuses.items():
        # If the sandbox dies twice during the same step, the episode ends with SandboxKilled.
        assert status["reason"] in ("Resolved", "SandboxKilled"), status
        check_record(stage, name, status)
    check_removed(stage, set(statuses), pods)
    assert in_time.total() >= late.total(), "most faults came too late to mean anything"


def strike(stage, prefix, chance, pods):
    """Cause faults until the time or all episodes have ended. Returns the faults and the counts of missed targets."""
    made, missed = [], Counter()
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        time.sleep(chance.uniform(0.5, 3))
        victims = until(lambda: find_victims(stage, prefix, pods), what="a step", seconds=VICTIM_SECONDS)
        if victims is OVER:
            break
        (fault,) = chance.choices(FAULTS, WEIGHTS)
        name, attempt = chance.choice(victims)
        with ExitStack() as stack:
            try:
                if fault in (*OF_ONE_EPISODE, *OF_ONE_AGENT):
                    context, each = kinds.of_one(fault)(stage, name), Strike(fault, name, attempt)
                else:
                    context, each = kinds.of_all(fault)(stage), Strike(fault)
                stack.enter_context(context)
            except MISSED:
                missed[fault.value] += 1
            else:
                made.append(each)
    return made, missed


def find_victims(stage, prefix, pods):
    """Name and attempt of the episodes in whose sandboxes a step is running. ``OVER`` if all episodes have finished."""
    running = {pod["metadata"]["name"]: pod for pod in stage.episodes.items("pods") if pod_runs(pod)}
    found, statuses = [], observe(stage, prefix, pods)
    if is_over(statuses):
        return OVER
    for name, status in statuses.items():
        # Other pods may be started in advance. They have no agent yet.
        pod = running.get(status.get("podName"))
        if pod is not None and status.get("state") != "Finished" and STEP_PROGRAM in node.programs(pod, "sandbox"):
            found.append((name, status["attempt"]))
    return sorted(found)


def pod_runs(pod):
    statuses = pod["status"].get("containerStatuses", ())
    running = len(statuses) == 3 and all("running" in each["state"] for each in statuses)
    return running and "deletionTimestamp" not in pod["metadata"]


def observe(stage, prefix, pods):
    """The statuses of all episodes by name. Adds the UIDs of all existing pods to ``pods``."""
    pods.update(pod["metadata"]["uid"] for pod in stage.episodes.items("pods"))
    statuses = {each["metadata"]["name"]: each.get("status", {}) for each in stage.episodes.items("episodes")
                if each["metadata"]["name"].startswith(prefix)}  # fmt: skip
    assert len(statuses) == EPISODES, "an Episode is lost"
    return statuses


def is_over(statuses):
    return all(status.get("state") == "Finished" for status in statuses.values())


def all_finished(stage, prefix, pods):
    """The statuses of all episodes, once all have finished."""
    statuses = observe(stage, prefix, pods)
    return statuses if is_over(statuses) else None
