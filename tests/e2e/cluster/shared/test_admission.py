"""Tests of a namespace whose policy allows 1 active episode and limits what an Episode may request."""

import os

import pytest

from tests.e2e.cluster.episodes import counting, episode, inline_source, task_spec
from tests.e2e.cluster.support import condition, new_namespace, until

STEPS = 24
"""Steps of half a second each. Together they take longer than the operator needs to report why an episode waits."""


@pytest.fixture(scope="module")
def bounded():
    """The namespace for which the release's values have a policy."""
    with new_namespace("e2e-bounded", name=os.environ["DGYM_E2E_BOUNDED_NAMESPACE"]) as kubectl:
        yield kubectl


def test_at_most_max_active_episodes_run_and_the_others_show_the_reason(bounded):
    names = ["first", "second"]
    for name in names:
        bounded.apply(episode(name, agent=counting(STEPS), task=task_spec(inline_source())))
    held, most = "", 0

    def look():
        nonlocal held, most
        pods = {pod["metadata"]["name"] for pod in bounded.items("pods") if "deletionTimestamp" not in pod["metadata"]}
        # Listed after the pods: an episode that is unfinished now was unfinished when its pod was listed.
        episodes = bounded.items("episodes")
        unfinished = [each for each in episodes if not is_finished(each)]
        most = max(most, sum(f"{each['metadata']['name']}-1" in pods for each in unfinished))
        messages = (each["status"].get("message", "") for each in unfinished if each.get("status"))
        held = next((text for text in messages if "maxActive" in text), held)
        return episodes and not unfinished

    until(look, what="both episodes to finish", pause=0.5)
    assert f"namespace {bounded.namespace} has 1 active episodes (maxActive)" in held
    assert most == 1
    assert [bounded.status(name)["reason"] for name in names] == ["Resolved", "Resolved"]


@pytest.mark.attack("author")
def test_an_episode_beyond_the_limits_of_its_namespace_is_refused(bounded):
    overrides = {"podOverrides": {"tolerations": [{"operator": "Exists"}]}}
    agent = {"name": "solution", "maxSteps": 101}
    bounded.apply(episode("everywhere", task=task_spec(inline_source()), **overrides))
    bounded.apply(episode("long", agent=agent, task=task_spec(inline_source())))
    for name, field in (("everywhere", "spec.podOverrides.tolerations"), ("long", "spec.agent.maxSteps: is 101")):
        status = bounded.finished(name)
        assert status["reason"] == "InvalidSpec"
        assert field in condition(status, "Finished")["message"]
        assert bounded.get("pod", f"{name}-1") is None


def is_finished(each):
    """True if the Episode has finished."""
    return condition(each.get("status", {}), "Finished").get("status") == "True"
