"""Tests of the HTTP API of an agent pod: tokens, slots, namespaces and invalid calls."""

import json

import msgspec

from dgym.wire.assignments import AgentPodRole, AssignmentState

FOREVER = "echo here > here.txt; until [ -e never ]; do sleep 0.02; done"


async def test_calls_need_the_token_of_their_role(agent, pod, helpers):
    assignments, results = "/v1/assignments", "/v1/results/default/calc"
    assert (await agent.call("GET", assignments, token="wrong"))[0] == 401
    assert (await agent.call("GET", assignments, role=AgentPodRole.RESULTS))[0] == 401
    assert (await agent.call("GET", results, role=AgentPodRole.ASSIGN))[0] == 401
    assert (await agent.call("PUT", f"{assignments}/uid", token="", body=helpers.assign(pod)))[0] == 401
    for path in ("/healthz", "/readyz", "/metrics"):
        assert (await agent.call("GET", path, token=""))[0] == 200


async def test_tokens_may_be_written_after_the_start(agent):
    tokens = agent.directory / "tokens"
    tokens.rename(agent.directory / "later")
    assert (await agent.call("GET", "/v1/assignments"))[0] == 401
    (agent.directory / "later").rename(tokens)
    assert (await agent.call("GET", "/v1/assignments"))[0] == 200


async def test_results_are_those_of_the_store_alone(agent):
    (agent.directory / "secret").write_text("a secret")
    for path in (
        "default/%2e%2e",
        "default/calc/uid/1/..%2f..%2f..%2f..%2f..%2fsecret",
        "..%2f../calc/uid/1/result.json",
        "default/calc/uid/1/.hidden",
        "default/calc/uid/1/other.txt",
        "default/calc/uid/9/result.json",
        "default/calc/uid/x/result.json",
        "/calc",
    ):
        status, body = await agent.call("GET", f"/v1/results/{path}", role=AgentPodRole.RESULTS)
        assert status in (400, 404), path
        assert b"a secret" not in body


async def test_an_agent_pod_serves_only_the_namespaces_of_its_pool(new_agent, pod, helpers):
    agent = await new_agent(namespaces="team,default").start()
    assert (await agent.put(helpers.assign(pod, helpers.bash(FOREVER))))[0] == 200
    status, body = await agent.put(helpers.assign(pod, namespace="other", episode_uid="second"))
    message = "this agent pod serves the namespaces default, team, not other"
    assert (status, json.loads(body)["message"]) == (403, message)
    for path in ("calc", "calc/uid/1/result.json"):
        assert (await agent.call("GET", f"/v1/results/other/{path}", role=AgentPodRole.RESULTS))[0] == 403
        assert (await agent.call("GET", f"/v1/results/team/{path}", role=AgentPodRole.RESULTS))[0] != 403


async def test_an_assignment_is_taken_once_and_within_the_slots(new_agent, pod, helpers):
    agent = await new_agent(slots=1).start()
    first = helpers.assign(pod, helpers.bash(FOREVER), epoch=3)
    assert (await agent.put(first))[0] == 200
    assert (await agent.put(first))[0] == 200
    status, body = await agent.put(msgspec.structs.replace(first, epoch=2))
    assert (status, json.loads(body)["code"]) == (409, "superseded")
    status, body = await agent.put(msgspec.structs.replace(first, episode_uid="second"))
    assert (status, json.loads(body)["message"]) == (503, "all 1 slots are taken")
    assert (await agent.put(msgspec.structs.replace(first, epoch=4)))[0] == 200
    report = await agent.report()
    assert (report.slots, report.draining) == (1, False)
    assert [(one.episode_uid, one.epoch) for one in report.assignments] == [("uid", 4)]
    running = await agent.until(lambda status: status.state is AssignmentState.RUNNING)
    assert running.outcome is None
    metrics = (await agent.call("GET", "/metrics"))[1].decode()
    assert "dgym_agent_slots 1.0" in metrics
    assert "dgym_agent_slots_used 1.0" in metrics
    assert 'dgym_agent_episodes{state="running"} 1.0' in metrics
    assert (await agent.delete())[0] == 200
    assert (await agent.put(msgspec.structs.replace(first, episode_uid="second")))[0] == 200


async def test_malformed_requests_are_refused(agent, pod, helpers):
    good = helpers.assign(pod)
    assert (await agent.call("PUT", "/v1/assignments/other", body=good))[0] == 400
    assert (await agent.call("PUT", "/v1/assignments/uid", body={"epoch": 1}))[0] == 400
    assert (await agent.put(msgspec.structs.replace(good, namespace="../up")))[0] == 400
    assert (await agent.call("GET", "/v1/assignments/uid"))[0] == 404
    assert (await agent.call("POST", "/v2/what"))[0] == 404
    assert (await agent.report()).assignments == ()
