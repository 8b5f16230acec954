"""Tests of deletion: a namespace or a set is deleted in time, and other namespaces are not affected."""

from tests.e2e.cluster.episodes import counting, debug_task, episode, episode_set, inline_source, task_spec
from tests.e2e.cluster.support import new_namespace, until


def test_a_namespace_is_deleted_in_the_middle(namespace):
    # The end of the block deletes the namespace, with a deadline.
    with new_namespace("e2e-doomed") as doomed:
        doomed.apply(episode("doomed", agent=counting(200), task=task_spec(inline_source())))
        doomed.reason("doomed", "Running")
    namespace.apply(episode("after", task=task_spec(inline_source())))
    assert namespace.finished("after")["reason"] == "Resolved"


def test_the_deletion_of_a_set_in_the_foreground_waits_for_episodes_and_pods(namespace):
    selector = "dgym.dev/set=doomed"
    namespace.apply(debug_task("doomed", task_spec(inline_source())))
    spec = {"tasks": [{"name": "doomed"}], "samples": 2, "template": {"agent": counting(200)}}
    namespace.apply(episode_set("doomed", **spec))
    episodes = until(
        lambda: [each for each in namespace.items("episodes", selector) if each.get("status", {}).get("podName")],
        what="an episode of the set to run",
    )
    namespace("delete", "episodeset", "doomed", "--cascade=foreground", "--timeout=150s", timeout=180)
    assert namespace.items("episodes", selector) == []
    pods = {each["metadata"]["name"] for each in namespace.items("pods")}
    assert not pods & {each["status"]["podName"] for each in episodes}
