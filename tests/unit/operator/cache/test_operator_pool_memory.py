"""Tests of the memory of a sandbox pool: the number of consecutive failures of its pods."""

from datetime import UTC, datetime, timedelta

from dgym_operator.cache._cache import SandboxPoolMemory
from dgym_operator.controllers import Policy
from dgym_operator.objects import Pod, PodCondition, PodMeta, PodStatus

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def ready(name, seconds):
    condition = PodCondition(type="Ready", status="True", last_transition_time=NOW + timedelta(seconds=seconds))
    return Pod(metadata=PodMeta(name=name, creation_timestamp=NOW), status=PodStatus(conditions=(condition,)))


def failed(name):
    return Pod(metadata=PodMeta(name=name, creation_timestamp=NOW), status=PodStatus(phase="Failed"))


def failures(*rounds):
    memory = SandboxPoolMemory()
    for number, pods in enumerate(rounds):
        memory.record(pods, Policy(), NOW + timedelta(seconds=number))
    return memory.failures


def test_a_failed_pod_is_counted_once():
    assert failures([failed("a")], [failed("a")], [failed("a"), failed("b")]) == 2


def test_a_pod_that_was_ready_all_the_time_does_not_end_a_row_of_failures():
    """Otherwise other pods could fail one after the other without a back-off."""
    healthy = ready("healthy", -60)
    assert failures(*([failed(str(number)), healthy] for number in range(5))) == 5


def test_a_pod_that_is_ready_afterwards_ends_it():
    assert failures([failed("a")], [failed("b")], [ready("c", 2)]) == 0
