import msgspec
import pytest

from dgym.wire.assignments import AgentPodReport, AssignmentState, AssignmentStatus
from dgym_operator.controllers.episode import agent_pod_request
from dgym_operator.dispatch._delivery import compare

ASSIGNED = {"attempt": 1, "podName": "fix-1", "epoch": 1, "assignment": {"agentPodUID": "uid-agent", "epoch": 1}}
FINISHED = {"conditions": [{"type": "Finished", "status": "True"}]}


def status_of(uid="uid-fix", state=AssignmentState.RUNNING, *, attempt=1, epoch=1, steps=0):
    return AssignmentStatus(episode_uid=uid, attempt=attempt, epoch=epoch, state=state, steps=steps)


def report(*statuses, slots=4, draining=False):
    return AgentPodReport(incarnation="1", slots=slots, draining=draining, assignments=statuses)


def test_an_agent_takes_episodes_once_it_is_ready_and_has_answered(objects, cache):
    agent = objects.agent("agent", conditions=[{"type": "Ready", "status": "False"}])
    cache.agent_pods.observe_report(agent, report(), cache.clock.now())
    assert not agent.takes_more
    objects.agent("agent")
    assert agent.takes_more
    cache.agent_pods.observe_report(agent, report(draining=True), cache.clock.now())
    assert not agent.takes_more


def test_an_agent_is_lost_after_its_silence(objects, cache, clock):
    agent = objects.agent("agent")
    episode = objects.episode("fix", **ASSIGNED)
    assert cache.agent_pods.view(episode) is None
    cache.agent_pods.observe_report(agent, report(status_of()), cache.clock.now())
    clock.seconds += 29
    assert cache.agent_pods.view(episode).lost_since is None
    clock.seconds += 2
    since = clock.now()
    assert (since - cache.agent_pods.view(episode).lost_since).total_seconds() == pytest.approx(31)
    assert cache.agent_pods.view(episode).lost == "agent pod agent has not answered for 30 s"


def test_an_agent_whose_pod_is_gone_or_over_is_lost_since_then(objects, cache, clock):
    objects.agent("agent")
    episode = objects.episode("fix", **ASSIGNED)
    objects.agent("agent", phase="Failed")
    since = clock.now()
    clock.seconds += 5
    assert cache.agent_pods.view(episode).lost_since == since
    assert cache.agent_pods.view(episode).lost == "agent pod agent is gone"
    assert list(cache.agent_pods) == []


def test_an_unknown_agent_pod_is_lost_since_the_first_query(objects, cache, clock):
    episode = objects.episode("fix", **ASSIGNED)
    since = clock.now()
    assert cache.agent_pods.view(episode).lost_since == since
    clock.seconds += 5
    assert cache.agent_pods.view(episode).lost_since == since


def test_a_reported_state_keeps_the_time_of_its_first_report(objects, cache, clock):
    agent = objects.agent("agent")
    episode = objects.episode("fix", **ASSIGNED)
    assert cache.agent_pods.observe_report(agent, report(status_of()), cache.clock.now()) == {"uid-fix"}
    began = clock.now()
    clock.seconds += 5
    assert cache.agent_pods.observe_report(agent, report(status_of(steps=2)), cache.clock.now()) == set()
    stepped = clock.now()
    clock.seconds += 5
    assert cache.agent_pods.observe_report(agent, report(status_of(steps=3)), cache.clock.now()) == set()
    view = cache.agent_pods.view(episode)
    assert (view.since, view.status.steps) == (began, 3)
    assert (view.stages.first_step, view.stages.last_step) == (stepped, clock.now())
    assert cache.agent_pods.observe_report(
        agent, report(status_of(state=AssignmentState.CLOSING, steps=3)), cache.clock.now()
    ) == {"uid-fix"}
    assert cache.agent_pods.observe_report(agent, report(), cache.clock.now()) == {"uid-fix"}
    assert cache.agent_pods.view(episode).status is None


def test_an_undeliverable_assignment_counts_as_failed_since_the_first_try(objects, cache, clock):
    agent = objects.agent("agent")
    cache.agent_pods.observe_report(agent, report(), cache.clock.now())
    episode = objects.episode("fix", **ASSIGNED)
    failed = status_of(state=AssignmentState.FAILED)
    began = clock.now()
    assert cache.agent_pods.record_undeliverable(failed)
    clock.seconds += 5
    assert not cache.agent_pods.record_undeliverable(failed)
    view = cache.agent_pods.view(episode)
    assert (view.since, view.status) == (began, failed)
    later = objects.episode("fix", **{**ASSIGNED, "assignment": {"agentPodUID": "uid-agent", "epoch": 2}})
    assert cache.agent_pods.view(later).status is None
    cache.agent_pods.observe_report(agent, report(status_of()), cache.clock.now())
    assert cache.agent_pods.view(episode).status == status_of()
    cache.agent_pods.observe_report(agent, report(), cache.clock.now())
    cache.agent_pods.forget("uid-fix")
    assert cache.agent_pods.view(episode).status is None


def test_assignments_to_deliver_and_to_withdraw(objects, cache):
    agent = objects.agent("agent")
    objects.episode("fix", **ASSIGNED)
    objects.episode("old-epoch", **{**ASSIGNED, "assignment": {"agentPodUID": "uid-agent", "epoch": 2}})
    objects.episode("over", **ASSIGNED, **FINISHED)
    objects.episode("elsewhere", **{**ASSIGNED, "assignment": {"agentPodUID": "uid-other", "epoch": 2}})
    reported = report(*(status_of(f"uid-{name}") for name in ("old-epoch", "over", "elsewhere", "unknown")))
    cache.agent_pods.observe_report(agent, reported, cache.clock.now())
    missing, surplus = compare(agent, cache, before=set())
    assert [episode.metadata.name for episode in missing] == ["fix", "old-epoch"]
    # An assignment of an unknown episode may be newer than the cache. It is surplus if the next report has it, too.
    assert surplus == ["uid-over"]
    _, surplus = compare(agent, cache, before={"uid-elsewhere", "uid-unknown"})
    assert surplus == ["uid-over", "uid-elsewhere", "uid-unknown"]


def test_addresses_of_both_families(objects):
    assert objects.pod("a", podIP="10.0.0.7").url(8080) == "http://10.0.0.7:8080"
    assert objects.pod("a", podIP="fd00::7").url(8080) == "http://[fd00::7]:8080"
    assert objects.pod("a").url(8080) == ""


def test_a_draining_agent_pod_is_lost_for_undelivered_assignments(objects, cache, clock):
    agent = objects.agent("agent")
    known, late = objects.episode("fix", **ASSIGNED), objects.episode("late", **ASSIGNED)
    cache.agent_pods.observe_report(agent, report(status_of()), cache.clock.now())
    assert cache.agent_pods.view(late).lost_since is None
    since = clock.now()
    cache.agent_pods.observe_report(agent, report(status_of(), draining=True), cache.clock.now())
    clock.seconds += 2
    cache.agent_pods.observe_report(agent, report(status_of(), draining=True), cache.clock.now())
    assert cache.agent_pods.view(known).lost_since is None
    assert cache.agent_pods.view(late).lost_since == since
    cache.pods.put(objects.pod("late-1", owner="late", phase="Running", podIP="10.0.0.2"))
    ready = agent_pod_request(cache.episode_input(late, may_create=True), clock.now())
    assert (ready.cause, ready.epoch) == ("AgentPodLost", 2)


def test_a_failed_assignment_is_not_delivered_again_with_the_same_epoch(objects, cache):
    agent = objects.agent("agent")
    cache.agent_pods.observe_report(agent, report(), cache.clock.now())
    failed = {"agentPodUID": "uid-agent", "epoch": 1, "failures": 1, "failedTime": "2026-01-01T00:10:00Z"}
    objects.episode("fix", **{**ASSIGNED, "assignment": failed})
    assert compare(agent, cache, before=set()) == ([], [])


def test_the_time_an_episode_was_active_outlives_its_agent_and_restarts_of_it(objects, cache):
    agent = objects.agent("agent")
    episode = objects.episode("fix", **ASSIGNED)

    def take(seconds):
        cache.agent_pods.observe_report(
            agent, report(msgspec.structs.replace(status_of(), active_seconds=seconds)), cache.clock.now()
        )
        return cache.agent_pods.view(episode).active_seconds

    assert [take(seconds) for seconds in (5, 30, 0, 10, 15)] == [5, 30, 30, 40, 45]
    cache.agent_pods.remove(agent.uid)
    assert cache.agent_pods.view(episode).active_seconds == 45
    other = msgspec.structs.replace(episode.status.assignment, epoch=episode.status.assignment.epoch + 1)
    assigned = msgspec.structs.replace(episode, status=msgspec.structs.replace(episode.status, assignment=other))
    assert cache.agent_pods.view(assigned).active_seconds == 0
