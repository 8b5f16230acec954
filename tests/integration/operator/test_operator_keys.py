"""Tests of the cluster's key: replaced, lost, unusable, or different from the key of the agent pods."""

import base64

from dgym.wire.assignments import make_pool_key
from tests.integration.operator.conftest import get
from tests.integration.operator.peers import until


async def held_by(installation, name, text):
    def waits(status):
        return any(text in each.get("message", "") for each in status.get("conditions", []))

    return await installation.status(name, f"{name} says {text}", waits)


async def test_pods_created_with_a_replaced_key_count_as_disrupted(installation):
    agent = await installation.start_agent()
    agent.playing = False
    await installation.start_operator()
    uid = (await installation.episode("fix"))["metadata"]["uid"]
    await until(lambda: uid in agent.held, "it is assigned")
    await installation.stop_operator()
    for name in ("dgym-key", "dgym-agent-keys"):
        await installation.api.call("DELETE", installation.core("secrets", name))
    await agent.restart()
    await installation.start_operator()
    await until(lambda: uid in agent.held and agent.held[uid].attempt == 2, "it is assigned in a new pod")
    await agent.finish(uid)
    status = (await installation.finished("fix"))["status"]
    assert (status["reason"], status["attempt"]) == ("Resolved", 2)
    assert (status.get("disruptions"), status.get("failures", 0)) == (1, 0)


async def test_without_a_valid_key_the_leader_is_not_ready_and_episodes_show_the_cause(installation):
    short = {"metadata": {"name": "dgym-key"}, "data": {"key": base64.b64encode(b"short").decode()}}
    await installation.api.call("POST", installation.core("secrets"), short)
    operator = await installation.start_operator()
    await installation.episode("fix")
    assert "Secret dgym-key must have at least 16 bytes" in await installation.event("KeyUnusable")
    status, text = await get(operator, "/readyz")
    assert (status, "the operator has no usable key" in text) == (503, True)
    assert "dgym_operator_key_usable 0.0" in (await get(operator, "/metrics"))[1]
    await held_by(installation, "fix", "the operator has no usable key: Secret dgym-key")

    await installation.api.call("DELETE", installation.core("secrets", "dgym-key"))
    await installation.start_agent()
    assert (await installation.finished("fix"))["status"]["attempt"] == 1
    assert (await get(operator, "/readyz"))[0] == 200


async def test_if_agent_pods_refuse_the_token_the_operator_is_not_ready(installation):
    agent = await installation.start_agent()
    agent.key = "of another key"
    operator = await installation.start_operator()
    await installation.episode("fix")
    assert "agent pod agent-0 refuses the operator's token" in await installation.event("TokenRefused")
    status, text = await get(operator, "/readyz")
    assert (status, "agent pod agent-0 refuses" in text) == (503, True)
    assert 'dgym_agents{state="refusing"} 1.0' in (await get(operator, "/metrics"))[1]
    await held_by(installation, "fix", "it refuses the operator's token")

    await agent.restart()
    await installation.finished("fix")
    assert (await get(operator, "/readyz"))[0] == 200


async def test_an_existing_key_is_used_and_not_changed(installation):
    key = bytes(range(32))
    data = {"key": base64.b64encode(key).decode()}
    given = await installation.api.call(
        "POST", installation.core("secrets"), {"metadata": {"name": "dgym-key"}, "data": data}
    )
    await installation.start_operator()
    tokens = await until(
        lambda: installation.api.find(installation.core("secrets", "dgym-agent-keys")), "the tokens are there"
    )
    assert base64.b64decode(tokens["data"]["pool-key"]).decode() == make_pool_key(key, "")
    assert await installation.api.find(installation.core("secrets", "dgym-key")) == given
