"""What decisions are given of what the operator knows: whatever is forgotten here, no decision can make up for."""

from dgym_operator.controllers import CreateFailure, CreatePod, DeleteEpisode, LookUpPod, decide

FINISHED = {"conditions": [{"type": "Finished", "status": "True"}], "completionTime": "2026-01-01T00:00:00Z"}


def actions(world, episode):
    plan = decide(world.episode_input(episode, may_create=True), world.clock.now())
    return [type(action) for action in plan.actions]


def test_a_pod_that_could_not_be_made_is_not_tried_again_at_once(world, objects, clock):
    shown = {"type": "SandboxReady", "status": "False", "reason": "QuotaExceeded", "message": "no room"}
    episode = objects.episode(
        "fix", created=clock.seconds, reason="QuotaExceeded", message="no room", conditions=[shown], spec={"task": {}}
    )
    assert actions(world, episode) == [CreatePod]
    world.memory.failed("uid-fix", 1, CreateFailure(reason="QuotaExceeded", message="no room", since=clock.now()))
    assert actions(world, episode) == []
    clock.seconds += world.policy.backoff_seconds
    assert actions(world, episode) == [CreatePod]
    world.memory.failed("uid-fix", 1, CreateFailure(reason="QuotaExceeded", message="no room", since=clock.now()))
    assert actions(world, episode) == []
    world.memory.made("uid-fix")
    assert actions(world, episode) == [CreatePod]


def test_what_was_in_the_way_of_one_attempt_is_not_in_that_of_the_next(world, objects, clock):
    episode = objects.episode("fix", attempt=1, spec={"task": {}})
    world.memory.failed("uid-fix", 1, CreateFailure(reason="PodRejected", message="no", since=clock.now()))
    assert world.episode_input(episode, may_create=True).create_failure is None
    world.memory.failed("uid-fix", 2, CreateFailure(reason="PodRejected", message="no", since=clock.now()))
    assert world.episode_input(episode, may_create=True).create_failure.message == "no"


def test_a_pod_that_is_not_in_view_is_looked_up_once(world, objects):
    assignment = {"agentPodUID": "uid-agent", "epoch": 1}
    episode = objects.episode("fix", attempt=1, podName="fix-1", assignment=assignment, spec={"backoffLimit": 0})
    assert actions(world, episode) == [LookUpPod]
    world.memory.is_absent("uid-fix", "fix-1")
    assert LookUpPod not in actions(world, episode)


def test_a_child_stays_until_its_set_has_counted_it(world, objects):
    child = objects.episode("all-3", set_name="all", index=3, spec={"ttlSecondsAfterFinished": 0}, **FINISHED)
    assert actions(world, child) == []
    world.sets.put(objects.episode_set("all", completedIndexes="0-2,4"))
    assert actions(world, child) == []
    world.sets.put(objects.episode_set("all", completedIndexes="0-4"))
    assert actions(world, child) == [DeleteEpisode]


def test_a_child_of_another_set_of_the_same_name_is_not_counted_by_this_one(world, objects):
    child = objects.episode(
        "all-3", set_name="all", set_uid="uid-before", index=3, spec={"ttlSecondsAfterFinished": 0}, **FINISHED
    )
    world.sets.put(objects.episode_set("all", completedIndexes="0-4"))
    assert actions(world, child) == []


def test_an_episode_of_nobody_goes_by_itself(world, objects):
    episode = objects.episode("fix", spec={"ttlSecondsAfterFinished": 0}, **FINISHED)
    assert actions(world, episode) == [DeleteEpisode]
