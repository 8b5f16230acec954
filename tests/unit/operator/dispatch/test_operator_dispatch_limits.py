"""Tests of limits: they delay a namespace or an episode in back-off, and do not delay the others."""

from hypothesis import given
from hypothesis import strategies as st

from dgym_operator.cache import AgentPods, Cache
from dgym_operator.controllers import Policy
from dgym_operator.dispatch import Dispatcher, candidate_of, pending_pod
from dgym_operator.dispatch._demand import PendingPod
from tests.unit.operator.conftest import (
    POLICIES,
    Objects,
    SteppedClock,
    create_pod,
    no_image,
    request_pods,
    serve,
    unschedulable,
)

READY = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
FULL = (
    "namespace few has 2 active episodes (maxActive); "
    "raise namespaces.overrides.few.maxActive in the chart's values to allow more"
)


def test_a_namespace_gets_no_more_than_max_active(dispatcher, objects, cache, looked_at, again):
    serve(objects, cache, slots=9)
    request_pods(dispatcher, objects, "a", "b", "c", "d", namespace="few")
    request_pods(dispatcher, objects, "never", namespace="none")
    dispatcher.round()
    assert looked_at == ["a", "b"]
    assert sorted(again) == ["c", "d", "never"]
    assert dispatcher.hold(("few", "c")).text == FULL
    assert "namespace none has 0 active episodes (maxActive)" in dispatcher.hold(("none", "never")).text
    numbers = dispatcher.admission()
    assert (numbers["few", "active"], numbers["few", "waiting"]) == (2, 2)
    assert {namespace for namespace, _ in numbers} == set(POLICIES.overrides)
    # An episode takes a place from its grant to its end, first by the pod and then by the assignment.
    create_pod(dispatcher, objects, cache, "a", "few", **READY)
    assigned = {"attempt": 1, "podName": "a-1", "assignment": {"agentPodUID": "uid-agent", "epoch": 1}}
    objects.episode("a", namespace="few", **assigned)
    dispatcher.observe_pod(("few", "a"), None)
    dispatcher.round()
    assert looked_at == ["a", "b"]
    objects.episode("a", namespace="few", **assigned, conditions=[{"type": "Finished", "status": "True"}])
    dispatcher.round()
    assert looked_at == ["a", "b", "c"]
    again.clear()
    dispatcher.round()
    assert again == []


def test_episodes_driven_from_outside_count_in_max_active(dispatcher, objects, cache, looked_at):
    request_pods(dispatcher, objects, "a", "b", "c", namespace="few", agent=None)
    dispatcher.round()
    assert looked_at == ["a", "b"]


def test_pods_that_cannot_start_do_not_count_in_max_active(dispatcher, objects, cache, looked_at):
    """If they start later, their episodes wait for a place."""
    serve(objects, cache, slots=9)
    request_pods(dispatcher, objects, "gated-1", "gated-2", "good-1", "good-2", namespace="few")
    dispatcher.round()
    for name in ("gated-1", "gated-2"):
        create_pod(dispatcher, objects, cache, name, "few", **unschedulable(reason="SchedulingGated"))
    assert looked_at == ["gated-1", "gated-2", "good-1", "good-2"]
    for name in ("good-1", "good-2"):
        create_pod(dispatcher, objects, cache, name, "few", **READY)
        status = {"attempt": 1, "podName": f"{name}-1", "assignment": {"agentPodUID": "uid-agent", "epoch": 1}}
        objects.episode(name, namespace="few", **status)
        dispatcher.observe_pod(("few", name), None)
    create_pod(dispatcher, objects, cache, "gated-1", "few", **READY)
    ready = cache.episodes.get(("few", "gated-1"))
    dispatcher.request_agent_pod(ready.key, candidate_of(ready))
    dispatcher.round()
    assert dispatcher.granted_agent_pod(ready.key) is None
    assert dispatcher.hold(ready.key).text == FULL
    # An episode that has a place keeps it when its agent pod is lost.
    lost = cache.episodes.get(("few", "good-1"))
    dispatcher.request_agent_pod(lost.key, candidate_of(lost))
    dispatcher.round()
    assert dispatcher.granted_agent_pod(lost.key) == "uid-agent"


def test_a_namespace_that_is_full_now_and_then_is_shown_as_full(dispatcher, objects, cache, clock, again):
    """Each change of the cause would write the status of every waiting episode."""
    serve(objects, cache, slots=2)
    request_pods(dispatcher, objects, "a", "b", "c", namespace="few")
    dispatcher.round()
    request_pods(dispatcher, objects, "other", priority=9, namespace="heavy")
    dispatcher.round()
    again.clear()
    dispatcher.request_pod(("few", "a"), None)
    request_pods(dispatcher, objects, *(f"more-{number}" for number in range(5)), namespace="heavy")
    dispatcher.round()
    assert not dispatcher.pod_granted(("few", "c"))
    assert (dispatcher.hold(("few", "c")).text, "c" in again) == (FULL, False)
    clock.seconds += 29
    serve(objects, cache, slots=2)
    dispatcher.round()
    assert dispatcher.hold(("few", "c")).text == FULL
    clock.seconds += 1
    dispatcher.round()
    assert "all slots of the agent pods are used" in dispatcher.hold(("few", "c")).text
    assert "c" in again


def test_free_slots_are_shared_by_weight(dispatcher, objects, cache, looked_at):
    serve(objects, cache, slots=7)
    request_pods(dispatcher, objects, *(f"heavy-{number}" for number in range(9)), namespace="heavy")
    request_pods(dispatcher, objects, *(f"light-{number}" for number in range(9)), namespace="light")
    dispatcher.round()
    assert [sum(name.startswith(team) for name in looked_at) for team in ("heavy", "light")] == [6, 2]


def test_a_priority_above_the_limit_counts_as_the_limit(dispatcher, objects, looked_at):
    request_pods(dispatcher, objects, "old", namespace="modest", priority=5)
    request_pods(dispatcher, objects, "x", "young", namespace="modest", priority=1000)
    dispatcher.request_pod(("modest", "x"), None)
    dispatcher.round()
    assert looked_at == ["old"]


def fail_model(dispatcher, objects, cache, name):
    """Record that the episode runs, that its model fails, and that the episode backs off."""
    assignment = {"agentPodUID": "uid-agent", "epoch": 1, "failures": 1, "failedTime": "2026-01-01T00:10:00Z"}
    episode = objects.episode(name, attempt=1, podName=f"{name}-1", assignment=assignment)
    dispatcher.request_pod(episode.key, None)
    dispatcher.observe_pod(episode.key, pending_pod(cache, episode))
    return episode


def test_an_episode_in_back_off_does_not_delay_other_episodes(dispatcher, objects, cache, looked_at):
    serve(objects, cache, slots=1)
    request_pods(dispatcher, objects, "fail", "a", "b", "c")
    dispatcher.round()
    assert looked_at == ["fail", "a"]
    failed = fail_model(dispatcher, objects, cache, "fail")
    dispatcher.round()
    assert looked_at == ["fail", "a", "b"]
    # It is older than the others and therefore next. The younger episodes wait for it.
    dispatcher.request_agent_pod(failed.key, candidate_of(failed, previous="uid-agent"))
    ready = cache.episodes.get(("team", "a"))
    dispatcher.request_pod(ready.key, None)
    dispatcher.observe_pod(ready.key, PendingPod(name="a-1", needs_slot=True))
    dispatcher.request_agent_pod(ready.key, candidate_of(ready))
    dispatcher.round()
    assert dispatcher.granted_agent_pod(failed.key) == "uid-agent"
    assert dispatcher.granted_agent_pod(ready.key) is None
    assert looked_at == ["fail", "a", "b", "fail"]


def test_sandboxes_are_bounded_while_every_model_fails(dispatcher, objects, cache, looked_at):
    """The bound is the number of slots, twice because of the episodes in back-off, and the head start."""
    serve(objects, cache, slots=3)
    request_pods(dispatcher, objects, *(f"fail-{number}" for number in range(50)))
    failed = set()
    for _ in range(20):
        dispatcher.round()
        for name in [name for name in looked_at if name not in failed][:3]:
            failed.add(name)
            fail_model(dispatcher, objects, cache, name)
    assert len(looked_at) == 3 + 3 + 1


def test_episodes_of_a_lost_agent_pod_precede_new_sandboxes(dispatcher, objects, cache, looked_at):
    serve(objects, cache, "gone", slots=2)
    serve(objects, cache, "other", slots=2)
    lost = []
    for number in range(4):
        status = {"agentPodUID": "uid-gone" if number < 2 else "uid-other", "epoch": 1}
        lost.append(objects.episode(f"old-{number}", attempt=1, podName=f"old-{number}-1", assignment=status))
    cache.agent_pods.remove("uid-gone")
    for episode in lost[:2]:
        dispatcher.observe_pod(episode.key, pending_pod(cache, episode))
        dispatcher.request_agent_pod(episode.key, candidate_of(episode, previous="uid-gone"))
    request_pods(dispatcher, objects, "new-1", "new-2")
    dispatcher.round()
    assert looked_at == []
    over = [{"type": "Finished", "status": "True"}]
    for number in (2, 3):
        assignment = {"agentPodUID": "uid-other", "epoch": 1}
        objects.episode(f"old-{number}", attempt=1, podName=f"old-{number}-1", assignment=assignment, conditions=over)
    dispatcher.round()
    assert looked_at == ["old-0", "old-1"]
    for number, episode in enumerate(lost[:2]):
        assignment = {"agentPodUID": "uid-other", "epoch": 2}
        objects.episode(f"old-{number}", attempt=1, podName=f"old-{number}-1", assignment=assignment)
        dispatcher.release_agent_pod(episode.key)
        dispatcher.observe_pod(episode.key, None)
    dispatcher.round()
    assert looked_at == ["old-0", "old-1", "new-1"]


@given(
    st.lists(st.tuples(st.sampled_from(["team", "heavy", "few"]), st.integers(-2, 2)), max_size=12),
    st.integers(0, 8),
    st.integers(0, 4),
    st.sampled_from([unschedulable(), no_image(), unschedulable(reason="SchedulingGated")]),
)
def test_stuck_pods_change_nothing_for_other_namespaces(candidates, slots, number, status):
    """Stuck pods, in any state and number, do not change the grants of other namespaces."""

    def granted(number):
        clock, found = SteppedClock(), []
        cache = Cache(clock, AgentPods(clock, port=8081, silence_seconds=30.0), Policy())
        objects = Objects(cache)

        def enqueue(key, *, low_priority=False):
            found.extend([] if low_priority else [key])

        dispatcher = Dispatcher(cache, head_start=1, stuck_limit=3, policies=POLICIES, enqueue=enqueue)
        serve(objects, cache, slots=slots)
        for each in range(number):
            objects.episode(f"bad-{each}", namespace="loud")
            create_pod(dispatcher, objects, cache, f"bad-{each}", "loud", **status)
        for each, (namespace, priority) in enumerate(candidates):
            request_pods(dispatcher, objects, f"fix-{each}", namespace=namespace, priority=priority)
        dispatcher.round()
        return found

    assert granted(number) == granted(0)
