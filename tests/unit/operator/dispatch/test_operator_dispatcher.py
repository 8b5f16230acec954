import pytest

from dgym_operator.dispatch import candidate_of, pending_pod
from dgym_operator.dispatch._demand import PendingPod
from tests.unit.operator.conftest import create_pod, no_image, request_pods, serve, unschedulable


def test_pods_are_made_for_free_slots_and_a_head_start(dispatcher, objects, cache, looked_at):
    serve(objects, cache, slots=2)
    request_pods(dispatcher, objects, "a", "b", "c", "d")
    dispatcher.round()
    assert looked_at == ["a", "b", "c"]
    assert dispatcher.pod_granted(("team", "a"))
    assert not dispatcher.pod_granted(("team", "d"))
    dispatcher.round()
    assert looked_at == ["a", "b", "c"]


def test_a_pod_on_its_way_takes_the_place_of_its_grant(dispatcher, objects, cache, looked_at):
    serve(objects, cache, slots=2)
    request_pods(dispatcher, objects, "a", "b", "c", "d")
    dispatcher.round()
    dispatcher.request_pod(("team", "a"), None)
    dispatcher.observe_pod(("team", "a"), PendingPod(name="a-1", needs_slot=True))
    dispatcher.round()
    assert "d" not in looked_at
    dispatcher.observe_pod(("team", "a"), None)
    dispatcher.round()
    assert looked_at[-1] == "d"


def test_an_unused_grant_goes_to_the_next_episode(dispatcher, objects, cache, looked_at):
    request_pods(dispatcher, objects, "a", "b")
    dispatcher.round()
    assert looked_at == ["a"]
    dispatcher.request_pod(("team", "a"), None)
    dispatcher.round()
    assert looked_at == ["a", "b"]
    dispatcher.forget(("team", "b"))
    assert not dispatcher.pod_granted(("team", "b"))


def test_an_externally_driven_episode_does_not_use_a_slot(dispatcher, objects, cache, looked_at):
    request_pods(dispatcher, objects, "a", "b", "c", agent=None)
    dispatcher.round()
    assert looked_at == ["a", "b", "c"]


def test_slots_are_counted_from_unfinished_episodes(dispatcher, objects, cache, looked_at):
    serve(objects, cache, slots=2)
    assigned = {"attempt": 1, "podName": "x-1", "assignment": {"agentPodUID": "uid-agent", "epoch": 1}}
    objects.episode("running", **assigned)
    objects.episode("over", **assigned, conditions=[{"type": "Finished", "status": "True"}])
    assert dispatcher.slots() == (1, 1)
    for name in ("a", "b"):
        dispatcher.request_agent_pod(("team", name), candidate_of(objects.episode(name)))
    dispatcher.round()
    dispatcher.round()
    granted = [dispatcher.granted_agent_pod(("team", name)) for name in ("a", "b")]
    assert granted == ["uid-agent", None]
    # The slot is reserved while the status is written. It is free again if the write fails.
    dispatcher.release_agent_pod(("team", "a"))
    dispatcher.round()
    assert dispatcher.granted_agent_pod(("team", "b")) == "uid-agent"


def test_draining_and_silent_agents_get_nothing(dispatcher, objects, cache, clock):
    serve(objects, cache, "draining", draining=True)
    serve(objects, cache, "silent")
    clock.seconds += 31
    dispatcher.request_agent_pod(("team", "a"), candidate_of(objects.episode("a")))
    dispatcher.round()
    assert dispatcher.granted_agent_pod(("team", "a")) is None


def test_an_episode_whose_model_failed_gets_a_slot_again(dispatcher, objects, cache, looked_at):
    serve(objects, cache, slots=1)
    assignment = {"agentPodUID": "uid-agent", "epoch": 1, "failures": 1}
    running = {"attempt": 1, "podName": "fix-1"}
    failed = {**running, "assignment": {**assignment, "failedTime": "2026-01-01T00:10:00Z"}}
    request_pods(dispatcher, objects, "a", "b", "c")
    episode = objects.episode("fix", **failed)
    assert dispatcher.slots() == (0, 1)
    dispatcher.observe_pod(episode.key, pending_pod(cache, episode))
    dispatcher.request_agent_pod(episode.key, candidate_of(episode, previous="uid-agent"))
    dispatcher.round()
    assert dispatcher.granted_agent_pod(episode.key) == "uid-agent"
    # The episode has a pod, so that the slot does not cause the creation of another pod.
    assert looked_at == ["fix"]
    again = objects.episode("fix", **running, assignment={**assignment, "epoch": 2})
    dispatcher.release_agent_pod(episode.key)
    dispatcher.observe_pod(again.key, pending_pod(cache, again))
    dispatcher.round()
    assert (dispatcher.slots(), looked_at) == ((1, 0), ["fix", "a"])


@pytest.mark.parametrize("status", [unschedulable(), no_image(), unschedulable(reason="SchedulingGated")])
def test_pods_that_cannot_start_do_not_use_slots_of_others(dispatcher, objects, cache, looked_at, status):
    serve(objects, cache, slots=1)
    request_pods(dispatcher, objects, "bad-1", "bad-2", namespace="loud", priority=1000)
    dispatcher.round()
    assert looked_at == ["bad-1", "bad-2"]
    request_pods(dispatcher, objects, "good-1", "good-2")
    dispatcher.round()
    assert looked_at == ["bad-1", "bad-2"]
    for name in ("bad-1", "bad-2"):
        create_pod(dispatcher, objects, cache, name, "loud", **status)
    assert looked_at[2:] == ["good-1", "good-2"]
    # If such a pod starts later, its slot is reserved.
    create_pod(dispatcher, objects, cache, "bad-1", "loud", phase="Running")
    request_pods(dispatcher, objects, "good-3")
    dispatcher.round()
    assert looked_at[4:] == []


def test_a_pod_that_is_not_ready_in_time_releases_its_slot(dispatcher, objects, cache, looked_at, clock):
    serve(objects, cache, slots=0)
    request_pods(dispatcher, objects, "no-volume", "good")
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": clock.now().isoformat()}
    dispatcher.round()
    create_pod(dispatcher, objects, cache, "no-volume", phase="Pending", conditions=[scheduled])
    assert looked_at == ["no-volume"]
    clock.seconds += 120
    dispatcher.observe_pod(("team", "no-volume"), pending_pod(cache, cache.episodes.get(("team", "no-volume"))))
    dispatcher.round()
    assert looked_at == ["no-volume", "good"]


def test_a_namespace_full_of_pods_that_cannot_start_gets_no_more_of_them(dispatcher, objects, cache, looked_at, again):
    serve(objects, cache, slots=10)
    bad = [f"bad-{number}" for number in range(9)]
    request_pods(dispatcher, objects, *bad, namespace="loud")
    dispatcher.round()
    for name in bad[:3]:
        create_pod(dispatcher, objects, cache, name, "loud", **unschedulable())
    assert [name for name in bad if dispatcher.pod_granted(("loud", name))] == []
    assert set(again) >= set(bad[3:])
    held = dispatcher.hold(("loud", "bad-5")).text
    for part in ("namespace loud has 3 pods", "cannot start", "bad-0-1 (Unschedulable)", "maxStuckPods"):
        assert part in held
    request_pods(dispatcher, objects, "good")
    dispatcher.round()
    assert dispatcher.pod_granted(("team", "good"))
    # As soon as the pod of an episode is gone, the next episode may be tried.
    dispatcher.observe_pod(("loud", "bad-0"), None)
    dispatcher.round()
    assert dispatcher.pod_granted(("loud", "bad-3"))


def test_pods_of_episodes_that_are_driven_from_outside_are_bounded_too(dispatcher, objects, cache):
    for number in range(4):
        request_pods(dispatcher, objects, f"bad-{number}", agent=None)
        dispatcher.round()
        assert dispatcher.pod_granted(("team", f"bad-{number}")) == (number < 3)
        create_pod(dispatcher, objects, cache, f"bad-{number}", **unschedulable())


def test_namespaces_share_the_room(dispatcher, objects, cache, looked_at):
    serve(objects, cache, slots=3)
    request_pods(dispatcher, objects, *(f"many-{number}" for number in range(9)), namespace="loud", priority=9)
    request_pods(dispatcher, objects, "one", "two")
    dispatcher.round()
    assert looked_at == ["many-0", "one", "many-1", "two"]


def test_the_hold_text_names_the_cause_of_the_wait(dispatcher, objects, cache, clock, again):
    request_pods(dispatcher, objects, "a", "b")
    dispatcher.request_agent_pod(("team", "ready"), candidate_of(objects.episode("ready")))

    def held():
        again.clear()
        dispatcher.round()
        assert dispatcher.hold(("team", "ready")).text == dispatcher.hold(("team", "b")).text
        return dispatcher.hold(("team", "b")).text

    assert "no agent pod exists" in held()
    agent = objects.agent("agent", conditions=[])
    assert "no agent pod is ready: see pod agent" in held()
    objects.agent("agent")
    agent.failure = "401: unauthenticated"
    assert held() == "no agent pod answers: pod agent: 401: unauthenticated"
    assert sorted(again) == ["a", "b", "ready"]
    assert held()
    assert again == []
    serve(objects, cache, slots=0)
    assert "all slots of the agent pods are used" in held()
    clock.seconds += 31
    agent.failure = "timed out"
    assert held() == "no agent pod answers: pod agent: timed out"
    serve(objects, cache, slots=1, draining=True)
    assert "pod agent is draining" in held()
    assert dispatcher.hold(("team", "unrelated")) is None
