"""Tests of EpisodeSets: each episode is run and counted once, and all episodes and pods are deleted."""

from tests.e2e.cluster.episodes import debug_task, episode_set, inline_source, task_spec
from tests.e2e.cluster.support import condition, run, until

SAMPLES = 2
PARALLELISM = 4
TASKS = 10


def active(episodes):
    return [each for each in episodes if not condition(each.get("status", {}), "Finished")]


def test_ten_tasks_twice_each(namespace):
    """Submitted with ``dgym submit``, as a user does it."""
    numbers = (
        "-p",
        f"set.samples={SAMPLES}",
        "-p",
        f"set.parallelism={PARALLELISM}",
        "-p",
        "ttlSecondsAfterFinished=5",
    )
    run("dgym", "submit", "--bundled", "mini_nightmare", "--agent", "replay", *numbers, "-n", namespace.namespace)
    assert len(namespace.items("debugtasks")) == TASKS
    (name,) = (each["metadata"]["name"] for each in namespace.items("episodesets"))
    seen, most = set(), 0

    def status():
        return (namespace.get("episodeset", name) or {}).get("status", {})

    def finished():
        nonlocal most
        episodes = namespace.items("episodes")
        seen.update(each["metadata"]["uid"] for each in episodes)
        most = max(most, len(active(episodes)))
        assert most <= PARALLELISM, [each["metadata"]["name"] for each in active(episodes)]
        return condition(status(), "Finished").get("status") == "True"

    until(finished, what="the set to finish", seconds=540, pause=0.5)
    final = status()
    counts = {name: final.get(name, 0) for name in ("total", "pending", "active", "resolved", "unresolved", "failed")}
    assert counts == {"total": 20, "pending": 0, "active": 0, "resolved": 20, "unresolved": 0, "failed": 0}
    assert (final["completedIndexes"], float(final["passAt1"])) == ("0-19", 1.0)

    until(lambda: not namespace.items("episodes"), what="the children to go after their TTL")
    until(lambda: not namespace.items("pods"), what="the pods to go")
    assert len(seen) == TASKS * SAMPLES, "an episode was run again"
    assert status()["completedIndexes"] == "0-19"


def test_too_many_failures_stop_a_set(namespace):
    """An episode whose set-up fails is not scored. With ``maxFailed`` 0 the other episodes are not started."""
    spec = task_spec(inline_source(), setupCommands=["exit 3"])
    namespace.apply(*(debug_task(name, spec, broken="yes") for name in ("one", "two", "three")))
    chosen = {"taskSelector": {"matchLabels": {"broken": "yes"}}, "samples": 1, "parallelism": 1, "maxFailed": 0}
    template = {"agent": {"name": "solution"}}
    namespace.apply(episode_set("broken", **chosen, template=template))
    namespace("wait", "--for=condition=Finished", "episodeset/broken", "--timeout=180s")
    status = namespace.get("episodeset", "broken")["status"]
    assert status["failed"] == 1
    assert len(namespace.items("episodes")) == 1


def test_scaling_a_set(namespace):
    """``kubectl scale`` sets how many episodes run at the same time. 0 pauses the set."""
    namespace.apply(debug_task("sums", task_spec(inline_source()), scaled="yes"))
    template = {"agent": {"name": "solution"}}
    chosen = {"taskSelector": {"matchLabels": {"scaled": "yes"}}, "samples": 3, "parallelism": 0}
    namespace.apply(episode_set("scaled", **chosen, template=template))
    until(lambda: namespace.get("episodeset", "scaled").get("status", {}).get("total") == 3, what="the set to be seen")
    assert namespace.items("episodes") == []
    namespace("scale", "episodeset/scaled", "--replicas=3")
    namespace("wait", "--for=condition=Finished", "episodeset/scaled", "--timeout=180s")
    assert namespace.get("episodeset", "scaled")["status"]["resolved"] == 3
