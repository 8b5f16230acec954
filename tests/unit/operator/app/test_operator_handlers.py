from datetime import UTC, datetime

import pytest

from dgym.wire import calls
from dgym.wire.http import AttemptState, TerminatedResponse
from dgym_operator.app._reconciler import Item, Kind
from dgym_operator.calls import SidecarAnswer, SidecarCall
from dgym_operator.controllers import SidecarView

ASKED = datetime(2026, 1, 1, 12, tzinfo=UTC)


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


async def test_a_new_leader_enqueues_all_objects_and_then_changed_objects(handlers, queue, objects, cache):
    cache.episodes.remove(objects.episode("gone"))
    objects.episode("fix")
    cache.sets.put(objects.episode_set("all"))
    handlers.start()
    assert await drain(queue) == [
        Item(Kind.NETWORK_POLICY, ("team", "dgym-sandbox")),
        Item(Kind.EPISODE_SET, ("team", "all")),
        Item(Kind.EPISODE, ("team", "fix")),
    ]
    objects.episode("new")
    assert await drain(queue) == [Item(Kind.EPISODE, ("team", "new"))]


async def test_a_change_of_a_pod_that_no_decision_reads_queues_nothing(handlers, queue, objects, cache):
    handlers.start()
    starting = {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}]}
    cache.pods.put(objects.pod("fix-1", owner="fix", **starting))
    assert await drain(queue) == [Item(Kind.EPISODE, ("team", "fix"))]
    # A new version with an equal view. The kubelet also writes fields that are not in the view.
    cache.pods.put(objects.pod("fix-1", owner="fix", **starting))
    assert await drain(queue) == []
    cache.pods.put(objects.pod("fix-1", owner="fix", **{**starting, "phase": "Running"}))
    assert await drain(queue) == [Item(Kind.EPISODE, ("team", "fix"))]


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


async def test_the_last_message_of_a_deleted_pod_outlives_it_until_the_attempt_is_finished(handlers, objects, cache):
    episode = objects.episode("fix", attempt=1, podName="fix-1")
    cache.pods.put(objects.pod("fix-1", owner="fix"))
    cache.pods.remove(objects.pod("fix-1", owner="fix", **last_state("the outcome")))

    (last,) = cache.episode_input(episode, may_create=True).pods
    assert last.container("sidecar").state.terminated.message == "the outcome"
    assert last.metadata.deletion_timestamp is not None

    finished = objects.episode("fix", attempt=1)
    assert cache.episode_input(finished, may_create=True).pods == ()


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


def answer(path, content=None, *, attempt=1, uid="uid-fix"):
    return SidecarAnswer(SidecarCall(path, "http://10.0.0.1:8080", uid, attempt), ASKED, content)


async def test_an_answer_of_a_sidecar_enqueues_its_episode(handlers, queue, objects, cache):
    episode = objects.episode("fix", attempt=1, podName="fix-1")
    handlers.start()
    await drain(queue)
    answers = {
        calls.STATE: AttemptState(elapsed_seconds=12.5, remaining_seconds=0.0),
        calls.TERMINATED: TerminatedResponse(expected=False, poisoned_step=3, known=True),
        calls.CANCEL: None,
    }
    for path, content in answers.items():
        handlers.sidecar_answered(answer(path, content))
        assert await drain(queue) == [Item(Kind.EPISODE, ("team", "fix"))]
        # An equal answer does not queue the Episode again.
        handlers.sidecar_answered(answer(path, content))
        assert await drain(queue) == []
    sidecar_view = cache.episode_input(episode, may_create=True).sidecar
    assert (sidecar_view.state, sidecar_view.requested, sidecar_view.expired_since) == (
        answers[calls.STATE],
        ASKED,
        ASKED,
    )
    assert (sidecar_view.poisoned_step, sidecar_view.has_lost_sandbox, sidecar_view.cancelled_since) == (3, True, ASKED)


async def test_an_answer_of_another_attempt_is_ignored(handlers, objects, cache):
    episode = objects.episode("fix", attempt=2, podName="fix-2")
    handlers.sidecar_answered(answer(calls.CANCEL))
    assert cache.episode_input(episode, may_create=True).sidecar == SidecarView()
    cache.episodes.remove(episode)
    handlers.sidecar_answered(answer(calls.CANCEL, attempt=2))
    assert cache.memory.sidecar("uid-fix", 2) == SidecarView()


async def test_an_answer_that_may_change_is_not_kept(handlers, objects, cache):
    episode = objects.episode("fix", attempt=1, podName="fix-1")
    handlers.sidecar_answered(answer(calls.TERMINATED, TerminatedResponse(expected=False)))
    handlers.sidecar_answered(answer(calls.PAUSE))
    assert cache.episode_input(episode, may_create=True).sidecar == SidecarView()
