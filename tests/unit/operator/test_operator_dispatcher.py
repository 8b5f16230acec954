import pytest

from dgym.wire.assignments import AgentReport
from dgym_operator.dispatch import Dispatcher, candidate_of, has_idle_pod


@pytest.fixture
def looked_at():
    return []


@pytest.fixture
def dispatcher(world, looked_at):
    return Dispatcher(world, head_start=1, enqueue=lambda key: looked_at.append(key[1]))


def serve(objects, world, name="agent", slots=2, *, draining=False):
    world.agents.take_report(objects.agent(name), AgentReport(incarnation="1", slots=slots, draining=draining))


def wish_pods(dispatcher, objects, *names, **spec):
    for number, name in enumerate(names):
        episode = objects.episode(name, created=number, spec=spec)
        dispatcher.wants_pod(episode.key, candidate_of(episode, needs_slot="agent" not in spec))


def test_pods_are_made_for_free_slots_and_a_head_start(dispatcher, objects, world, looked_at):
    serve(objects, world, slots=2)
    wish_pods(dispatcher, objects, "a", "b", "c", "d")
    dispatcher.round()
    assert looked_at == ["a", "b", "c"]
    assert dispatcher.may_create(("team", "a"))
    assert not dispatcher.may_create(("team", "d"))
    dispatcher.round()
    assert looked_at == ["a", "b", "c"]


def test_a_pod_on_its_way_takes_the_place_of_its_grant(dispatcher, objects, world, looked_at):
    serve(objects, world, slots=2)
    wish_pods(dispatcher, objects, "a", "b", "c", "d")
    dispatcher.round()
    dispatcher.wants_pod(("team", "a"), None)
    dispatcher.has_idle_pod(("team", "a"), True)
    dispatcher.round()
    assert "d" not in looked_at
    dispatcher.has_idle_pod(("team", "a"), False)
    dispatcher.round()
    assert looked_at[-1] == "d"


def test_who_cannot_use_a_grant_gives_it_to_the_next(dispatcher, objects, world, looked_at):
    wish_pods(dispatcher, objects, "a", "b")
    dispatcher.round()
    assert looked_at == ["a"]
    dispatcher.wants_pod(("team", "a"), None)
    dispatcher.round()
    assert looked_at == ["a", "b"]
    dispatcher.forget(("team", "b"))
    assert not dispatcher.may_create(("team", "b"))


def test_an_episode_driven_from_outside_takes_no_slot(dispatcher, objects, world, looked_at):
    wish_pods(dispatcher, objects, "a", "b", "c", agent=None)
    dispatcher.round()
    assert looked_at == ["a", "b", "c"]


def test_slots_are_counted_from_unfinished_episodes(dispatcher, objects, world, looked_at):
    serve(objects, world, slots=2)
    assigned = {"attempt": 1, "podName": "x-1", "assignment": {"agentPodUID": "uid-agent", "epoch": 1}}
    objects.episode("running", **assigned)
    objects.episode("over", **assigned, conditions=[{"type": "Finished", "status": "True"}])
    assert dispatcher.slots() == (1, 1)
    for name in ("a", "b"):
        dispatcher.wants_agent(("team", name), candidate_of(objects.episode(name)))
    dispatcher.round()
    dispatcher.round()
    granted = [dispatcher.agent_for(("team", name)) for name in ("a", "b")]
    assert granted == ["uid-agent", None]
    # The slot is kept while the status is being written, and free again if that comes to nothing.
    dispatcher.settle(("team", "a"))
    dispatcher.round()
    assert dispatcher.agent_for(("team", "b")) == "uid-agent"


def test_draining_and_silent_agents_get_nothing(dispatcher, objects, world, clock):
    serve(objects, world, "draining", draining=True)
    serve(objects, world, "silent")
    clock.seconds += 31
    dispatcher.wants_agent(("team", "a"), candidate_of(objects.episode("a")))
    dispatcher.round()
    assert dispatcher.agent_for(("team", "a")) is None


def test_who_waits_after_its_model_failed_gets_the_slot_that_it_gave_back(dispatcher, objects, world, looked_at):
    serve(objects, world, slots=1)
    assignment = {"agentPodUID": "uid-agent", "epoch": 1, "failures": 1}
    running = {"attempt": 1, "podName": "fix-1"}
    failed = {**running, "assignment": {**assignment, "failedTime": "2026-01-01T00:10:00Z"}}
    wish_pods(dispatcher, objects, "a", "b", "c")
    episode = objects.episode("fix", **failed)
    assert dispatcher.slots() == (0, 1)
    dispatcher.has_idle_pod(episode.key, has_idle_pod(world, episode))
    dispatcher.wants_agent(episode.key, candidate_of(episode, previous="uid-agent"))
    dispatcher.round()
    assert dispatcher.agent_for(episode.key) == "uid-agent"
    # Its pod is there already: the slot is no reason to make one for somebody else.
    assert looked_at == ["fix"]
    again = objects.episode("fix", **running, assignment={**assignment, "epoch": 2})
    dispatcher.settle(episode.key)
    dispatcher.has_idle_pod(again.key, has_idle_pod(world, again))
    dispatcher.round()
    assert (dispatcher.slots(), looked_at) == ((1, 0), ["fix", "a"])
