"""Tests of the cache: the input of decisions contains everything that the operator has observed."""

from dgym_operator.controllers import CreateFailure, CreatePod, DeleteEpisode, LookUpPod
from dgym_operator.controllers.episode import decide

FINISHED = {"conditions": [{"type": "Finished", "status": "True"}], "completionTime": "2026-01-01T00:00:00Z"}


def actions(cache, episode):
    plan = decide(cache.episode_input(episode, may_create=True), cache.clock.now())
    return [type(action) for action in plan.actions]


def test_a_pod_that_could_not_be_made_is_not_tried_again_at_once(cache, objects, clock):
    shown = {"type": "SandboxReady", "status": "False", "reason": "QuotaExceeded", "message": "no room"}
    episode = objects.episode(
        "fix", created=clock.seconds, reason="QuotaExceeded", message="no room", conditions=[shown], spec={"task": {}}
    )
    assert actions(cache, episode) == [CreatePod]
    cache.memory.record_failure(
        "uid-fix", 1, CreateFailure(reason="QuotaExceeded", message="no room", since=clock.now())
    )
    assert actions(cache, episode) == []
    clock.seconds += cache.policy.backoff_seconds
    assert actions(cache, episode) == [CreatePod]
    cache.memory.record_failure(
        "uid-fix", 1, CreateFailure(reason="QuotaExceeded", message="no room", since=clock.now())
    )
    assert actions(cache, episode) == []
    cache.memory.record_created("uid-fix", 1, objects.pod("fix-1"))
    assert actions(cache, episode) == [CreatePod]


def test_a_creation_failure_belongs_to_one_attempt(cache, objects, clock):
    episode = objects.episode("fix", attempt=1, spec={"task": {}})
    cache.memory.record_failure("uid-fix", 1, CreateFailure(reason="PodRejected", message="no", since=clock.now()))
    assert cache.episode_input(episode, may_create=True).create_failure is None
    cache.memory.record_failure("uid-fix", 2, CreateFailure(reason="PodRejected", message="no", since=clock.now()))
    assert cache.episode_input(episode, may_create=True).create_failure.message == "no"


def test_a_pod_that_is_not_in_view_is_looked_up_once(cache, objects):
    assignment = {"agentPodUID": "uid-agent", "epoch": 1}
    episode = objects.episode("fix", attempt=1, podName="fix-1", assignment=assignment, spec={"backoffLimit": 0})
    assert actions(cache, episode) == [LookUpPod]
    cache.memory.record_absent("uid-fix", "fix-1")
    assert LookUpPod not in actions(cache, episode)


def test_a_child_is_deleted_only_after_its_set_has_counted_it(cache, objects):
    child = objects.episode("all-3", set_name="all", index=3, spec={"ttlSecondsAfterFinished": 0}, **FINISHED)
    assert actions(cache, child) == []
    cache.sets.put(objects.episode_set("all", completedIndexes="0-2,4"))
    assert actions(cache, child) == []
    cache.sets.put(objects.episode_set("all", completedIndexes="0-4"))
    assert actions(cache, child) == [DeleteEpisode]


def test_a_child_of_an_earlier_set_with_the_same_name_is_ignored(cache, objects):
    child = objects.episode(
        "all-3", set_name="all", set_uid="uid-before", index=3, spec={"ttlSecondsAfterFinished": 0}, **FINISHED
    )
    cache.sets.put(objects.episode_set("all", completedIndexes="0-4"))
    assert actions(cache, child) == []


def test_an_episode_without_a_set_is_deleted_after_its_ttl(cache, objects):
    episode = objects.episode("fix", spec={"ttlSecondsAfterFinished": 0}, **FINISHED)
    assert actions(cache, episode) == [DeleteEpisode]
