"""Tests of the reconciliation of a set: its tasks, its children and its end."""

import msgspec
import pytest

from dgym.api import (
    AgentOverrides,
    AgentSpec,
    Arm,
    ArmStatus,
    Condition,
    DebugTask,
    DebugTaskSpec,
    EpisodeSet,
    EpisodeSetStatus,
    EpisodeSpec,
    EpisodeStatus,
    LabelSelector,
    ObjectMeta,
    TaskRef,
    expand,
)
from dgym_operator.controllers import (
    Children,
    CreateEpisode,
    DeleteSet,
    EpisodeSetInput,
    FreezeTasks,
    LookUpTasks,
    PatchChild,
    PatchSetStatus,
    Plan,
    Policy,
    Waits,
    is_counted,
)
from dgym_operator.controllers.episodeset import (
    child_manifest,
    decide_set,
    decode_tasks,
    encode_tasks,
)
from tests.unit.operator.controllers.reconcile_builders import (
    NOW,
    child,
    episode_set,
    finished,
    in_,
    task,
    the_condition,
)

FROZEN = (("a", "uid-a"), ("b", "uid-b"))


def see(episode_set_, *children, frozen=FROZEN, **more) -> EpisodeSetInput:
    return EpisodeSetInput(episode_set=episode_set_, frozen=frozen, children=Children(children), **more)


def status_of(plan: Plan) -> EpisodeSetStatus:
    (patch,) = [action for action in plan.actions if isinstance(action, PatchSetStatus)]
    return patch.status


def made(plan: Plan) -> list[int]:
    return [action.index for action in plan.actions if isinstance(action, CreateEpisode)]


def cancelled_early() -> EpisodeStatus:
    """Return the status of an Episode that was cancelled before it began."""
    conditions = (
        Condition(type="Finished", status="True", reason="Cancelled"),
        Condition(type="Resolved", status="False", reason="NotScored"),
    )
    return EpisodeStatus(reason="Cancelled", conditions=conditions)


def child_patches(plan: Plan) -> list[PatchChild]:
    return [action for action in plan.actions if isinstance(action, PatchChild)]


def test_listed_tasks_are_frozen_in_their_order_with_their_uids():
    seen = see(episode_set("b", "a"), frozen=None, tasks=(task("a"), task("b"), task("c")))
    expected = FreezeTasks(name="s-tasks-set-uid-", tasks=(("b", "uid-b"), ("a", "uid-a")))
    assert decide_set(seen, NOW).actions == (expected,)


def test_selected_tasks_are_frozen_in_the_order_of_their_names():
    selector = LabelSelector(match_labels={"suite": "mini"})
    tasks = (task("b", labels={"suite": "mini"}), task("a", labels={"suite": "mini"}), task("c"))
    plan = decide_set(see(episode_set(task_selector=selector), frozen=None, tasks=tasks), NOW)
    assert plan.actions[0].tasks == (("a", "uid-a"), ("b", "uid-b"))


def test_a_set_shows_that_its_model_is_out_and_that_it_is_back():
    out = Waits(active=1, counts=(("model", 1),), message="episodes wait for model: model m: 503")
    seen = see(episode_set("a", "b", parallelism=1), child(0), waits=out)
    status = status_of(decide_set(seen, NOW))
    assert (status.waiting, status.message) == ("model 1", "episodes wait for model: model m: 503")
    shown = the_condition(status, "ModelAvailable")
    assert (shown.status, shown.reason, shown.message) == ("False", "ModelError", status.message)
    back = status_of(decide_set(see(episode_set("a", "b", parallelism=1, status=status), child(0)), in_(60)))
    assert the_condition(back, "ModelAvailable").status == "True"
    never = status_of(decide_set(see(episode_set("a", "b", parallelism=1), child(0)), NOW))
    assert the_condition(never, "ModelAvailable") is None


def test_selected_tasks_with_the_same_image_are_adjacent():
    tasks = tuple(task(name, image=image) for name, image in zip("fdbace", "yxxxyz", strict=True))
    plan = decide_set(see(episode_set(task_selector=LabelSelector()), frozen=None, tasks=tasks), NOW)
    assert [name for name, _ in plan.actions[0].tasks] == list("abdcfe")


def test_tasks_that_are_being_applied_are_waited_for():
    tasks = (task("a", age=60), task("b", age=2))
    plan = decide_set(see(episode_set(task_selector=LabelSelector()), frozen=None, tasks=tasks), NOW)
    assert plan == Plan(requeue_after=3)


@pytest.mark.parametrize(
    ("seen", "text"),
    [
        (episode_set(task_selector=LabelSelector()), "does not select a DebugTask"),
        (episode_set("a", "b", "c", "d", "e"), "4 of 5 tasks are not in this namespace: b, c, d, …"),
    ],
    ids=["none", "some"],
)
def test_a_set_with_missing_tasks_shows_them_and_waits(seen, text):
    tasks = (task("a"),) if seen.spec.tasks else ()
    early = decide_set(see(seen, frozen=None, tasks=tasks), in_(1))
    assert early == Plan(requeue_after=4)

    plan = decide_set(see(seen, frozen=None, tasks=tasks), in_(6))
    status = status_of(plan)
    assert text in the_condition(status, "Finished").message
    again = decide_set(see(msgspec.structs.replace(seen, status=status), frozen=None, tasks=tasks), in_(600))
    assert again == Plan()


def test_too_many_tasks_for_one_object_are_refused():
    tasks = tuple(task(f"{number:05d}-{'x' * 200}") for number in range(5000))
    plan = decide_set(see(episode_set(task_selector=LabelSelector()), frozen=None, tasks=tasks), in_(6))
    assert "create several sets" in the_condition(status_of(plan), "Finished").message


def test_the_frozen_list_survives_its_config_map():
    assert decode_tasks(encode_tasks(FROZEN)) == FROZEN
    assert decode_tasks({}) is None
    assert decode_tasks({"tasks": "a b c\n"}) is None


def test_a_set_whose_list_of_tasks_is_gone_gives_no_index_another_task():
    status = EpisodeSetStatus(completed_indexes="0", total=4, active=1, resolved=1, pending=2, start_time=NOW)
    seen, tasks = episode_set("a", "b", samples=2, status=status), (task("b"), task("c"))
    lookup = decide_set(see(seen, child(1), frozen=None, tasks=tasks), NOW)
    assert lookup.actions == (LookUpTasks(name="s-tasks-set-uid-"),)

    lost = decide_set(see(seen, child(1), frozen=None, tasks=tasks, list_absent=True), NOW)
    assert (made(lost), status_of(lost).total, the_condition(status_of(lost), "Finished").status) == ([], 4, "False")
    assert the_condition(status_of(lost), "Finished").reason == "TaskListLost"

    after = episode_set("a", "b", samples=2, status=status_of(lost))
    over = status_of(decide_set(see(after, child(1, status=finished()), frozen=None, list_absent=True), NOW))
    done = the_condition(over, "Finished")
    assert (done.status, done.reason, over.resolved, over.pending) == ("True", "TaskListLost", 2, 0)
    assert "s-tasks-set-uid-" in done.message
    assert "create a new EpisodeSet" in done.message


def test_children_are_made_within_the_parallelism_after_the_status_is_written():
    plan = decide_set(see(episode_set("a", "b", samples=2, parallelism=3)), NOW)

    status = status_of(plan)
    assert (status.total, status.pending, status.active, status.unfinished, status.start_time) == (4, 4, 0, 3, NOW)
    assert isinstance(plan.actions[0], PatchSetStatus)
    assert plan.actions[1:] == (
        CreateEpisode(name="s-0", index=0, sample=0, task="a", task_uid="uid-a"),
        CreateEpisode(name="s-1", index=1, sample=1, task="a", task_uid="uid-a"),
        CreateEpisode(name="s-2", index=2, sample=0, task="b", task_uid="uid-b"),
    )
    after = msgspec.structs.replace(episode_set("a", "b", samples=2, parallelism=3), status=status)
    assert not decide_set(see(after, child(0), creating=frozenset({1, 2})), NOW).actions


def test_only_children_that_were_not_counted_are_created_again():
    status = EpisodeSetStatus(completed_indexes="0", total=4, active=2, resolved=1, pending=1)
    seen = episode_set("a", "b", samples=2, parallelism=2, status=status)

    first = decide_set(see(seen, child(2)), NOW)
    assert made(first) == [] or 1 in made(first)
    settled = msgspec.structs.replace(seen, status=status_of(first))
    second = decide_set(see(settled, child(2)), NOW)
    assert {*made(first), *made(second)} == {1}


def test_the_status_counts_children_by_outcome():
    ends = ["Resolved", "Resolved", "Unresolved", "SandboxLost"]
    children = [child(index, status=finished(reason)) for index, reason in enumerate(ends)]

    plan = decide_set(see(episode_set("a", "b", samples=2), *children), NOW)

    status = status_of(plan)
    assert (status.resolved, status.unresolved, status.failed, status.pass_at_1) == (2, 1, 1, "0.6667")
    done = the_condition(status, "Finished")
    assert (done.status, done.reason, status.completion_time) == ("True", "Completed", NOW)
    assert done.message == "2 of 3 scored episodes are resolved, 1 episodes failed"
    assert all(is_counted(status, each) for each in children)
    assert not is_counted(EpisodeSetStatus(completed_indexes="0-1"), children[2])


@pytest.mark.parametrize(
    ("ends", "pooled", "mean"),
    [
        (["Resolved", "Resolved", "Unresolved", "SandboxLost"], "0.6667", 0.5),
        (["Resolved", "Resolved", "Unresolved", "Unresolved"], "0.5000", 0.5),
        (["Resolved", "Unresolved", "Unresolved", "Unresolved"], "0.2500", 0.25),
    ],
)
def test_pass_at_1_is_pooled_and_equals_the_mean_over_tasks_without_failures(ends, pooled, mean):
    children = [child(index, status=finished(reason)) for index, reason in enumerate(ends)]

    status = status_of(decide_set(see(episode_set("a", "b", samples=2), *children), NOW))

    assert status.pass_at_1 == pooled
    assert (float(pooled) == mean) == (status.failed == 0)
    gone = episode_set("a", "b", samples=2, status=msgspec.structs.replace(status, conditions=()))
    assert status_of(decide_set(see(gone), NOW)).pass_at_1 == pooled


@pytest.mark.parametrize(("limit", "stops"), [(0, True), (1, True), (2, False), (None, False)])
def test_too_many_failures_stop_the_set_when_what_runs_has_finished(limit, stops):
    seen = episode_set("a", "b", samples=2, parallelism=2, max_failed=limit)
    children = [child(0, status=finished("SandboxLost")), child(1)]
    plan = decide_set(see(seen, *children), NOW)
    assert made(plan) == ([] if stops else [2])
    if stops:
        ended = [child(0, status=finished("SandboxLost")), child(1, status=finished())]
        done = the_condition(status_of(decide_set(see(seen, *ended), NOW)), "Finished")
        assert (done.status, done.reason) == ("True", "MaxFailedReached")


def costing(status, cost):
    return msgspec.structs.replace(status, cost=cost)


def test_a_set_creates_no_episodes_after_its_cost_limit_is_reached():
    seen = episode_set("a", "b", samples=2, parallelism=2, cost_limit="2.50")
    ended, cheap = child(0, status=costing(finished(), "1.5")), child(1, status=EpisodeStatus(cost="0.9"))
    assert made(decide_set(see(seen, ended, cheap), NOW)) == [2]
    running = child(1, status=EpisodeStatus(cost="1"))
    plan = decide_set(see(seen, ended, running), NOW)
    status = status_of(plan)
    assert (made(plan), status.cost, status.failed, status.cancelled) == ([], "1.5", 0, 0)
    condition = the_condition(status, "Finished")
    assert (condition.status, condition.reason, status.reason) == ("False", "CostLimitReached", "CostLimitReached")
    assert "costLimit is 2.50, and 2.5 is spent: no more episodes are created; 1 episodes" in condition.message
    done = child(1, status=costing(finished("ModelError"), "1.25"))
    after = status_of(decide_set(see(episode_set("a", "b", samples=2, cost_limit="2.50", status=status), done), NOW))
    over = the_condition(after, "Finished")
    assert (over.status, over.reason, after.cost, after.failed) == ("True", "CostLimitReached", "2.75", 1)
    raised = episode_set("a", "b", samples=2, parallelism=2, cost_limit="9", status=status)
    assert made(decide_set(see(raised, running), NOW)) == [2]


def test_a_set_whose_episodes_have_all_started_is_completed_above_its_cost_limit():
    seen = episode_set("a", "b", cost_limit="1")
    status = status_of(decide_set(see(seen, *(child(n, status=costing(finished(), "3")) for n in (0, 1))), NOW))
    assert (status.reason, status.cost) == ("Completed", "6")


def test_the_cost_of_a_failed_episode_is_kept_after_a_retry():
    failed = child(0, status=costing(finished("ModelError"), "0.75"))
    status = status_of(decide_set(see(episode_set("a", cost_limit="1"), failed), NOW))
    asked = episode_set("a", cost_limit="1", status=status, retry="1")
    again = status_of(decide_set(see(asked, frozen=FROZEN[:1]), NOW))
    assert (again.failed, again.cost) == (0, "0.75")


def test_the_cost_limit_of_a_child_does_not_exceed_that_of_its_set():
    for own, bound in (("0.5", "0.5"), ("30", "2.50"), (None, "2.50")):
        agent = AgentSpec(name="debug_agent", model="m", cost_limit=own)
        seen = episode_set("a", cost_limit="2.50", template=EpisodeSpec(agent=agent))
        create = CreateEpisode(name="s-0", index=0, sample=0, task="a", task_uid="u")
        assert child_manifest(seen, create).spec.agent.cost_limit == bound


def test_cancelling_ends_the_children_and_then_the_set():
    seen = episode_set("a", "b", samples=2, parallelism=2, cancel=True)
    plan = decide_set(see(seen, child(0), child(1, cancel=True)), NOW)
    assert [action for action in plan.actions if isinstance(action, PatchChild)] == [
        PatchChild(name="s-0", cancel=True)
    ]
    assert made(plan) == []
    ended = [child(index, status=finished("Cancelled")) for index in (0, 1)]
    status = status_of(decide_set(see(seen, *ended), NOW))
    assert (the_condition(status, "Finished").reason, status.pending) == ("Cancelled", 0)
    assert (status.cancelled, status.unresolved, status.failed, status.pass_at_1) == (0, 2, 0, "0.0000")
    never = [child(index, status=cancelled_early()) for index in (0, 1)]
    status = status_of(decide_set(see(seen, *never), NOW))
    assert (status.cancelled, status.unresolved, status.failed, status.pass_at_1) == (2, 0, 0, "")
    assert status.completed_indexes == "0-1"
    early = status_of(decide_set(see(seen, frozen=None), NOW))
    assert the_condition(early, "Finished").status == "True"


def test_suspending_a_set_suspends_its_children_until_it_is_resumed():
    seen = episode_set("a", "b", suspend=True)
    plan = decide_set(see(seen, child(0), child(1, suspend=True)), NOW)
    assert [action for action in plan.actions if isinstance(action, PatchChild)] == [
        PatchChild(name="s-0", suspend=True)
    ]
    status = status_of(plan)
    assert the_condition(status, "Suspended").status == "True"

    both = (child(0, suspend=True), child(1, suspend=True))
    plan = decide_set(see(episode_set("a", "b", status=status), *both), NOW)
    assert child_patches(plan) == [PatchChild(name="s-0", suspend=False), PatchChild(name="s-1", suspend=False)]
    resuming = episode_set("a", "b", status=status_of(plan))
    again = decide_set(see(resuming, child(0), child(1)), in_(1))
    assert (child_patches(again), status_of(again).reason, again.requeue_after) == ([], "Resuming", 1)
    late = decide_set(see(resuming, child(0), child(1, suspend=True)), in_(2))
    assert child_patches(late) == [PatchChild(name="s-1", suspend=False)]
    after = status_of(decide_set(see(resuming, child(0), child(1)), in_(5)))
    assert the_condition(after, "Suspended").status == "False"


def test_a_child_that_a_user_suspended_stays_suspended():
    running = Condition(type="Finished", status="False", reason="Running", last_transition_time=NOW)
    status = EpisodeSetStatus(
        reason="Running",
        total=2,
        active=1,
        suspended=1,
        unfinished=2,
        start_time=NOW,
        observed_generation=1,
        conditions=(running,),
    )
    seen = see(episode_set("a", "b", status=status), child(0, suspend=True), child(1), waits=Waits(active=1))
    assert decide_set(seen, NOW) == Plan()


def test_a_finished_set_is_deleted_after_its_ttl():
    done = Condition(type="Finished", status="True", reason="Completed")
    status = EpisodeSetStatus(conditions=(done,), completion_time=NOW)
    seen = see(episode_set("a", status=status, ttl_seconds_after_finished=60))
    assert decide_set(seen, in_(10)) == Plan(requeue_after=50)
    assert decide_set(seen, in_(60)).actions == (DeleteSet(name="s", uid="set-uid-1234"),)
    assert decide_set(see(episode_set("a", status=status)), in_(10**7)) == Plan()
    old = episode_set("a", status=msgspec.structs.replace(status, observed_generation=1))
    metadata = msgspec.structs.replace(old.metadata, generation=2)
    seen = see(msgspec.structs.replace(old, metadata=metadata))
    assert status_of(decide_set(seen, NOW)).observed_generation == 2


def test_a_set_that_is_being_deleted_is_left_alone():
    seen = episode_set("a")
    metadata = msgspec.structs.replace(seen.metadata, deletion_timestamp=NOW)
    assert decide_set(see(msgspec.structs.replace(seen, metadata=metadata)), NOW) == Plan()


def test_only_so_many_children_are_made_in_one_round():
    frozen = tuple((f"t{number}", f"u{number}") for number in range(100))
    view = see(episode_set("t0", parallelism=90), frozen=frozen, policy=Policy(creates_per_round=50))
    plan = decide_set(view, NOW)
    assert (made(plan), plan.requeue_after) == (list(range(50)), 1)


def test_arms_are_counted_apart():
    arms = tuple(Arm(name=name, agent=AgentOverrides(name=name)) for name in ("replay", "solution"))
    status = EpisodeSetStatus(
        completed_indexes="0-1",
        total=4,
        resolved=1,
        failed=1,
        arms=(ArmStatus(name="replay", total=2, resolved=1), ArmStatus(name="solution", total=2, failed=1)),
        start_time=NOW,
    )
    ends = (child(2, status=finished("Unresolved")), child(3, status=finished("SandboxLost")))
    after = status_of(decide_set(see(episode_set("a", "b", arms=arms, status=status), *ends), NOW))
    assert after.arms == (
        ArmStatus(name="replay", total=2, resolved=1, unresolved=1, pass_at_1="0.5000"),
        ArmStatus(name="solution", total=2, failed=2),
    )
    assert after.resolved_by_arm == "replay 1/2, solution 0/0"


def test_a_child_of_an_arm_is_what_a_local_run_would_plan():
    arms = (Arm(name="replay", agent=AgentOverrides(name="replay", max_steps=7)), Arm(name="few", tools=("view",)))
    template = EpisodeSpec(agent=AgentSpec(name="solution", seed=3), tools=("pdb",))
    seen = episode_set("a", "b", samples=2, template=template, arms=arms)
    local = EpisodeSet(metadata=ObjectMeta(name="s", namespace="ns"), spec=seen.spec)
    tasks = [DebugTask(metadata=ObjectMeta(name=each), spec=DebugTaskSpec()) for each in ("a", "b")]
    creations = [action for action in decide_set(see(seen), NOW).actions if isinstance(action, CreateEpisode)]
    for create, planned in zip(creations, expand(local, tasks), strict=True):
        manifest = child_manifest(seen, create)
        assert (create.name, create.sample) == (planned.episode.metadata.name, planned.sample)
        assert manifest.metadata.name == planned.episode.metadata.name
        assert manifest.spec == planned.episode.spec
        marks = {"dgym.dev/task-uid": f"uid-{planned.task.metadata.name}"}
        assert manifest.metadata.labels == {**planned.episode.metadata.labels, **marks}


def test_a_child_is_what_a_local_run_would_plan():
    name = "a-set-with-a-name-that-is-far-too-long-for-a-label-of-kubernetes-or-for-a-pod"
    template = EpisodeSpec(agent=AgentSpec(name="solution"), priority=3)
    seen = episode_set("a", "b", samples=2, template=template, priority=7)
    metadata = msgspec.structs.replace(seen.metadata, name=name, labels={"team": "x"})
    seen = msgspec.structs.replace(seen, metadata=metadata)
    (create,) = [action for action in decide_set(see(seen), NOW).actions if getattr(action, "index", None) == 3]

    manifest = child_manifest(seen, create)

    local = EpisodeSet(metadata=ObjectMeta(name=name, namespace="ns", labels={"team": "x"}), spec=seen.spec)
    tasks = [DebugTask(metadata=ObjectMeta(name=each), spec=DebugTaskSpec()) for each in ("a", "b")]
    planned = expand(local, tasks)[3].episode
    assert manifest.metadata.name == planned.metadata.name
    assert manifest.metadata.labels == {**planned.metadata.labels, "dgym.dev/task-uid": "uid-b"}
    assert manifest.spec == msgspec.structs.replace(planned.spec, priority=7)
    assert manifest.spec.task_ref == TaskRef(name="b")
    (owner,) = manifest.metadata.owner_references
    assert (owner.kind, owner.uid, owner.controller, owner.block_owner_deletion) == (
        "EpisodeSet",
        "set-uid-1234",
        True,
        True,
    )
