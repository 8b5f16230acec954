"""Whoever deletes a namespace must not be kept waiting, and nobody else may notice."""

from tests.e2e.cluster.episodes import counting, episode, inline_source, task_spec
from tests.e2e.cluster.support import new_namespace


def test_a_namespace_is_deleted_in_the_middle(namespace):
    # Leaving the block deletes the namespace, within a deadline.
    with new_namespace("e2e-doomed") as doomed:
        doomed.apply(episode("doomed", agent=counting(200), task=task_spec(inline_source())))
        doomed.reason("doomed", "Running")
    namespace.apply(episode("after", task=task_spec(inline_source())))
    assert namespace.finished("after")["reason"] == "Resolved"
