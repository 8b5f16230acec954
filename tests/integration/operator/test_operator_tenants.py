"""Tests of tenant namespaces on a real API server: LimitRanges, inherited labels, limits and default resources."""

import json

from dgym_operator.chart_values import decode_policies
from tests.integration.operator.conftest import TASK
from tests.integration.operator.peers import MERGE, until


async def make_set(installation, name, *, parallelism=2, agent=None, **metadata):
    for task in ("a", "b"):
        await installation.create("DebugTask", task, TASK)
    template = {"agent": agent or {"name": "solution"}}
    spec = {"tasks": [{"name": "a"}, {"name": "b"}], "parallelism": parallelism, "template": template}
    await installation.create("EpisodeSet", name, spec, **metadata)


async def test_a_limit_range_that_never_fits_is_explained_before_episodes_are_lost(installation):
    ranges = installation.core("limitranges")
    most = {"limits": [{"type": "Container", "max": {"memory": "1Gi"}}]}
    await installation.api.call("POST", ranges, {"metadata": {"name": "small"}, "spec": most})
    await installation.start_agent()
    await installation.start_operator()
    await make_set(installation, "all", parallelism=1)

    async def explained():
        found = await installation.get("all", "episodesets")
        return found if "dgym's default" in found.get("status", {}).get("message", "") else None

    status = (await until(explained, "the set names the default"))["status"]
    assert "maximum memory usage per Container is 1Gi, but limit is 2Gi" in status["message"]
    assert "limits.memory 2Gi; set resources of DebugTask a or podOverrides.resources" in status["message"]
    assert status.get("failed", 0) == 0
    await installation.api.call("DELETE", f"{ranges}/small")
    assert (await installation.finished("all", "episodesets"))["status"]["resolved"] == 2


async def test_pods_have_what_the_administrator_lists(installation):
    agent = await installation.start_agent()
    agent.playing = False
    sandbox = {"requests": {"cpu": "250m"}, "limits": {"memory": "3Gi", "ephemeral-storage": "1Gi"}}
    await installation.start_operator(
        inherited_labels="example.com/cost-centre",
        inherited_annotations="example.com/*",
        default_resources=json.dumps({"sandbox": sandbox}),
        namespace_policies=decode_policies('{"defaults": {"limits": {"maxSteps": 20}}}'),
    )
    labels = {"example.com/cost-centre": "42", "example.com/other": "x"}
    annotations = {"example.com/owner": "research", "elsewhere.com/owner": "x"}
    await make_set(installation, "all", labels=labels, annotations=annotations)
    await until(lambda: len(agent.held) == 2, "all are assigned")
    pod = (await installation.pods())["all-0-1"]
    assert pod["metadata"]["labels"]["example.com/cost-centre"] == "42"
    assert "example.com/other" not in pod["metadata"]["labels"]
    assert pod["metadata"]["annotations"]["example.com/owner"] == "research"
    assert "elsewhere.com/owner" not in pod["metadata"]["annotations"]
    container = {each["name"]: each["resources"] for each in pod["spec"]["containers"]}
    assert container["sandbox"]["limits"] == container["verifier"]["limits"] == sandbox["limits"]
    assert container["sandbox"]["requests"]["cpu"] == "250m"
    assert {each.agent["maxSteps"] for each in agent.held.values()} == {20}


async def test_a_quota_that_no_pod_ever_fits_is_explained_before_episodes_are_lost(installation):
    await installation.start_agent()
    hard = {"limits.memory": "1Gi"}
    path = installation.core("resourcequotas", "tiny")
    quota = {"metadata": {"name": "tiny"}, "spec": {"hard": hard}}
    await installation.api.call("POST", installation.core("resourcequotas"), quota)
    await installation.api.call(
        "PATCH", f"{path}/status", {"status": {"hard": hard, "used": {"limits.memory": "0"}}}, MERGE
    )
    await installation.start_operator()
    await installation.create("DebugTask", "bug", TASK)
    template = {"agent": {"name": "solution"}}
    spec = {"tasks": [{"name": "bug"}], "samples": 200, "parallelism": 10, "template": template}
    await installation.create("EpisodeSet", "all", spec)

    async def waiting():
        found = (await installation.get("all", "episodesets")).get("status", {})
        return found if found.get("waiting") == "quota 10" else None

    status = await until(waiting, "all wait for the quota")
    assert "the pod alone is more than the quota" in status["message"]
    assert "dgym's default for the sandbox is limits.memory 2Gi" in status["message"]
    assert "set resources of DebugTask bug or podOverrides.resources" in status["message"]
    assert status.get("failed", 0) == 0

    async def children():
        found = await installation.api.items(installation.path("episodes"))
        messages = [each.get("status", {}).get("message", "") for each in found]
        return messages if len(messages) == 10 and all(messages) else None

    messages = await until(children, "each child shows what it waits for")
    assert all("the pod alone is more than the quota" in message for message in messages), messages
    assert all("dgym's default for the sandbox is limits.memory 2Gi" in message for message in messages), messages
    assert not any("starts when one ends" in message for message in messages), messages
