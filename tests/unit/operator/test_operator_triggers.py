from random import Random

import pytest

from dgym_operator.app_observer import TransitionObserver
from dgym_operator.app_reconcile import Item, Kind
from dgym_operator.app_triggers import Triggers
from dgym_operator.dispatch import Dispatcher
from dgym_operator.kube import SystemClock, WorkQueue
from dgym_operator.metrics import Metrics, Snapshot


@pytest.fixture
def queue():
    return WorkQueue(clock=SystemClock(), random=Random(1))


@pytest.fixture
def triggers(world, queue):
    dispatcher = Dispatcher(world, head_start=0, enqueue=lambda key: None)
    observer = TransitionObserver(Metrics(Snapshot), lambda: False)
    return Triggers(world, queue=queue, dispatcher=dispatcher, observer=observer)


async def drain(queue):
    found = []
    while len(queue):
        async with queue.take() as item:
            found.append(item)
    return found


async def test_a_replica_that_does_not_lead_collects_nothing(triggers, queue, objects, world):
    for number in range(3):
        world.episodes.remove(objects.episode(f"gone-{number}"))
    objects.episode("fix")
    world.pods.put(objects.pod("fix-1", owner="fix"))
    triggers.episode(("team", "fix"))
    assert (len(queue), queue.delayed) == (0, 0)


async def test_a_new_leader_looks_at_all_there_is_and_then_at_what_changes(triggers, queue, objects, world):
    world.episodes.remove(objects.episode("gone"))
    objects.episode("fix")
    world.sets.put(objects.episode_set("all"))
    triggers.lead()
    assert await drain(queue) == [Item(Kind.EPISODE_SET, ("team", "all")), Item(Kind.EPISODE, ("team", "fix"))]
    objects.episode("new")
    assert await drain(queue) == [Item(Kind.EPISODE, ("team", "new"))]
