"""Tests of external drivers: the Secret with the URL and the token of their sidecar."""

import base64

from dgym.api import driver_secret_name
from dgym.wire.http import Role, make_token
from tests.integration.operator.peers import until


async def test_a_prepared_episode_without_agent_gets_one_secret_that_its_pod_owns(installation):
    agent = await installation.start_agent()
    agent.playing = False
    await installation.start_operator()
    uid = (await installation.episode("fix", agent=None))["metadata"]["uid"]
    name = driver_secret_name("fix-1", uid)
    path = installation.core("secrets", name)
    secret = await until(lambda: installation.api.find(path), "the driver has its Secret")
    pod = (await installation.pods())["fix-1"]
    (owner,) = secret["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Pod", "fix-1", pod["metadata"]["uid"])
    assert pod["metadata"]["ownerReferences"][0]["uid"] == uid
    assert secret["immutable"]
    assert secret["metadata"]["labels"]["dgym.dev/episode"] == "fix"
    data = {field: base64.b64decode(value).decode() for field, value in secret["data"].items()}
    key = base64.b64decode((await installation.api.find(installation.core("secrets", "dgym-key")))["data"]["key"])
    assert data == {
        "url": f"http://{pod['status']['podIP']}:{installation.sidecars.port}",
        "token": make_token(key, episode_uid=uid, attempt=1, role=Role.DRIVE),
    }
    assert name in await installation.event("DriverReady")

    # A new leader has no record of the Secret: it tries to create it again, and gets the status 409.
    await installation.stop_operator()
    await installation.start_operator()
    await until(lambda: ("create", "secrets", name, 409) in installation.writes(), "it is asked for again")
    await agent.finish(uid)
    status = (await installation.finished("fix"))["status"]
    assert (status["reason"], status["attempt"]) == ("Resolved", 1)
    shown = str(await installation.get("fix")) + str(
        await installation.api.items(f"/apis/events.k8s.io/v1/namespaces/{installation.namespace}/events")
    )
    assert data["token"] not in shown


async def test_an_episode_with_an_agent_gets_none(installation):
    await installation.start_agent()
    await installation.start_operator()
    await installation.episode("fix")
    await installation.finished("fix")
    assert not [write for write in installation.writes() if write[1] == "secrets" and "driver" in write[2]]
