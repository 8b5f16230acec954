"""Tests of the annotation ``dgym.dev/retry``, with which the failed episodes of a set run again."""

import msgspec
import pytest

from dgym.api import RETRY_KEY, Arm, ArmStatus, Condition, EpisodeSetStatus, FailedIndexes
from dgym_operator.controllers import (
    Children,
    CreateEpisode,
    DeleteEpisode,
    Emit,
    EpisodeSetInput,
    LookUpTasks,
    PatchSetStatus,
    Policy,
)
from dgym_operator.controllers.episodeset import child_manifest, decide_set
from tests.unit.operator.controllers.reconcile_builders import NOW, child, episode_set, finished, the_condition

FROZEN = (("a", "uid-a"), ("b", "uid-b"), ("c", "uid-c"))
ENDED = EpisodeSetStatus(
    conditions=(Condition(type="Finished", status="True", reason="Completed", last_transition_time=NOW),),
    reason="Completed",
    completed_indexes="0-2",
    total=3,
    resolved=1,
    failed=2,
    failed_indexes=(FailedIndexes(reason="AgentPodLost", indexes="2"), FailedIndexes(reason="ModelError", indexes="0")),
    start_time=NOW,
    completion_time=NOW,
)


def see(retry, *children, status=ENDED, frozen=FROZEN, more=None, **spec) -> EpisodeSetInput:
    seen = episode_set("a", "b", "c", status=status, retry=retry, **spec)
    return EpisodeSetInput(episode_set=seen, frozen=frozen, children=Children(children), **(more or {}))


def deleted(plan):
    return [action.name for action in plan.actions if isinstance(action, DeleteEpisode)]


def written(plan):
    return [action.status for action in plan.actions if isinstance(action, PatchSetStatus)]


def events(plan):
    return [(each.type, each.reason, each.message) for each in plan.actions if isinstance(each, Emit)]


def test_a_set_without_the_annotation_stays_finished():
    assert not decide_set(see(""), NOW).actions
    assert not decide_set(see("1", status=msgspec.structs.replace(ENDED, retry="1")), NOW).actions


def test_the_failed_episodes_are_deleted_before_their_indexes_are_free():
    children = [
        child(0, status=finished("ModelError")),
        child(1, status=finished()),
        child(2, status=finished("AgentPodLost")),
    ]
    plan = decide_set(see("1", *children), NOW)
    assert deleted(plan) == ["s-2", "s-0"]
    assert not written(plan)
    assert plan.requeue_after


def test_deletions_are_bounded_in_a_round():
    children = [child(0, status=finished("ModelError")), child(2, status=finished("AgentPodLost"))]
    assert len(deleted(decide_set(see("1", *children, more={"policy": Policy(creates_per_round=1)}), NOW))) == 1


def test_the_indexes_are_free_once_their_episodes_are_gone():
    plan = decide_set(see("1", child(1, status=finished())), NOW)
    (status,) = written(plan)
    assert (status.completed_indexes, status.failed, status.failed_indexes) == ("1", 0, ())
    assert (status.resolved, status.pending, status.retry, status.completion_time) == (1, 2, "1", None)
    assert (the_condition(status, "Finished").status, status.reason) == ("False", "Running")
    assert events(plan)[-1] == ("Normal", "Retried", "failed episodes run again: AgentPodLost 1, ModelError 1")
    after = decide_set(see("1", child(1, status=finished()), status=status), NOW)
    assert [each.index for each in after.actions if isinstance(each, CreateEpisode)] == [0, 2]


def test_only_the_reasons_that_are_named_run_again():
    (status,) = written(decide_set(see("2 ModelError,SandboxLost"), NOW))
    assert (status.completed_indexes, status.failed) == ("1-2", 1)
    assert status.failed_indexes == (FailedIndexes(reason="AgentPodLost", indexes="2"),)


def test_the_counts_of_arms_follow():
    arms = (Arm(name="x"), Arm(name="y"))
    counts = (ArmStatus(name="x", total=2, failed=2), ArmStatus(name="y", total=2, resolved=1))
    status = msgspec.structs.replace(ENDED, total=4, completed_indexes="0-2", arms=counts)
    (after,) = written(decide_set(see("1", status=status, arms=arms), NOW))
    assert [(arm.failed, arm.resolved) for arm in after.arms] == [(0, 0), (0, 1)]


def test_episodes_made_since_are_not_deleted_by_an_old_view():
    label = child_manifest(see("", status=msgspec.structs.replace(ENDED, retry="1")).episode_set, _creation(0))
    again = child(0, status=finished("ModelError"), labels=label.metadata.labels)
    assert RETRY_KEY in label.metadata.labels
    running = child(2)
    plan = decide_set(see("1", again, running), NOW)
    assert not plan.actions
    assert deleted(decide_set(see("2", again, running), NOW)) == ["s-0"]


def test_a_running_set_creates_episodes_during_a_retry():
    status = msgspec.structs.replace(
        ENDED, conditions=(), reason="Running", completed_indexes="0", failed=1, resolved=0, completion_time=None,
        failed_indexes=(FailedIndexes(reason="ModelError", indexes="0"),),
    )  # fmt: skip
    plan = decide_set(see("1", child(0, status=finished("ModelError")), child(1), status=status), NOW)
    assert [type(action) for action in plan.actions] == [PatchSetStatus, CreateEpisode, DeleteEpisode]
    assert deleted(plan) == ["s-0"]


@pytest.mark.parametrize(
    ("retry", "spec", "frozen", "message"),
    [
        ("1", {"cancel": True}, FROZEN, "the set is cancelled"),
        ("1", {}, None, "list of tasks was deleted"),
        (
            "1 VerifierFailed",
            {},
            FROZEN,
            "no episode of the set has failed with VerifierFailed; failed: AgentPodLost 1,",
        ),
    ],
)
def test_a_retry_that_is_impossible_is_refused_once(retry, spec, frozen, message):
    more = {"list_absent": frozen is None}
    plan = decide_set(see(retry, frozen=frozen, more=more, **spec), NOW)
    (status,) = written(plan)
    assert (status.retry, status.completed_indexes, status.failed, status.completion_time) == (retry, "0-2", 2, NOW)
    ((kind, reason, text),) = events(plan)
    assert (kind, reason) == ("Warning", "RetryRefused")
    assert message in text
    assert not decide_set(see(retry, status=status, frozen=frozen, more=more, **spec), NOW).actions


def test_without_the_list_of_tasks_it_is_looked_up_first():
    (action,) = decide_set(see("1", frozen=None), NOW).actions
    assert isinstance(action, LookUpTasks)


def test_a_value_of_any_length_is_handled():
    (status,) = written(decide_set(see("x" * 1000), NOW))
    assert not decide_set(see("x" * 1000, status=msgspec.structs.replace(ENDED, retry=status.retry)), NOW).actions


def _creation(index):
    return CreateEpisode(name=f"s-{index}", index=index, sample=0, task="a", task_uid="uid-a")
