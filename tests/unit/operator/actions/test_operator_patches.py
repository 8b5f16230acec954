from datetime import UTC, datetime

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from dgym.api import AgentPodAssignment, Condition, EpisodeStatus
from dgym_operator.actions._writes import merge_patch, status_patch

VALUES = st.recursive(
    st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=2),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3)


def apply(target, patch):
    """Apply a merge patch as the API server does (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = apply(result.get(name), value)
    return result


@given(OBJECTS, OBJECTS)
def test_a_patch_turns_the_old_into_the_new(old, new):
    assert apply(old, merge_patch(old, new)) == new
    assert merge_patch(old, old) == {}


def test_a_status_is_written_only_where_it_differs_and_only_over_what_was_seen():
    old = EpisodeStatus(
        reason="Running", attempt=1, pod_name="fix-1", assignment=AgentPodAssignment(agent_pod_uid="a", epoch=1)
    )
    new = msgspec.structs.replace(old, pod_name=None, assignment=None, reason="SandboxLost")
    assert status_patch(old, old, "7") is None
    assert status_patch(old, new, "7") == {
        "metadata": {"resourceVersion": "7"},
        "status": {"podName": None, "assignment": None, "reason": "SandboxLost"},
    }


def test_conditions_are_replaced_as_a_whole():
    at = datetime(2026, 1, 1, tzinfo=UTC)
    first = Condition(type="SandboxReady", status="True", reason="PodReady", last_transition_time=at)
    second = msgspec.structs.replace(first, status="False", reason="SandboxLost")
    patch = status_patch(EpisodeStatus(conditions=(first,)), EpisodeStatus(conditions=(second,)), "1")
    (written,) = patch["status"]["conditions"]
    assert (written["status"], written["reason"]) == ("False", "SandboxLost")
