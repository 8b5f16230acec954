import pytest

from dgym_operator.app.reconciler import Item, Kind


async def drain(queue):
    found = []
    while len(queue):
        async with queue.take() as item:
            found.append(item)
    return found


async def test_a_replica_that_does_not_lead_collects_nothing(handlers, queue, objects, cache):
    for number in range(3):
        cache.episodes.remove(objects.episode(f"gone-{number}"))
    objects.episode("fix")
    cache.pods.put(objects.pod("fix-1", owner="fix"))
    handlers.enqueue(("team", "fix"))
    assert (len(queue), queue.delayed) == (0, 0)


async def test_a_new_leader_looks_at_all_there_is_and_then_at_what_changes(handlers, queue, objects, cache):
    cache.episodes.remove(objects.episode("gone"))
    objects.episode("fix")
    cache.sets.put(objects.episode_set("all"))
    handlers.start()
    assert await drain(queue) == [Item(Kind.EPISODE_SET, ("team", "all")), Item(Kind.EPISODE, ("team", "fix"))]
    objects.episode("new")
    assert await drain(queue) == [Item(Kind.EPISODE, ("team", "new"))]


def last_state(message):
    ended = {"name": "sidecar", "state": {"terminated": {"exitCode": 0, "message": message}}}
    return {"phase": "Succeeded", "containerStatuses": [ended]}


async def test_a_disruption_that_only_the_end_of_a_pod_showed_is_remembered(handlers, objects, cache):
    episode = objects.episode("fix", attempt=1, podName="fix-1")
    cache.pods.put(objects.pod("fix-1", owner="fix", phase="Running"))
    assert cache.episode_input(episode, may_create=True).disrupted_attempt == 0
    target = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}
    cache.pods.remove(objects.pod("fix-1", owner="fix", phase="Running", conditions=[target]))
    assert cache.episode_input(episode, may_create=True).disrupted_attempt == 1
    cache.episodes.remove(episode)
    assert episode.metadata.uid not in cache.memory.disrupted


async def test_the_last_message_of_a_deleted_pod_outlives_it_until_the_attempt_is_concluded(handlers, objects, cache):
    episode = objects.episode("fix", attempt=1, podName="fix-1")
    cache.pods.put(objects.pod("fix-1", owner="fix"))
    cache.pods.remove(objects.pod("fix-1", owner="fix", **last_state("the verdict")))

    (last,) = cache.episode_input(episode, may_create=True).pods
    assert last.container("sidecar").state.terminated.message == "the verdict"
    assert last.metadata.deletion_timestamp is not None

    concluded = objects.episode("fix", attempt=1)
    assert cache.episode_input(concluded, may_create=True).pods == ()


async def test_a_pod_that_was_deleted_before_an_agent_had_it_is_seen_by_the_next_decision(handlers, objects, cache):
    episode = objects.episode("fix")
    cache.pods.put(objects.pod("fix-1", owner="fix"))
    cache.pods.remove(objects.pod("fix-1", owner="fix"))

    (last,) = cache.episode_input(episode, may_create=True).pods
    assert last.metadata.deletion_timestamp is not None

    assert cache.episode_input(objects.episode("fix", attempt=1), may_create=True).pods == ()
    assert "uid-fix" not in cache.memory.last_pods


@pytest.mark.parametrize("serves", [{"podName": "fix-2", "attempt": 2}, {"attempt": 1}])
async def test_a_deleted_pod_that_serves_no_attempt_is_not_kept(handlers, objects, cache, serves):
    episode = objects.episode("fix", **serves)
    cache.pods.put(objects.pod("fix-1", owner="fix"))
    cache.pods.remove(objects.pod("fix-1", owner="fix", **last_state("old")))
    assert cache.episode_input(episode, may_create=True).pods == ()
