"""Tests of sandbox pools: episodes take sandboxes that were started in advance."""

from tests.e2e.cluster.episodes import (
    REPAIR,
    SUBMIT,
    debug_task,
    episode,
    episode_set,
    inline_source,
    replay,
    task_spec,
)
from tests.e2e.cluster.support import until


def pool(name, **spec):
    spec = {"taskRef": {"name": "bug"}, "minIdle": 2, **spec}
    return {"apiVersion": "dgym.dev/v1alpha1", "kind": "SandboxPool", "metadata": {"name": name}, "spec": spec}


def idle(namespace, number):
    """The names of the sandbox pool's pods, once ``number`` of them are idle."""

    def look():
        status = namespace.get("sandboxpool", "warm").get("status", {})
        ready = (status.get("reason"), status.get("idle")) == ("Ready", number)
        pods = namespace.items("pods", "dgym.dev/sandbox-pool=warm,!dgym.dev/episode")
        return {pod["metadata"]["name"] for pod in pods} if ready and len(pods) == number else None

    return until(look, what=f"{number} sandboxes of the pool")


def test_episodes_claim_idle_sandboxes(namespace):
    namespace.apply(debug_task("bug", task_spec(inline_source())), pool("warm"))
    waiting = idle(namespace, 2)
    names = ("one", "two")
    namespace.apply(*(episode(name, agent=replay(REPAIR, SUBMIT), taskRef={"name": "bug"}) for name in names))
    taken = set()
    for name in names:
        status = namespace.finished(name)
        assert (status["reason"], status["attempt"], status["outcome"]["score"]) == ("Resolved", 1, 1)
        assert status["podRef"]["name"] in waiting
        taken.add(status["podRef"]["name"])
    assert taken == waiting
    after = idle(namespace, 2)
    assert not after & waiting
    namespace("delete", "sandboxpool", "warm")
    until(lambda: not namespace.items("pods"), what="the pods to go with their pool")


def test_a_set_runs_on_a_pool_that_is_smaller(namespace):
    namespace.apply(debug_task("bug", task_spec(inline_source())), pool("warm", minIdle=1, maxIdle=3))
    idle(namespace, 1)
    names = [f"many-{number}" for number in range(5)]
    namespace.apply(*(episode(name, agent=replay(REPAIR, SUBMIT), taskRef={"name": "bug"}) for name in names))
    reasons = {name: namespace.finished(name)["reason"] for name in names}
    assert reasons == dict.fromkeys(names, "Resolved")


def test_a_set_starts_sandboxes_ahead_of_its_episodes(namespace):
    namespace.apply(
        debug_task("bug", task_spec(inline_source())),
        episode_set(
            "all",
            tasks=[{"name": "bug"}],
            samples=6,
            parallelism=2,
            pool={"minIdle": 2},
            template={"agent": replay(REPAIR, SUBMIT)},
        ),
    )

    def finished():
        status = namespace.get("episodeset", "all").get("status", {})
        return status if status.get("reason") == "Completed" else None

    status = until(finished, what="the set to finish")
    assert (status["resolved"], status["failed"]) == (6, 0)
    pods = [each["status"]["podRef"]["name"] for each in namespace.items("episodes")]
    assert any(name.startswith("all-") and not name.endswith("-1") for name in pods), f"none was claimed: {pods}"
    until(lambda: not namespace.items("sandboxpools") and not namespace.items("pods"), what="the pool to go")
