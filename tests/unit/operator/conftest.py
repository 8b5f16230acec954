from datetime import UTC, datetime, timedelta
from random import Random

import msgspec
import pytest

from dgym.kube import Client, ClusterAccess, Credentials, EventRecorder, SystemClock, WorkQueue
from dgym.wire.assignments import AgentPodReport
from dgym_operator.app._handlers import EventHandlers
from dgym_operator.app._metrics import Metrics, Snapshot, TransitionObserver
from dgym_operator.cache import AgentPods, Cache
from dgym_operator.chart_values import Limits, NamespacePolicies, NamespacePolicy
from dgym_operator.controllers import Policy
from dgym_operator.dispatch import Dispatcher, candidate_of, pending_pod
from dgym_operator.objects import EpisodeSetView, EpisodeView, Pod


class SteppedClock:
    """A clock that the test moves."""

    def __init__(self):
        self.seconds = 1000.0

    def monotonic(self):
        return self.seconds

    def now(self):
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.seconds)

    async def sleep(self, seconds):
        self.seconds += seconds


class Objects:
    """Creates Episodes and pods in the cache, as a watch does."""

    def __init__(self, cache):
        self._cache = cache
        self._version = 0

    def episode(self, name, *, namespace="team", created=0, spec=None, set_name="", set_uid="", index=0, **status):
        metadata = self._metadata(name, created, namespace)
        if set_name:
            metadata |= _owned("EpisodeSet", set_name, set_uid) | {"labels": {"dgym.dev/index": str(index)}}
        given = {"metadata": metadata, "spec": {"agent": {"name": "solution"}, **(spec or {})}, "status": status}
        episode = msgspec.convert(given, EpisodeView)
        self._cache.episodes.put(episode)
        return episode

    def episode_set(self, name, **status):
        given = {"metadata": self._metadata(name, 0), "spec": {"template": {}}, "status": status}
        return msgspec.convert(given, EpisodeSetView)

    def pod(self, name, owner="", namespace="team", **status):
        metadata = self._metadata(name, 0, namespace)
        if owner:
            metadata |= _owned("Episode", owner) | {"labels": {"dgym.dev/attempt": "1"}}
        return msgspec.convert({"metadata": metadata, "status": status}, Pod)

    def agent(self, name, **status):
        ready = {"phase": "Running", "podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}
        pod = self.pod(name, **{**ready, **status})
        self._cache.agent_pods.observe_pod(pod)
        return self._cache.agent_pods.get(f"uid-{name}")

    def _metadata(self, name, created, namespace="team"):
        self._version += 1
        moment = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=created)
        identity = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "resourceVersion": str(self._version)}
        return {**identity, "creationTimestamp": moment.isoformat()}


def _owned(kind, name, uid=""):
    owner = {"apiVersion": "v1", "kind": kind, "name": name, "uid": uid or f"uid-{name}", "controller": True}
    return {"ownerReferences": [owner]}


@pytest.fixture
def clock():
    return SteppedClock()


@pytest.fixture
def cache(clock):
    return Cache(clock, AgentPods(clock, port=8081, silence_seconds=30.0), Policy())


@pytest.fixture
def objects(cache):
    return Objects(cache)


@pytest.fixture
def client():
    """A client that is never opened. A request to the API server fails."""
    access = ClusterAccess(server="http://127.0.0.1:1", credentials=Credentials(None))
    return Client(access, clock=SystemClock(), random=Random(1))


@pytest.fixture
def events(client, clock):
    """A recorder without room, so that ``dropped`` counts the recorded Events."""
    return EventRecorder(client, controller="dgym.dev/test", instance="1", clock=clock, random=Random(1), limit=0)


POLICIES = NamespacePolicies(
    overrides={
        "few": NamespacePolicy(max_active=2),
        "none": NamespacePolicy(max_active=0),
        "heavy": NamespacePolicy(weight=3),
        "modest": NamespacePolicy(limits=Limits(priority=5)),
    }
)


@pytest.fixture
def looked_at():
    return []


@pytest.fixture
def again():
    """Names of the episodes that are queued because the cause of their wait has changed."""
    return []


@pytest.fixture
def dispatcher(cache, looked_at, again):
    def enqueue(key, *, low_priority=False):
        (again if low_priority else looked_at).append(key[1])

    return Dispatcher(cache, head_start=1, stuck_limit=3, policies=POLICIES, enqueue=enqueue)


@pytest.fixture
def queue():
    return WorkQueue(clock=SystemClock(), random=Random(1))


@pytest.fixture
def handlers(cache, queue):
    dispatcher = Dispatcher(
        cache, head_start=0, stuck_limit=5, policies=NamespacePolicies(), enqueue=lambda key, **_: None
    )
    observer = TransitionObserver(Metrics(Snapshot), lambda: False)
    return EventHandlers(cache, queue=queue, dispatcher=dispatcher, observer=observer)


def serve(objects, cache, name="agent", slots=2, *, draining=False):
    cache.agent_pods.observe_report(
        objects.agent(name), AgentPodReport(incarnation="1", slots=slots, draining=draining), cache.clock.now()
    )


def request_pods(dispatcher, objects, *names, namespace="team", **spec):
    for number, name in enumerate(names):
        episode = objects.episode(name, namespace=namespace, created=number, spec=spec)
        dispatcher.request_pod(episode.key, candidate_of(episode))


def unschedulable(message="0/1 nodes are available", reason="Unschedulable"):
    scheduled = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
    return {"phase": "Pending", "conditions": [scheduled]}


def no_image():
    waiting = {"reason": "ErrImagePull", "message": "not found"}
    return {"phase": "Pending", "containerStatuses": [{"name": "sandbox", "state": {"waiting": waiting}}]}


def pulling():
    waiting = {"reason": "ContainerCreating", "message": ""}
    return {"phase": "Pending", "containerStatuses": [{"name": "sandbox", "state": {"waiting": waiting}}]}


def create_pod(dispatcher, objects, cache, name, namespace="team", **status):
    """Record that the Episode's pod was created and that the watch shows the pod."""
    cache.pods.put(objects.pod(f"{name}-1", owner=name, namespace=namespace, **status))
    key = (namespace, name)
    dispatcher.request_pod(key, None)
    dispatcher.observe_pod(key, pending_pod(cache, cache.episodes.get(key)))
    dispatcher.round()
