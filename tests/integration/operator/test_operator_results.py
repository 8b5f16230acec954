"""Tests of the results that the operator serves to tenants. A tenant may read results of its own namespace only."""

import base64
import uuid

import aiohttp
import msgspec
import pytest
from yarl import URL

from dgym.episodes.agent_pod import AgentPodApi, Assignments, Breakers, Tokens
from dgym.episodes.agent_pod import Metrics as AgentMetrics
from dgym.results import StoredResult, open_store
from dgym.wire.assignments import RESULTS_AUDIENCE, make_results_token
from dgym.wire.http import token_digest
from tests.integration.operator.peers import Agent, until

RBAC = "/apis/rbac.authorization.k8s.io/v1/namespaces"
REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
RULE = {"apiGroups": ["dgym.dev"], "resources": ["episodes/results"], "verbs": ["get"]}


class Tenant:
    """A namespace with a ServiceAccount that may read its results."""

    def __init__(self, api, store):
        self._api = api
        self._store = store
        self.namespace = f"team-{uuid.uuid4().hex[:10]}"

    async def make(self):
        await self._api.call("POST", "/api/v1/namespaces", {"metadata": {"name": self.namespace}})
        await self._api.call(
            "POST", f"/api/v1/namespaces/{self.namespace}/serviceaccounts", {"metadata": {"name": "me"}}
        )
        role = {"metadata": {"name": "reader"}, "rules": [RULE]}
        await self._api.call("POST", f"{RBAC}/{self.namespace}/roles", role)
        subject = {"kind": "ServiceAccount", "name": "me", "namespace": self.namespace}
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"}
        binding = {"metadata": {"name": "reader"}, "subjects": [subject], "roleRef": reference}
        await self._api.call("POST", f"{RBAC}/{self.namespace}/rolebindings", binding)
        attempt = self._store / self.namespace / "fix" / "uid-1" / "1"
        attempt.mkdir(parents=True)
        result = StoredResult(
            namespace=self.namespace, episode="fix", attempt=1, resolved=True, reason="Resolved", score=1, max_score=1
        )
        (attempt / "result.json").write_bytes(msgspec.json.encode(result))
        (attempt / "patch.diff").write_text("+line\n" * 200_000)

        async def allowed():
            resource = {"group": "dgym.dev", "resource": "episodes", "subresource": "results", "verb": "get"}
            user = f"system:serviceaccount:{self.namespace}:me"
            spec = {"user": user, "resourceAttributes": {**resource, "namespace": self.namespace}}
            return (await self._api.call("POST", REVIEWS, {"spec": spec}))["status"]["allowed"]

        await until(allowed, "the authorizer has read the role")
        return self

    async def token(self, audience=""):
        path = f"/api/v1/namespaces/{self.namespace}/serviceaccounts/me/token"
        spec = {"expirationSeconds": 600, **({"audiences": [audience]} if audience else {})}
        return (await self._api.call("POST", path, {"spec": spec}))["status"]["token"]

    async def delete_account(self):
        await self._api.call("DELETE", f"/api/v1/namespaces/{self.namespace}/serviceaccounts/me")


async def read(operator, path, authorization=""):
    """Status and body of a request for results. The path is sent without normalization."""
    url = URL(f"http://127.0.0.1:{operator.port}/v1/results/{path}", encoded=True)
    headers = {"Authorization": authorization} if authorization else {}
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as answer:
        return answer.status, await answer.read()


@pytest.fixture
async def served(installation, tmp_path):
    """A leading operator and an agent pod with a store, and a function that makes tenants."""
    operator = await installation.start_operator()
    secret = await until(lambda: installation.api.find(installation.core("secrets", "dgym-key")), "there is a key")
    tokens, store = tmp_path / "tokens", tmp_path / "store"
    tokens.mkdir()
    store.mkdir()
    digest = token_digest(make_results_token(base64.b64decode(secret["data"]["key"])))
    (tokens / "results-token-sha256").write_text(digest)
    async with Assignments(lambda *_: None, slots=1) as assignments:
        agent = Agent(
            installation.api, installation.namespace, installation.kubelet, name="agent-0", port=installation.agent_port
        )
        api = AgentPodApi(assignments, open_store(str(store)), Tokens(tokens), AgentMetrics(), breakers=Breakers())
        agent._application = api.application()
        await agent.start()
        installation.agents.append(agent)
        await until(lambda: any(each.url for each in operator.cache.agent_pods), "the operator sees the agent pod")
        yield operator, lambda: Tenant(installation.api, store).make(), store


async def test_a_tenant_reads_the_results_of_the_own_namespace_and_of_no_other(served, installation):
    operator, make_tenant, store = served
    one, two = await make_tenant(), await make_tenant()
    mine, theirs = f"Bearer {await one.token()}", f"Bearer {await two.token()}"
    status, body = await read(operator, f"{one.namespace}/fix", mine)
    paths = sorted(file["path"] for file in msgspec.json.decode(body)["files"])
    assert (status, paths) == (200, [f"{one.namespace}/fix/uid-1/1/{name}" for name in ("patch.diff", "result.json")])
    for path in paths:
        assert await read(operator, path, mine) == (200, (store / path).read_bytes())
        status, body = await read(operator, path, theirs)
        assert status == 403
        message = msgspec.json.decode(body)["message"]
        assert f"user system:serviceaccount:{two.namespace}:me may not get episodes/results" in message
    assert (await read(operator, one.namespace, mine))[0] == 200
    assert (await read(operator, two.namespace, mine))[0] == 403
    assert (await read(operator, f"{two.namespace}/fix", theirs))[0] == 200
    admin = f"Bearer {installation.server.token}"
    assert [(await read(operator, f"{each.namespace}/fix", admin))[0] for each in (one, two)] == [200, 200]

    standby = await installation.start_operator()
    await until(lambda: any(each.url for each in standby.cache.agent_pods), "the other replica sees the agent pod")
    assert await read(standby, paths[0], mine) == (200, (store / paths[0]).read_bytes())
    assert (await read(standby, paths[0], theirs))[0] == 403


async def test_tokens_that_prove_nothing_are_refused(served):
    operator, make_tenant, _ = served
    tenant = await make_tenant()
    path = f"{tenant.namespace}/fix"
    assert (await read(operator, path, f"Bearer {await tenant.token(RESULTS_AUDIENCE)}"))[0] == 200
    own = await tenant.token()
    elsewhere = await tenant.token("other.example")
    header, payload, _ = own.split(".")
    forged = f"{header}.{payload}.{base64.urlsafe_b64encode(bytes(256)).decode().rstrip('=')}"
    for authorization in ("", "Bearer ", "Bearer x", f"Basic {own}", f"Bearer {elsewhere}", f"Bearer {forged}"):
        assert (await read(operator, path, authorization))[0] == 401, authorization
    await tenant.delete_account()

    async def refused():
        # A token that was not used before: decisions are cached for some seconds.
        return (await read(operator, f"{tenant.namespace}", f"Bearer {own}"))[0] == 401

    await until(refused, "the token of a deleted account is refused")


async def test_a_path_leads_to_no_other_namespace(served):
    operator, make_tenant, _ = served
    one, two = await make_tenant(), await make_tenant()
    token = f"Bearer {await one.token()}"
    for path in (
        f"{one.namespace}/..%2F{two.namespace}%2Ffix",
        f"{one.namespace}%2F..%2F{two.namespace}/fix",
        f"{one.namespace}/%2e%2e/{two.namespace}/fix/uid-1/1/result.json",
        f"{one.namespace}/%2e%2e/uid-1/1/result.json",
        f"{one.namespace}/fix/%2e%2e/1/..%2f..%2f..%2f{two.namespace}%2ffix%2fuid-1%2f1%2fresult.json",
        f"{one.namespace}/fix/uid-1/1/result.json%00",
        f"{one.namespace}/fix%3F/uid-1/1/result.json",
    ):
        status, body = await read(operator, path, token)
        assert status in (403, 404), path
        assert b"Resolved" not in body
