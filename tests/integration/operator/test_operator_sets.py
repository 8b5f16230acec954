"""Tests of EpisodeSets on a real API server."""

import msgspec

from dgym.wire import EndReason
from tests.integration.operator.conftest import POLICY, TASK, condition
from tests.integration.operator.peers import MERGE, until

EPISODE = {"agent": {"name": "solution"}, "ttlSecondsAfterFinished": 0}


async def make_tasks(installation, *names):
    for name in names:
        await installation.create("DebugTask", name, TASK, labels={"suite": "small"})


async def test_a_set_runs_every_sample_once_within_its_parallelism(installation):
    await make_tasks(installation, "a", "b", "c")
    await installation.start_agent()
    # Progress is written for states that last. On a busy machine any state may last, so the threshold is high here.
    await installation.start_operator(msgspec.structs.replace(POLICY, shown_after_seconds=60.0))
    spec = {"taskSelector": {"matchLabels": {"suite": "small"}}, "samples": 2, "parallelism": 2, "template": EPISODE}
    await installation.create("EpisodeSet", "all", spec)
    status = (await installation.finished("all", "episodesets"))["status"]
    assert status["completedIndexes"] == "0-5"
    assert (status["total"], status["resolved"], status["active"], status["pending"]) == (6, 6, 0, 0)
    assert status["passAt1"] == "1.0000"
    given = [(each.episode, each.attempt, each.sample) for each in installation.agents[0].given]
    assert sorted(set(given)) == [(f"all-{index}", 1, index % 2) for index in range(6)]
    assert installation.kubelet.most_running <= 2

    async def nothing_left():
        return not await installation.api.items(installation.path("episodes")) and await installation.is_empty()

    def writes_of(name):
        return [write for write in installation.writes() if write[2] in (name, f"{name}-1")]

    await until(nothing_left, "children and pods are gone")
    # A request appears in the audit log only after its response.
    await until(lambda: all(len(writes_of(f"all-{index}")) >= 6 for index in range(6)), "the writes are in the log")
    for index in range(6):
        name = f"all-{index}"
        assert writes_of(name) == [
            ("create", "episodes", name, 201),
            ("create", "pods", f"{name}-1", 201),
            ("patch", "episodes", name, 200),
            ("patch", "episodes", name, 200),
            ("delete", "pods", f"{name}-1", 200),
            ("delete", "episodes", name, 200),
        ]


async def test_a_set_waits_for_its_tasks_and_keeps_to_them(installation):
    agent = await installation.start_agent()
    agent.playing = False
    await installation.start_operator()
    arms = [{"name": "gold"}, {"name": "few", "agent": {"maxSteps": 7}, "tools": ["view"]}]
    template = {"agent": {"name": "solution"}, "tools": ["pdb"]}
    spec = {"tasks": [{"name": "b"}, {"name": "a"}], "template": template, "arms": arms}
    await installation.create("EpisodeSet", "two", spec)
    await make_tasks(installation, "a", "b")
    await until(lambda: len(agent.held) == 4, "all are assigned")
    given = [(each.episode, each.task["metadata"]["name"], each.arm, each.tools) for each in agent.held.values()]
    assert sorted(given) == [
        ("two-few-0", "b", "few", ("view",)),
        ("two-few-1", "a", "few", ("view",)),
        ("two-gold-0", "b", "gold", ("pdb",)),
        ("two-gold-1", "a", "gold", ("pdb",)),
    ]
    assert {each.arm for each in agent.held.values() if each.agent.get("maxSteps") == 7} == {"few"}
    (frozen,) = await installation.api.items(f"/api/v1/namespaces/{installation.namespace}/configmaps")
    assert frozen["immutable"] is True
    assert [line.split()[0] for line in frozen["data"]["tasks"].splitlines()] == ["b", "a"]
    for uid, each in tuple(agent.held.items()):
        await agent.finish(uid, EndReason.RESOLVED if each.arm == "gold" else EndReason.INTERNAL_ERROR)
    status = (await installation.finished("two", "episodesets"))["status"]
    assert [(arm["name"], arm.get("resolved", 0), arm.get("failed", 0)) for arm in status["arms"]] == [
        ("gold", 2, 0),
        ("few", 0, 2),
    ]


async def test_a_set_creates_no_episodes_after_its_cost_limit_is_reached(installation):
    await make_tasks(installation, "a", "b", "c", "d")
    agent = await installation.start_agent()
    agent.playing = False
    await installation.start_operator()
    spec = {
        "taskSelector": {},
        "parallelism": 2,
        "costLimit": "2.50",
        "template": {"agent": {"name": "debug_agent", "model": "m", "costLimit": "9"}},
    }
    await installation.create("EpisodeSet", "dear", spec)
    await until(lambda: len(agent.held) == 2, "two are assigned")
    assert {each.agent["costLimit"] for each in agent.held.values()} == {"2.50"}
    first, second = agent.held
    await agent.finish(first, price="1.25")
    await until(lambda: len({each.episode for each in agent.given}) == 3, "another one is assigned")
    await agent.finish(second, EndReason.COST_LIMIT_REACHED, price="2.5")

    async def stopped():
        found = (await installation.get("dear", "episodesets"))["status"]
        return found if found["reason"] == "CostLimitReached" else None

    status = await until(stopped, "the set says so")
    assert "costLimit is 2.50, and 3.75 is spent: no more episodes are created; 1 episodes" in status["message"]
    (last,) = {each.episode_uid for each in agent.given} - {first, second}
    await agent.finish(last, price="0.05")
    status = (await installation.finished("dear", "episodesets"))["status"]
    assert (status["reason"], status["cost"]) == ("CostLimitReached", "3.8")
    assert (status["resolved"], status["unresolved"], status.get("failed", 0)) == (2, 1, 0)
    episodes = await installation.api.items(installation.path("episodes"))
    assert sorted(each["status"]["cost"] for each in episodes) == ["0.05", "1.25", "2.5"]


async def test_a_cancelled_set_cancels_its_children(installation):
    await make_tasks(installation, "a", "b", "c")
    agent = await installation.start_agent(slots=1)
    agent.playing = False
    await installation.start_operator(head_start=0)
    spec = {"taskSelector": {}, "parallelism": 2, "template": {"agent": {"name": "solution"}}}
    await installation.create("EpisodeSet", "some", spec)
    await until(lambda: agent.held, "one is assigned")
    await installation.api.call("PATCH", installation.path("episodesets", "some"), {"spec": {"cancel": True}}, MERGE)
    await until(lambda: installation.sidecars.calls, "the sidecar hears of it")
    assert (await installation.finished("some-1"))["status"]["reason"] == "Cancelled"
    (uid,) = agent.held
    await agent.finish(uid)
    episode_set = await installation.finished("some", "episodesets")
    assert condition(episode_set, "Finished") == "True"
    assert len(await installation.api.items(installation.path("episodes"))) == 2


async def test_finished_objects_show_which_generation_the_operator_has_seen(installation):
    await make_tasks(installation, "a")
    await installation.start_agent()
    await installation.start_operator()
    spec = {"taskSelector": {}, "template": {"agent": {"name": "solution"}}}
    await installation.create("EpisodeSet", "some", spec)
    await installation.finished("some", "episodesets")
    for name, plural in (("some", "episodesets"), ("some-0", "episodes")):
        change = {"spec": {"ttlSecondsAfterFinished": 86400}}
        changed = await installation.api.call("PATCH", installation.path(plural, name), change, MERGE)

        async def seen(name=name, plural=plural, changed=changed):
            found = await installation.get(name, plural)
            return found["status"]["observedGeneration"] == changed["metadata"]["generation"] == 2

        await until(seen, f"{plural} {name} shows its generation")


async def test_failed_episodes_run_again_and_their_results_stay(installation):
    await make_tasks(installation, "a", "b", "c")
    agent = await installation.start_agent()
    agent.playing = False
    await installation.start_operator()
    template = {"agent": {"name": "solution"}}
    await installation.create("EpisodeSet", "some", {"taskSelector": {}, "parallelism": 3, "template": template})

    played = set()

    async def play(ends):
        def open_ones():
            return {each.episode: uid for uid, each in agent.held.items() if uid not in played}

        await until(lambda: open_ones().keys() == ends.keys(), "all are assigned")
        for name, uid in open_ones().items():
            played.add(uid)
            await agent.finish(uid, ends[name])
        return (await installation.finished("some", "episodesets"))["status"]

    infrastructure = {"some-1": EndReason.INTERNAL_ERROR, "some-2": EndReason.VERIFIER_FAILED}
    status = await play({"some-0": EndReason.RESOLVED, **infrastructure})
    assert status["failedIndexes"] == [
        {"reason": "InternalError", "indexes": "1"},
        {"reason": "VerifierFailed", "indexes": "2"},
    ]
    kept = await installation.get("some-2")
    before = await installation.get("some-1")

    async def retry(value):
        change = {"metadata": {"annotations": {"dgym.dev/retry": value}}}
        await installation.api.call("PATCH", installation.path("episodesets", "some"), change, MERGE)

        async def begun():
            found = await installation.get("some", "episodesets")
            return found["status"].get("retry") == value

        await until(begun, "the retry has begun")

    await retry("1 InternalError")
    status = await play({"some-1": EndReason.RESOLVED})
    assert (status["resolved"], status["failed"], status["completedIndexes"]) == (2, 1, "0-2")
    assert status["failedIndexes"] == [{"reason": "VerifierFailed", "indexes": "2"}]
    again = await installation.get("some-1")
    assert again["metadata"]["uid"] != before["metadata"]["uid"]
    assert (await installation.get("some-2"))["metadata"]["uid"] == kept["metadata"]["uid"]
    # The leader stops between the deletion of the Episode and the write that frees its index.
    await installation.stop_operator()
    await installation.api.call("DELETE", installation.path("episodes", "some-2"))
    change = {"metadata": {"annotations": {"dgym.dev/retry": "2"}}}
    await installation.api.call("PATCH", installation.path("episodesets", "some"), change, MERGE)
    await installation.start_operator()
    status = await play({"some-2": EndReason.UNRESOLVED})
    assert (status["resolved"], status["unresolved"], status.get("failed", 0)) == (2, 1, 0)
    assert "failedIndexes" not in status
    assert "failed episodes run again: " in await installation.event("Retried")
