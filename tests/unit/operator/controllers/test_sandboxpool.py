"""Tests of the size of a sandbox pool, and of the replacement of its pods."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgym.api import SandboxPoolSpec, TaskRef
from dgym_operator.controllers import CreatePooledPod, DeletePod, PatchSandboxPoolStatus, SandboxPoolInput
from dgym_operator.controllers.sandboxpool import RESYNC_SECONDS, decide_sandbox_pool, has_failed
from dgym_operator.objects import (
    Container,
    ContainerState,
    Meta,
    Pod,
    PodAnnotations,
    PodCondition,
    PodMeta,
    PodStatus,
    SandboxPoolView,
    Terminated,
    Waiting,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SPEC = SandboxPoolSpec(task_ref=TaskRef(name="bug"), min_idle=2)
_replace = msgspec.structs.replace


def ago(seconds):
    return NOW - timedelta(seconds=seconds)


def pod(name, *, ready=True, age=60.0, made_as="same", deleting=False, start=3.0, **status):
    conditions = [PodCondition(type="Ready", status="True", last_transition_time=ago(age - start))] if ready else []
    metadata = PodMeta(
        name=name,
        uid=f"uid-{name}",
        creation_timestamp=ago(age),
        deletion_timestamp=NOW if deleting else None,
        annotations=PodAnnotations(template_hash=made_as),
    )
    return Pod(metadata=metadata, status=PodStatus(conditions=tuple(conditions), **status))


def view(*pods, spec=SPEC, **known):
    pool = SandboxPoolView(metadata=Meta(name="warm", generation=1), spec=spec)
    return SandboxPoolInput(**{"pool": pool, "pods": pods, "template_hash": "same", **known})


def actions(plan, kind):
    return [action for action in plan.actions if isinstance(action, kind)]


def status_of(plan):
    (written,) = actions(plan, PatchSandboxPoolStatus)
    return written.status


def deleted(plan):
    return [action.name for action in actions(plan, DeletePod)]


def created(plan):
    return len(actions(plan, CreatePooledPod))


def test_an_empty_pool_is_filled():
    plan = decide_sandbox_pool(view(), NOW)
    assert (created(plan), deleted(plan)) == (2, [])
    status = status_of(plan)
    assert (status.reason, status.idle, status.starting) == ("Starting", 0, 0)


def test_a_full_pool_waits_until_a_pod_expires():
    plan = decide_sandbox_pool(view(pod("a", age=60), pod("b", age=3590)), NOW)
    assert (created(plan), deleted(plan), plan.requeue_after) == (0, [], 10)
    assert (status_of(plan).reason, status_of(plan).idle) == ("Ready", 2)


def test_an_unchanged_status_is_not_written():
    before = view(pod("a"), pod("b"))
    pool = _replace(before.pool, status=status_of(decide_sandbox_pool(before, NOW)))
    again = decide_sandbox_pool(_replace(before, pool=pool), NOW)
    assert (again.actions, again.requeue_after) == ((), RESYNC_SECONDS)


@pytest.mark.parametrize(
    "useless",
    [
        pod("x", age=3600),
        pod("x", made_as="another"),
        pod("x", ready=False, age=900),
        pod("x", phase="Failed"),
        pod(
            "x",
            ready=False,
            container_statuses=(Container(name="sidecar", state=ContainerState(terminated=Terminated(exit_code=1))),),
        ),
    ],
    ids=["expired", "another template", "never ready", "failed", "sidecar ended"],
)
def test_unusable_pods_are_replaced(useless):
    plan = decide_sandbox_pool(view(pod("a"), useless), NOW)
    assert (deleted(plan), created(plan)) == (["x"], 1)
    assert status_of(plan).idle == 1


def test_a_pod_that_its_queue_has_not_admitted_is_waited_for():
    gate = PodCondition(type="PodScheduled", status="False", reason="SchedulingGated", last_transition_time=ago(3000))
    gated = _replace(pod("a", ready=False, age=3000), status=PodStatus(conditions=(gate,)))
    plan = decide_sandbox_pool(view(gated, pod("b")), NOW)
    assert (deleted(plan), created(plan)) == ([], 0)
    assert status_of(plan).reason == "SchedulingGated"


def test_pods_of_a_former_key_are_replaced():
    plan = decide_sandbox_pool(view(pod("a"), unusable_pods=(pod("b"),)), NOW)
    assert (deleted(plan), created(plan)) == (["b"], 1)


def test_a_pod_that_is_being_deleted_counts_no_more():
    plan = decide_sandbox_pool(view(pod("a"), pod("b", deleting=True)), NOW)
    assert (deleted(plan), created(plan)) == ([], 1)


def test_demand_raises_the_number_up_to_the_most():
    spec = _replace(SPEC, max_idle=5)
    # Pods start within three seconds, so that older claims do not count.
    taken = (ago(1), ago(2), ago(2.5), ago(30), ago(40))
    assert created(decide_sandbox_pool(view(pod("a"), spec=spec, claims=taken), NOW)) == 2
    assert created(decide_sandbox_pool(view(spec=spec, claims=(ago(1),) * 20), NOW)) == 5
    assert created(decide_sandbox_pool(view(claims=(ago(1),) * 20), NOW)) == 2


def test_misses_raise_the_number_to_twice_what_was_claimed():
    """An episode that finds no pod does not claim a pod. Without misses a sandbox pool of one pod would never grow."""
    spec = _replace(SPEC, min_idle=0, max_idle=50)
    missed = (ago(1),) * 30
    assert created(decide_sandbox_pool(view(spec=spec), NOW)) == 0
    assert created(decide_sandbox_pool(view(spec=spec, misses=missed), NOW)) == 1
    assert created(decide_sandbox_pool(view(spec=spec, misses=missed, claims=(ago(1),) * 4), NOW)) == 8
    assert created(decide_sandbox_pool(view(spec=spec, misses=(ago(1),), claims=(ago(1),) * 4), NOW)) == 5
    assert created(decide_sandbox_pool(view(spec=spec, misses=(ago(60),) * 30), NOW)) == 0


def test_more_than_the_most_are_deleted_the_unready_first():
    spec = _replace(SPEC, min_idle=0, max_idle=1)
    plan = decide_sandbox_pool(view(pod("a"), pod("b", ready=False), pod("c", age=100), spec=spec), NOW)
    assert sorted(deleted(plan)) == ["b", "c"]
    empty = decide_sandbox_pool(view(pod("a"), spec=_replace(SPEC, min_idle=0)), NOW)
    assert (deleted(empty), status_of(empty).reason) == (["a"], "Disabled")


def test_failures_back_off():
    assert created(decide_sandbox_pool(view(failures=3, failed_at=ago(1)), NOW)) == 0
    waiting = decide_sandbox_pool(view(failures=3, failed_at=ago(39)), NOW)
    assert (created(waiting), waiting.requeue_after, status_of(waiting).reason) == (0, 1, "SandboxStartFailed")
    assert created(decide_sandbox_pool(view(failures=3, failed_at=ago(40)), NOW)) == 2


def test_a_pool_without_pods_shows_the_reason():
    refused = decide_sandbox_pool(view(template_hash="", refused="DebugTask bug does not exist in namespace team"), NOW)
    status = status_of(refused)
    assert (created(refused), status.reason, status.message) == (
        0,
        "Refused",
        "DebugTask bug does not exist in namespace team",
    )
    # A pod that runs is kept: without the template hash the operator cannot decide whether an episode can use it.
    assert deleted(decide_sandbox_pool(view(pod("a"), template_hash="", refused="the API server is away"), NOW)) == []
    waiting = Container(name="sandbox", state=ContainerState(waiting=Waiting(reason="ImagePullBackOff", message="no")))
    pulling = decide_sandbox_pool(view(pod("a", ready=False, container_statuses=(waiting,))), NOW)
    assert status_of(pulling).reason == "ImagePullFailed"


def test_a_refused_creation_is_shown_while_pods_are_missing():
    refused = "exceeded quota: few"
    assert status_of(decide_sandbox_pool(view(pod("a"), refused=refused), NOW)).message == refused
    assert status_of(decide_sandbox_pool(view(pod("a"), pod("b"), refused=refused), NOW)).reason == "Ready"
    empty = view(spec=_replace(SPEC, min_idle=0), refused=refused)
    assert status_of(decide_sandbox_pool(empty, NOW)).reason == "Disabled"


def test_a_pool_that_is_being_deleted_is_left_to_the_garbage_collector():
    deleting = view()
    metadata = _replace(deleting.pool.metadata, deletion_timestamp=NOW)
    assert decide_sandbox_pool(_replace(deleting, pool=_replace(deleting.pool, metadata=metadata)), NOW).actions == ()


def test_claims_that_an_earlier_operator_has_counted_stay():
    before = view(pod("a"), pod("b"), claimed=3)
    assert status_of(decide_sandbox_pool(before, NOW)).claimed == 3
    known = _replace(before.pool, status=_replace(before.pool.status, claimed=7))
    assert status_of(decide_sandbox_pool(_replace(before, pool=known), NOW)).claimed == 7


@given(
    st.integers(0, 20),
    st.none() | st.integers(0, 20),
    st.lists(st.tuples(st.booleans(), st.floats(4.0, 4000.0), st.sampled_from(["same", "other"])), max_size=12),
    st.integers(0, 30),
)
def test_the_number_of_pods_converges(least, most, pods, taken):
    """After some rounds of planning and applying, the plan does not create or delete pods."""
    spec = _replace(SPEC, min_idle=least, max_idle=most)
    found = [pod(f"p{number}", ready=ready, age=age, made_as=made) for number, (ready, age, made) in enumerate(pods)]
    number = 100
    for _ in range(10):
        seen = view(*found, spec=spec, claims=(ago(1),) * taken)
        plan = decide_sandbox_pool(seen, NOW)
        left = deleted(plan)
        assert len(left) == len(set(left))
        found = [each for each in found if each.metadata.name not in left]
        for _ in range(created(plan)):
            number += 1
            found.append(pod(f"p{number}", age=4.0))
        if not left and not created(plan):
            break
    else:
        raise AssertionError("it does not come to rest")
    limit = least if most is None else max(least, most)
    assert least <= len(found) <= limit
    assert not any(has_failed(each, seen.policy, NOW) for each in found)
