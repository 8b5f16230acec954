"""Tests of the SandboxPool of a set. It exists while episodes are to begin, and has the task of the next episodes."""

from datetime import timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgym.api import EpisodeSpec, PodOverrides, SandboxPoolSpec, SetPool, TaskRef
from dgym_operator.controllers import (
    Children,
    CreateEpisode,
    CreateSandboxPool,
    DeleteSandboxPool,
    EpisodeSetInput,
    PatchSandboxPool,
    PatchSetStatus,
)
from dgym_operator.controllers.episodeset import decide_set
from dgym_operator.controllers.episodeset._controller import CHANGE_SECONDS
from dgym_operator.objects import Meta, SandboxPoolView
from tests.unit.operator.controllers.reconcile_builders import NOW, child, episode_set, finished

_replace = msgspec.structs.replace
FROZEN = (("a", "uid-a"), ("b", "uid-b"))
POOL = SetPool(min_idle=2)


def see(*children, existing=None, frozen=FROZEN, changed=None, **spec):
    the_set = episode_set("a", "b", **{"samples": 10, "parallelism": 4, "pool": POOL, **spec})
    return EpisodeSetInput(
        episode_set=the_set,
        frozen=frozen,
        children=Children(children),
        pool=existing,
        pool_changed_at=changed,
    )


def the_pool(task="a", least=2, most=4, **metadata):
    spec = SandboxPoolSpec(task_ref=TaskRef(name=task), min_idle=least, max_idle=most)
    return SandboxPoolView(metadata=Meta(name="s-set-uid-", uid="pool", **metadata), spec=spec)


def changes(plan):
    return [
        action
        for action in plan.actions
        if isinstance(action, CreateSandboxPool | PatchSandboxPool | DeleteSandboxPool)
    ]


def test_a_set_gets_a_pool_behind_its_first_episodes():
    template = EpisodeSpec(pod_template="gpu", pod_overrides=PodOverrides(node_selector={"disk": "fast"}))
    plan = decide_set(see(template=template), NOW)
    assert [type(action) for action in plan.actions][-5:] == [CreateEpisode] * 4 + [CreateSandboxPool]
    spec = SandboxPoolSpec(
        task_ref=TaskRef(name="a"),
        pod_template="gpu",
        pod_overrides=template.pod_overrides,
        min_idle=2,
        max_idle=4,
    )
    assert changes(plan) == [CreateSandboxPool(name="s-set-uid-", spec=spec)]


def test_a_set_without_a_pool_gets_none():
    assert changes(decide_set(see(pool=None), NOW)) == []


def test_the_pool_is_of_the_task_that_is_next_and_as_large_as_what_is_left():
    running = [child(index) for index in range(10)]
    (patch,) = changes(decide_set(see(*running, existing=the_pool(), parallelism=10), NOW))
    assert (patch.name, patch.spec.task_ref.name, patch.spec.max_idle) == ("s-set-uid-", "b", 10)
    last = [child(index) for index in range(19)]
    (patch,) = changes(decide_set(see(*last, existing=the_pool("b"), parallelism=19), NOW))
    assert (patch.spec.min_idle, patch.spec.max_idle) == (1, 1)


def test_changes_of_the_pool_are_rare():
    running = [child(index) for index in range(10)]
    view = see(*running, existing=the_pool(), parallelism=10, changed=NOW - timedelta(seconds=10))
    plan = decide_set(view, NOW)
    assert (changes(plan), plan.requeue_after) == ([], CHANGE_SECONDS - 10)
    assert changes(decide_set(view, NOW + timedelta(seconds=CHANGE_SECONDS - 10)))


@pytest.mark.parametrize(
    "over",
    [{"cancel": True}, {"suspend": True}, {"parallelism": 0}, {"pool": None}, {"samples": 1}],
    ids=["cancelled", "suspended", "no parallelism", "no pool any more", "nothing to begin"],
)
def test_the_pool_is_deleted_once_no_episode_is_to_begin(over):
    view = _replace(see(*[child(index) for index in range(2)], **over), pool=the_pool())
    assert changes(decide_set(view, NOW)) == [DeleteSandboxPool(name="s-set-uid-", uid="pool")]
    deleting = _replace(view, pool=the_pool(deletion_timestamp=NOW))
    assert changes(decide_set(deleting, NOW)) == []


def test_the_pool_of_a_finished_set_is_deleted():
    children = [child(index, status=finished()) for index in range(20)]
    view = see(*children)
    status = next(action.status for action in decide_set(view, NOW).actions if isinstance(action, PatchSetStatus))
    over = _replace(view, episode_set=_replace(view.episode_set, status=status), pool=the_pool())
    assert changes(decide_set(over, NOW)) == [DeleteSandboxPool(name="s-set-uid-", uid="pool")]
    assert changes(decide_set(_replace(over, pool=None), NOW)) == []


@given(st.integers(0, 20), st.integers(0, 1000), st.none() | st.integers(0, 1000), st.integers(1, 100_000))
def test_every_pool_of_a_set_is_valid(begun, least, most, parallelism):
    """The API server refuses a sandbox pool with ``maxIdle`` below ``minIdle``."""
    given = SetPool(min_idle=least, max_idle=most if most is None else max(least, most))
    running = [child(index) for index in range(begun)]
    plan = decide_set(see(*running, pool=given, parallelism=parallelism), NOW)
    for action in changes(plan):
        assert 0 <= action.spec.min_idle <= action.spec.max_idle <= 1000
