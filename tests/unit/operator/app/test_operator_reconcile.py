"""Tests of workers and their queue. The test controls the time."""

import asyncio
import json
from random import Random

import msgspec
import pytest

from dgym.kube import ConnectionLost, Forbidden, WorkQueue
from dgym.wire.assignments import AgentPodReport
from dgym_operator.actions import ApiReader, EpisodeExecutor, ProgressBudget, SetExecutor, Writes
from dgym_operator.app._handlers import EventHandlers
from dgym_operator.app._health import Watchdog
from dgym_operator.app._metrics import Metrics, Snapshot, TransitionObserver
from dgym_operator.app._reconciler import Item, Kind, Reconciler
from dgym_operator.chart_values import NamespacePolicies
from dgym_operator.dispatch import Dispatcher
from dgym_operator.objects import ConfigMapView, EpisodeSetView
from tests.fakes.kube_clocks import ManualClock, settle


class RefusingApi:
    """An API server that accepts every status of a set and refuses its children."""

    def __init__(self):
        self.status = {}
        self.patches = 0
        self.creates = 0

    async def create(self, *_args, **_options):
        self.creates += 1
        await asyncio.sleep(0)
        raise Forbidden("exceeded quota", status=403, reason="Forbidden")

    async def patch(self, _resource, name, body, *, decode, namespace, **_options):
        self.patches += 1
        await asyncio.sleep(0)
        merged = self.status | msgspec.to_builtins(body["status"])
        self.status = {name: value for name, value in merged.items() if value is not None}
        metadata = {"name": name, "namespace": namespace, "uid": f"uid-{name}"}
        metadata["resourceVersion"] = str(1000 + self.patches)
        spec = {"template": {}, "tasks": [{"name": "one"}], "parallelism": 4}
        answer = {"metadata": metadata, "spec": spec, "status": self.status}
        return msgspec.json.decode(json.dumps(answer), type=decode)


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def api():
    return RefusingApi()


@pytest.fixture
def queue(clock):
    return WorkQueue(clock=clock, random=Random(1))


@pytest.fixture
def dispatcher(cache, queue):
    return Dispatcher(
        cache,
        head_start=0,
        stuck_limit=5,
        policies=NamespacePolicies(),
        enqueue=lambda key, **_: queue.add(Item(Kind.EPISODE, key)),
    )


@pytest.fixture
async def working(cache, clock, client, api, events, queue, dispatcher):
    """A worker and the event handlers that fill its queue."""
    metrics = Metrics(Snapshot)
    EventHandlers(
        cache, queue=queue, dispatcher=dispatcher, observer=TransitionObserver(metrics, lambda: False)
    ).start()
    episodes = EpisodeExecutor(
        cache=cache,
        client=client,
        writes=Writes(client, lambda: True),
        reader=ApiReader(client, cache),
        pods=None,
        sidecars=None,
        events=events,
        progress=ProgressBudget(clock, 1.0),
        quota_refused=lambda *_: None,
        pod_created=lambda *_: None,
    )
    reconciler = Reconciler(
        cache=cache,
        queue=queue,
        episodes=episodes,
        sets=SetExecutor(cache=cache, client=api, writes=Writes(api, lambda: True), events=events),
        sandbox_pools=None,
        policies=None,
        dispatcher=dispatcher,
        deliveries=None,
        metrics=metrics,
        watchdog=Watchdog(clock.monotonic, 900.0),
        serves=lambda namespace: True,
    )
    worker = asyncio.ensure_future(reconciler.work(0))
    yield metrics
    queue.close()
    await worker


async def test_an_episode_in_back_off_is_reconciled_when_an_agent_pod_has_a_slot(
    working, cache, objects, clock, queue, dispatcher
):
    assignment = {"agentPodUID": "uid-agent", "epoch": 1, "failures": 1, "failedTime": clock.now().isoformat()}
    cache.agent_pods.observe_report(objects.agent("agent"), AgentPodReport(incarnation="1", slots=0), cache.clock.now())
    pod = objects.pod("fix-1", owner="fix", phase="Running", podIP="10.0.0.2")
    cache.pods.put(pod)
    episode = objects.episode(
        "fix", attempt=1, podName="fix-1", startTime=clock.now().isoformat(), assignment=assignment
    )
    await settle()
    assert queue.delayed == 1
    await clock.advance(15)
    dispatcher.round()
    await settle()
    looks = _looks(working)
    await clock.advance(10)
    assert _looks(working) == looks
    cache.agent_pods.observe_report(
        cache.agent_pods.get("uid-agent"), AgentPodReport(incarnation="1", slots=1), cache.clock.now()
    )
    dispatcher.round()
    assert dispatcher.granted_agent_pod(episode.key) == "uid-agent"


async def test_a_slot_stays_granted_while_it_is_unknown_whether_the_assignment_was_written(
    working, cache, objects, client, clock, dispatcher, monkeypatch
):
    async def lose_the_answer(*_args, **_options):
        raise ConnectionLost("no answer in time")

    monkeypatch.setattr(client, "patch", lose_the_answer)
    cache.agent_pods.observe_report(objects.agent("agent"), AgentPodReport(incarnation="1", slots=1), cache.clock.now())
    ready = [{"type": "Ready", "status": "True"}]
    for name in ("fix", "next"):
        cache.pods.put(objects.pod(f"{name}-1", owner=name, phase="Running", podIP="10.0.0.2", conditions=ready))
        objects.episode(name)
    await settle()
    dispatcher.round()
    await settle()
    dispatcher.round()
    assert dispatcher.granted_agent_pod(("team", "fix")) == "uid-agent"
    assert dispatcher.granted_agent_pod(("team", "next")) is None


def _looks(metrics):
    return metrics.registry.get_sample_value("dgym_operator_reconcile_total", {"kind": "Episode", "result": "ok"})


async def test_a_pod_that_cannot_be_created_for_now_keeps_no_grant(
    working, cache, objects, client, dispatcher, monkeypatch
):
    """Until the next attempt to create the pod, other episodes can use its place."""

    async def lose_the_answer(*_args, **_options):
        raise ConnectionLost("no answer in time")

    for verb in ("get", "patch"):
        monkeypatch.setattr(client, verb, lose_the_answer)
    cache.agent_pods.observe_report(objects.agent("agent"), AgentPodReport(incarnation="1", slots=1), cache.clock.now())
    objects.episode("fix", spec={"task": {}})
    await settle()
    dispatcher.round()
    assert dispatcher.pod_granted(("team", "fix"))
    await settle()
    assert not dispatcher.pod_granted(("team", "fix"))
    objects.episode("next", namespace="other", spec={"task": {}})
    await settle()
    dispatcher.round()
    assert dispatcher.pod_granted(("other", "next"))


async def test_a_set_whose_children_are_refused_does_not_keep_the_api_server_busy(working, cache, api, clock):
    manifest = {"metadata": {"name": "all-tasks", "namespace": "team", "uid": "uid-all-tasks", "resourceVersion": "9"}}
    owner = {
        "apiVersion": "dgym.dev/v1alpha1",
        "kind": "EpisodeSet",
        "name": "all",
        "uid": "uid-all",
        "controller": True,
    }
    manifest["metadata"]["ownerReferences"] = [owner]
    cache.config_maps.put(msgspec.convert({**manifest, "data": {"tasks": "one uid-one\n"}}, ConfigMapView))
    cache.sets.assume(await api.patch(None, "all", {"status": {}}, decode=EpisodeSetView, namespace="team"))
    await clock.advance(10)
    assert 2 <= api.creates <= 8
    assert api.patches <= 25
    before = api.patches
    await clock.advance(300)
    assert api.patches - before <= 30
