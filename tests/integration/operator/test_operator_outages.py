"""Tests of models and results stores that agent pods report as unavailable."""

import pytest

from dgym.wire import EndReason
from dgym.wire.assignments import AssignmentState, ModelOutage
from tests.integration.operator.conftest import TASK
from tests.integration.operator.peers import MERGE, until

CAUSE = "model m: server error"
OUT = (ModelOutage(model="m", message=CAUSE),)
PROBE = (ModelOutage(model="m", message=CAUSE, probe=True),)
ASKS = {"name": "debug_agent", "model": "m"}


@pytest.fixture
async def two(installation):
    agents = [await installation.start_agent(f"agent-{number}") for number in range(2)]
    for agent in agents:
        agent.playing = False
    return agents


async def reported(*agents):
    """Wait until the operator has read a report of each agent pod that was made after this call."""
    for agent in agents:
        enough = agent.reported + 3
        await until(lambda agent=agent, enough=enough: agent.reported >= enough, "the agents have reported")


async def waiting_set(installation, samples, waiting):
    """Create a set, and return its status once the field ``waiting`` is equal to the argument."""
    await installation.create("DebugTask", "bug", TASK)
    spec = {"tasks": [{"name": "bug"}], "samples": samples, "parallelism": samples, "template": {"agent": ASKS}}
    await installation.create("EpisodeSet", "all", spec)

    async def found():
        made = await installation.get("all", "episodesets")
        return made["status"] if made and made.get("status", {}).get("waiting") == waiting else None

    return await until(found, f"the set to wait for {waiting}")


async def test_another_agent_pod_is_preferred_and_else_the_outage_is_waited_for(installation, two):
    out, well = two
    out.outages = OUT
    await installation.start_operator()
    await reported(*two)
    for name in ("a", "b"):
        await installation.episode(name, agent=ASKS)
    await until(lambda: len(well.held) == 2, "the other agent pod has both")
    well.outages = OUT
    await reported(well)
    status = await waiting_set(installation, 3, "model 3")
    cause = f"unavailable in every agent pod that could use it, and is tested regularly (agent pod agent-0: {CAUSE})"
    assert f"model m is {cause}" in status["message"]
    (shown,) = [each for each in status["conditions"] if each["type"] == "ModelAvailable"]
    assert (shown["status"], shown["reason"]) == ("False", "ModelError")
    # One sandbox is kept for the next probe. The slots are free for other models.
    assert len([name for name in await installation.pods() if name.startswith("all-")]) == 1
    await installation.episode("other", agent={**ASKS, "model": "another"})
    await until(lambda: len(out.held) + len(well.held) == 3, "another model is served")
    # The agent pod requests a probe. One episode begins there, and the next begins only after its end.
    out.outages = PROBE
    await until(lambda: any(each.episode.startswith("all-") for each in out.held.values()), "one episode probes")
    out.outages = OUT
    probes = [each for each in (*out.held.values(), *well.held.values()) if each.episode.startswith("all-")]
    assert len(probes) == 1
    out.outages = well.outages = ()
    await until(
        lambda: sum(each.episode.startswith("all-") for agent in two for each in agent.held.values()) == 3,
        "all begin once the model is back",
    )

    async def available():
        found = await installation.get("all", "episodesets")
        return any(
            each["type"] == "ModelAvailable" and each["status"] == "True" for each in found["status"]["conditions"]
        )

    await until(available, "the set shows that the model is back")


async def test_during_an_outage_an_episode_keeps_its_sandbox_and_uses_no_slot(installation):
    agent = await installation.start_agent(slots=1)
    agent.playing = False
    await installation.start_operator()
    uid = (await installation.episode("fix", agent=ASKS))["metadata"]["uid"]
    await until(lambda: uid in agent.held, "assigned")
    agent.outages = OUT
    agent.set_state(uid, AssignmentState.FAILED, reason=EndReason.MODEL_ERROR, message=CAUSE, outage=True)
    await installation.status("fix", "the failure is shown", lambda status: status.get("reason") == "ModelError")
    await installation.episode("other", agent={**ASKS, "model": "another"})
    await until(lambda: any(each.episode == "other" for each in agent.held.values()), "the slot is free for another")
    (other,) = [key for key, each in agent.held.items() if each.episode == "other"]
    await agent.finish(other)
    await installation.finished("other")
    assert agent.held[uid].epoch == 1
    agent.outages = ()
    await until(lambda: agent.held[uid].epoch == 2, "assigned again once the model is back")
    await agent.finish(uid)
    assert (await installation.finished("fix"))["status"]["attempt"] == 1


async def test_no_episode_begins_while_the_store_does_not_answer(installation, two):
    for agent in two:
        agent.store_problem = "results store: bucket b: connection refused"
    await installation.start_operator()
    status = await waiting_set(installation, 2, "store 2")
    held = "the results store of the agent pods does not answer: pod agent-0: results store: bucket b"
    assert held in status["message"]
    (shown,) = [each for each in status["conditions"] if each["type"] == "ResultStoreAvailable"]
    assert (shown["status"], shown["reason"]) == ("False", "ResultStoreUnavailable")
    assert not any(agent.held for agent in two)
    two[1].store_problem = ""
    await until(lambda: len(two[1].held) == 2, "the agent pod whose store answers has them")
    await installation.api.call("PATCH", installation.path("episodesets", "all"), {"spec": {"cancel": True}}, MERGE)
