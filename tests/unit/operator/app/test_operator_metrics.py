"""Tests of the metrics of finished Episodes, sets, the queue and the watches."""

from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from dgym.kube import ChangeSource, ClusterAccess, Credentials, ObjectChange, SystemClock, WorkQueue
from dgym_operator.app import Operator
from dgym_operator.app._metrics import (
    Metrics,
    Snapshot,
    TransitionObserver,
    count_episodes,
    count_set_arm_episodes,
    count_set_episodes,
    count_sets,
    stage_times,
)
from dgym_operator.settings import Settings

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds):
    return (BEGIN + timedelta(seconds=seconds)).isoformat()


STAGES = {
    "podCreated": at(1),
    "scheduled": at(3),
    "sandboxReady": at(6),
    "assigned": at(10),
    "firstStep": at(15),
    "lastStep": at(75),
    "verified": at(80),
}


def finished(reason, resolved="True", **status):
    conditions = [
        {"type": "Finished", "status": "True", "reason": reason, "lastTransitionTime": at(90)},
        {"type": "Resolved", "status": resolved, "reason": "Solved", "lastTransitionTime": at(90)},
    ]
    return {"conditions": conditions, "reason": reason, "completionTime": at(90), **status}


@pytest.fixture
def metrics():
    return Metrics(Snapshot)


@pytest.fixture
def finish(metrics, objects):
    observer = TransitionObserver(metrics, lambda: True)

    def change(status, namespace="team"):
        old = objects.episode("fix", namespace=namespace)
        new = objects.episode("fix", namespace=namespace, **status)
        observer.episode(ObjectChange(key=old.key, old=old, new=new, source=ChangeSource.WATCH))

    return change


def sample(metrics, name, **labels):
    return metrics.registry.get_sample_value(name, labels)


def test_an_episode_that_finishes_is_counted_with_its_outcome_and_its_stages(metrics, finish):
    outcome = {"resolved": True, "steps": 12, "inputTokens": 3000, "outputTokens": 40}
    finish(finished("Resolved", outcome=outcome, stages=STAGES))
    assert sample(metrics, "dgym_episodes_finished_total", episode_namespace="", reason="Resolved") == 1
    assert sample(metrics, "dgym_episode_steps_total") == 12
    assert sample(metrics, "dgym_episode_tokens_total", episode_namespace="", direction="input") == 3000
    assert sample(metrics, "dgym_episode_duration_seconds_sum", episode_namespace="", outcome="resolved") == 90
    lasted = {"created": 1, "scheduled": 2, "sandbox_ready": 3, "assigned": 4}
    lasted |= {"first_step": 5, "last_step": 60, "verified": 5, "released": 10}
    for stage, seconds in lasted.items():
        assert sample(metrics, "dgym_episode_stage_seconds_sum", episode_namespace="", stage=stage) == seconds


def test_failures_are_counted_separately_and_unknown_reasons_as_other(metrics, finish):
    finish(finished("SandboxLost", "False"))
    finish(finished("Invented", "False"))
    finish(finished("Unresolved", "False"))
    assert sample(metrics, "dgym_episode_duration_seconds_count", episode_namespace="", outcome="failed") == 2
    assert sample(metrics, "dgym_episode_duration_seconds_count", episode_namespace="", outcome="unresolved") == 1
    assert sample(metrics, "dgym_episodes_finished_total", episode_namespace="", reason="other") == 1
    assert b"Invented" not in metrics.text()


def test_the_namespaces_of_episodes_are_shown_up_to_a_bound(objects):
    names = [f"team-{number:02}" for number in range(60)]
    there = [objects.episode(name, namespace=name, reason="Pending") for name in names]
    metrics = Metrics(lambda: Snapshot(episodes=count_episodes(there)), "auto")
    observer = TransitionObserver(metrics, lambda: True)
    for old in there:
        observer.episode(ObjectChange(key=old.key, old=None, new=old, source=ChangeSource.LIST))
    for name in (names[0], names[49], "_other"):
        label = {"episode_namespace": name}
        assert sample(metrics, "dgym_episodes_finished_total", **label, reason="Resolved") == 0
    for old in there:
        outcome = {"resolved": True, "inputTokens": 100, "outputTokens": 4}
        new = objects.episode(old.key[1], namespace=old.key[0], **finished("Resolved", outcome=outcome, stages=STAGES))
        observer.episode(ObjectChange(key=old.key, old=old, new=new, source=ChangeSource.WATCH))
    for name, number in ((names[0], 1), (names[49], 1), ("_other", 10)):
        label = {"episode_namespace": name}
        assert sample(metrics, "dgym_episodes", **label, state="pending", reason="Pending") == number
        assert sample(metrics, "dgym_episodes", **label, state="active", reason="Running") == 0
        assert sample(metrics, "dgym_episodes_finished_total", **label, reason="Resolved") == number
        assert sample(metrics, "dgym_episode_tokens_total", **label, direction="input") == 100 * number
        assert sample(metrics, "dgym_episode_duration_seconds_count", **label, outcome="resolved") == number
        assert sample(metrics, "dgym_episode_stage_seconds_count", **label, stage="verified") == number
    assert b"team-50" not in metrics.text()


def test_the_time_of_a_missing_stage_counts_for_the_next_stage(objects):
    stages = {name: STAGES[name] for name in ("podCreated", "assigned")}
    episode = objects.episode("fix", **finished("AgentPodLost", "False", stages=stages))
    seconds = [(stage, (end - begin).total_seconds()) for stage, begin, end in stage_times(episode)]
    assert seconds == [("created", 1.0), ("assigned", 9.0), ("released", 80.0)]


def test_episodes_with_a_reason_that_is_not_known_are_other(objects):
    assert count_episodes([objects.episode("fix", reason="Invented")]) == {("team", "pending", "other"): 1}


def test_the_sets_that_are_shown_are_the_unfinished_and_the_latest(objects):
    running = objects.episode_set("running", resolved=3, failed=1, pending=5)
    done = [objects.episode_set(f"done-{n:03}", resolved=1, completionTime=at(n)) for n in range(100)]
    shown = count_set_episodes([*done, running])
    names = {name for name, _ in shown}
    assert len(names) == 50
    assert {"team/running", "team/done-099", "team/done-051"} <= names
    assert "team/done-050" not in names
    assert shown["team/running", "resolved"] == 3
    assert shown["team/running", "pending"] == 5
    assert count_sets([*done, running]) == {"finished": 100, "running": 1}


def test_arms_are_shown_by_their_names(objects):
    arms = [{"name": "pdb", "total": 9, "resolved": 3, "failed": 1}, {"name": "plain", "total": 9, "unresolved": 2}]
    shown = count_set_arm_episodes([objects.episode_set("pays", arms=arms), objects.episode_set("without")])
    assert {key: number for key, number in shown.items() if number} == {
        ("team/pays", "pdb", "resolved"): 3,
        ("team/pays", "pdb", "failed"): 1,
        ("team/pays", "plain", "unresolved"): 2,
    }
    assert len(shown) == 6


def test_a_queue_counts_additions_and_retries(clock):
    queue = WorkQueue(clock=SystemClock(), random=Random(1))
    queue.add("one")
    queue.add("one")
    assert (queue.adds, queue.retries, len(queue)) == (2, 0, 1)


def test_a_replica_shows_its_cache():
    access = ClusterAccess(server="http://127.0.0.1:1", credentials=Credentials(None))
    operator = Operator(Settings(), access, clock=SystemClock(), random=Random(1), random_bytes=bytes)
    text = operator.metrics.text().decode()
    for line in (
        'dgym_operator_cache_objects{resource="episodes"} 0.0',
        'dgym_operator_watch_events_total{resource="pods"} 0.0',
        'dgym_admission_requests{resource="pod"} 0.0',
        'dgym_episodes{episode_namespace="",reason="Unschedulable",state="pending"} 0.0',
        'dgym_sets{state="running"} 0.0',
        "dgym_operator_api_throttle_seconds_total 0.0",
        'dgym_operator_events_dropped_total{type="Warning"} 0.0',
    ):
        assert line in text.splitlines(), line
