"""Tests of agent pools. Only the agent pods of its pool serve the episodes of a namespace.

Each agent pool has its slots.
"""

import pytest

from dgym_operator.actions._networkpolicy import NetworkPolicies
from dgym_operator.cache import AgentPods, Cache
from dgym_operator.chart_values import AgentPodPools, decode_pools
from dgym_operator.controllers import Policy
from dgym_operator.dispatch import Dispatcher, candidate_of
from dgym_operator.dispatch._demand import PendingPod
from dgym_operator.objects import Meta
from dgym_operator.settings import Settings
from tests.unit.operator.conftest import POLICIES, request_pods, serve

POOLS = AgentPodPools(by_namespace={"blue": "sea", "green": "land", "brown": "land"})
TEXT = '[{"name": "sea", "namespaces": ["blue"]}, {"name": "land", "namespaces": ["green", "brown"]}]'


@pytest.fixture
def dispatcher(cache, looked_at):
    def enqueue(key, *, low_priority=False):
        if not low_priority:
            looked_at.append(key)

    return Dispatcher(cache, head_start=1, stuck_limit=3, policies=POLICIES, enqueue=enqueue, pools=POOLS)


def agent_of(pool, objects, cache, name, slots=1):
    agent = objects.agent(name)
    agent.pool = pool
    serve(objects, cache, name, slots)


def request(dispatcher, objects, namespace, name, **status):
    episode = objects.episode(name, namespace=namespace, **status)
    dispatcher.request_agent_pod(episode.key, candidate_of(episode))
    return episode.key


def test_an_episode_gets_an_agent_of_its_pool_alone(dispatcher, objects, cache):
    agent_of("sea", objects, cache, "a", slots=1)
    agent_of("land", objects, cache, "b", slots=5)
    keys = [request(dispatcher, objects, namespace, namespace) for namespace in ("blue", "green", "brown")]
    full = request(dispatcher, objects, "blue", "second")
    dispatcher.round()
    assert [dispatcher.granted_agent_pod(key) for key in keys] == ["uid-a", "uid-b", "uid-b"]
    # The other agent pool has slots. They are not for this episode.
    assert dispatcher.granted_agent_pod(full) is None
    dispatcher.round()
    assert "all slots of the agent pods are used" in dispatcher.hold(full).text


def test_agent_pods_without_a_pool_serve_no_namespace_if_pools_exist(dispatcher, objects, cache):
    serve(objects, cache, "a", slots=5)
    key = request(dispatcher, objects, "blue", "fix")
    dispatcher.round()
    assert dispatcher.granted_agent_pod(key) is None
    assert dispatcher.hold(key).text.endswith("of pool sea")


def test_slots_and_head_start_are_of_each_pool(dispatcher, objects, cache, looked_at):
    agent_of("sea", objects, cache, "a", slots=1)
    request_pods(dispatcher, objects, "b1", "b2", "b3", namespace="blue")
    request_pods(dispatcher, objects, "g1", "g2", namespace="green")
    dispatcher.round()
    assert sorted(looked_at) == [("blue", "b1"), ("blue", "b2"), ("green", "g1")]
    # The reservations of an agent pool do not take the room of another agent pool.
    for name in ("b1", "b2"):
        dispatcher.request_pod(("blue", name), None)
        dispatcher.observe_pod(("blue", name), PendingPod(name=f"{name}-1", needs_slot=True))
    agent_of("land", objects, cache, "b", slots=1)
    dispatcher.round()
    assert looked_at[3:] == [("green", "g2")]


@pytest.mark.parametrize("needs_pod", [True, False])
def test_an_episode_without_a_pool_waits_with_a_remedy(dispatcher, objects, cache, needs_pod):
    agent_of("sea", objects, cache, "a", slots=5)
    if needs_pod:
        request_pods(dispatcher, objects, "fix", namespace="white")
        key = ("white", "fix")
    else:
        key = request(dispatcher, objects, "white", "fix")
    dispatcher.round()
    assert not dispatcher.pod_granted(key)
    assert dispatcher.granted_agent_pod(key) is None
    held = "no pool of agent pods serves namespace white; add it to the namespaces of one of agents.pools (land, sea)"
    assert dispatcher.hold(key).text.startswith(held)


def test_an_outcome_is_looked_for_by_an_agent_of_the_pool(objects, cache):
    agent_of("sea", objects, cache, "a")
    agent_of("land", objects, cache, "b")
    assert cache.agent_pods.recoverer("uid-gone", "land").name == "b"
    assert cache.agent_pods.recoverer("uid-a", "land").name == "b"
    assert cache.agent_pods.recoverer("uid-a", None) is None


def test_the_pool_of_an_agent_is_a_label_of_its_pod(objects):
    assert objects.agent("a").address == ("http://10.0.0.1:8081", "uid-a", "")


def test_without_pools_all_agents_serve_all_namespaces():
    pools = decode_pools("")
    assert (pools.names, pools.of("any")) == (("",), "")
    pools = decode_pools(TEXT)
    assert (pools, pools.names, pools.of("white")) == (POOLS, ("land", "sea"), None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[", "not JSON"),
        ("{}", "agents.pools: Expected `array`"),
        ('[{"name": "a"}]', "missing required field `namespaces`"),
        ('[{"name": "A", "namespaces": ["x"]}]', r"agents.pools\[0\].name: 'A' is not a valid name; use at most 20"),
        ('[{"name": "a", "namespaces": []}]', r"agents.pools\[0\].namespaces: is empty; name the namespaces"),
        (
            '[{"name": "a", "namespaces": ["x"]}, {"name": "a", "namespaces": ["y"]}]',
            r"agents.pools\[1\].name: 'a' is the name of another pool",
        ),
        (
            '[{"name": "a", "namespaces": ["x"]}, {"name": "b", "namespaces": ["x"]}]',
            "namespace x is in the pools a and b; a namespace can be in one pool only: remove it from one",
        ),
    ],
)
def test_wrong_pools_are_refused_at_the_start(text, expected):
    with pytest.raises(ValueError, match=expected):
        Settings(agent_pools=text)


class Applied:
    """Records the policy that is applied."""

    async def apply(self, _resource, name, manifest, *, decode, namespace):
        self.manifest = manifest
        return decode(metadata=Meta(name=name, namespace=namespace), spec=manifest["spec"])


async def test_only_agents_of_the_pool_reach_the_sandboxes_of_its_namespaces(clock):
    async def admitted(namespace, **settings):
        writes, cache = Applied(), Cache(clock, AgentPods(clock, port=1, silence_seconds=1.0), Policy())
        policies = NetworkPolicies(
            cache=cache, writes=writes, settings=Settings(**settings), events=None, restored=lambda: None
        )
        await policies.ensure(namespace)
        (rule,) = writes.manifest["spec"]["ingress"]
        return rule["from"][1]["podSelector"]["matchLabels"].get("dgym.dev/pool")

    assert await admitted("brown", agent_pools=TEXT) == "land"
    assert await admitted("brown") is None
