"""Faults as context managers: a fault is in effect inside the block and ends after it."""

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from hack.cluster.local import LocalCluster
from tests.e2e.cluster.faults import node
from tests.e2e.cluster.faults.designs import Fault
from tests.e2e.cluster.faults.moments import Gate
from tests.e2e.cluster.release import Release
from tests.e2e.cluster.support import Failed, Kubectl, until

OPERATOR = "app.kubernetes.io/name=dgym,app.kubernetes.io/component=operator"
AGENT = "app.kubernetes.io/name=dgym,app.kubernetes.io/component=agent"
_FORCE = ("--grace-period=0", "--force", "--wait=false")
AWAY_SECONDS = 60.0
RESTART_SECONDS = 5.0
STORE_SECONDS = 35.0
AGENTS = 3


@dataclass(frozen=True)
class Stage:
    """The cluster, a release, the namespace that it watches, and its results directory."""

    cluster: LocalCluster
    release: Release
    episodes: Kubectl
    store: Gate

    @contextmanager
    def one_agent(self) -> Iterator[None]:
        """The same agent pod serves all episodes that begin in the block. Afterwards other agent pods are started."""
        scale_agents(self.release, 1)
        try:
            yield
        finally:
            self.release.kubectl("scale", "deployment", "--selector", AGENT, f"--replicas={AGENTS}")

    def serving_agents(self) -> set[str]:
        """The UIDs of the agent pods that serve an unfinished episode."""
        statuses = [each.get("status", {}) for each in self.episodes.items("episodes")]
        return {each["assignment"]["agentPodUID"] for each in statuses
                if each.get("state") != "Finished" and each.get("assignment")}  # fmt: skip


@contextmanager
def sandbox_killed(stage: Stage, name: str) -> Iterator[None]:
    node.kill(pod_of(stage, name), "sandbox")
    yield


@contextmanager
def sandbox_oom(stage: Stage, name: str) -> Iterator[None]:
    node.exhaust_memory(pod_of(stage, name), "sandbox")
    yield


@contextmanager
def sidecar_killed(stage: Stage, name: str) -> Iterator[None]:
    node.kill(pod_of(stage, name), "sidecar")
    yield


@contextmanager
def pod_deleted(stage: Stage, name: str) -> Iterator[None]:
    pod = pod_of(stage, name)
    stage.episodes("delete", "pod", pod["metadata"]["name"], "--wait=false")
    until(lambda: _gone(stage, pod), what="the pod to go")
    yield


@contextmanager
def pod_evicted(stage: Stage, name: str) -> Iterator[None]:
    """Evict the pod, as ``kubectl drain`` does."""
    pod = pod_of(stage, name)
    path = f"/api/v1/namespaces/{stage.episodes.namespace}/pods/{pod['metadata']['name']}/eviction"
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod["metadata"]["name"]}}
    stage.episodes("create", "--raw", path, "-f", "-", text=json.dumps(eviction))
    until(lambda: _gone(stage, pod), what="the pod to go")
    yield


@contextmanager
def agent_deleted(stage: Stage, name: str) -> Iterator[None]:
    agent = serving(stage, name)
    stage.release.kubectl("delete", "pod", agent["metadata"]["name"], *_FORCE)
    until(lambda: _is_gone(stage.release.kubectl, agent), what="the agent to go")
    yield
    stage.release.wait()


@contextmanager
def agent_restarted(stage: Stage, name: str) -> Iterator[None]:
    agent = serving(stage, name)
    node.kill(agent, agent["spec"]["containers"][0]["name"])
    yield
    stage.release.wait()


@contextmanager
def agent_partitioned(stage: Stage, name: str) -> Iterator[None]:
    """Partition the agent pod until other agent pods serve its episodes."""
    agent = serving(stage, name)
    uid = agent["metadata"]["uid"]
    with node.partitioned(agent, agent["spec"]["containers"][0]["name"]):
        until(lambda: uid not in stage.serving_agents(), what="other agents")
        yield
    stage.release.wait()


@contextmanager
def leader_killed(stage: Stage) -> Iterator[None]:
    leader = until(stage.release.leader, what="a leader")
    stage.release.kubectl("delete", "pod", leader, *_FORCE)
    until(lambda: stage.release.leader() not in (None, leader), what="another leader")
    yield
    stage.release.wait()


@contextmanager
def operators_away(stage: Stage) -> Iterator[None]:
    kubectl = stage.release.kubectl
    kubectl("scale", "deployment", "--selector", OPERATOR, "--replicas=0")
    until(lambda: not kubectl.items("pods", OPERATOR), what="the operators to go")
    yield
    time.sleep(AWAY_SECONDS)
    kubectl("scale", "deployment", "--selector", OPERATOR, "--replicas=2")
    stage.release.wait()


@contextmanager
def component_restarted(stage: Stage, component: str) -> Iterator[None]:
    stage.cluster.stop(component)
    try:
        yield
        time.sleep(RESTART_SECONDS)
    finally:
        stage.cluster.start(component)
    until(lambda: _answers(stage), what="the API server")


@contextmanager
def node_lost(stage: Stage) -> Iterator[None]:
    """Stop the kubelet and kill the episodes' pods. Start the kubelet when the operator has abandoned the pods."""
    pods = stage.episodes.items("pods")
    stage.cluster.stop("kubelet")
    try:
        for pod in pods:
            node.kill_pod(pod)
        yield
        until(lambda: _given_up(stage, pods), what="the pods to be given up", seconds=400)
    finally:
        stage.cluster.start("kubelet")
    stage.release.wait()


@contextmanager
def store_full(stage: Stage) -> Iterator[None]:
    filler = stage.store.root / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    try:
        yield
        time.sleep(STORE_SECONDS)
    finally:
        filler.unlink()


@contextmanager
def store_away(stage: Stage) -> Iterator[None]:
    """Deny the agent pods all access to the results directory."""
    mode = stage.store.root.stat().st_mode
    stage.store.root.chmod(0)
    try:
        yield
        time.sleep(STORE_SECONDS)
    finally:
        stage.store.root.chmod(mode)


@contextmanager
def store_slow(stage: Stage) -> Iterator[None]:
    """Delay each write of the agent pods by seconds."""
    with node.slowed(stage.store.root):
        yield
        time.sleep(STORE_SECONDS)


def of_one(fault: Fault) -> Callable[[Stage, str], AbstractContextManager[None]]:
    """The context manager of a fault that affects an episode or its agent pod."""
    return {
        Fault.SANDBOX_KILLED: sandbox_killed,
        Fault.SANDBOX_OOM: sandbox_oom,
        Fault.SIDECAR_KILLED: sidecar_killed,
        Fault.POD_DELETED: pod_deleted,
        Fault.POD_EVICTED: pod_evicted,
        Fault.AGENT_DELETED: agent_deleted,
        Fault.AGENT_RESTARTED: agent_restarted,
        Fault.AGENT_PARTITIONED: agent_partitioned,
    }[fault]


def of_all(fault: Fault) -> Callable[[Stage], AbstractContextManager[None]]:
    """The context manager of a fault that affects every episode of the cluster."""
    return {
        Fault.LEADER_KILLED: leader_killed,
        Fault.OPERATORS_AWAY: operators_away,
        Fault.API_SERVER_RESTARTED: lambda stage: component_restarted(stage, "kube-apiserver"),
        Fault.ETCD_RESTARTED: lambda stage: component_restarted(stage, "etcd"),
        Fault.NODE_LOST: node_lost,
        Fault.STORE_FULL: store_full,
        Fault.STORE_SLOW: store_slow,
        Fault.STORE_AWAY: store_away,
    }[fault]


def scale_agents(release: Release, replicas: int) -> None:
    """Scale the agent pods and wait until all are ready."""
    release.kubectl("scale", "deployment", "--selector", AGENT, f"--replicas={replicas}")
    until(lambda: len(release.kubectl.items("pods", AGENT)) == replicas, what=f"{replicas} agents")
    release.wait()


def pod_of(stage: Stage, name: str) -> dict[str, Any]:
    """The pod of an episode's attempt."""
    pod = stage.episodes.get("pod", stage.episodes.status(name)["podName"])
    assert pod is not None, stage.episodes.explain(name)
    return pod


def serving(stage: Stage, name: str) -> dict[str, Any]:
    """The agent pod that serves an episode."""
    uid = stage.episodes.status(name)["assignment"]["agentPodUID"]
    return next(pod for pod in stage.release.kubectl.items("pods", AGENT) if pod["metadata"]["uid"] == uid)


def _gone(stage: Stage, pod: dict[str, Any]) -> bool:
    return _is_gone(stage.episodes, pod)


def _is_gone(kubectl: Kubectl, pod: dict[str, Any]) -> bool:
    found = kubectl.get("pod", pod["metadata"]["name"])
    return found is None or found["metadata"]["uid"] != pod["metadata"]["uid"]


def _given_up(stage: Stage, pods: list[dict[str, Any]]) -> bool:
    """True if every episode of these pods has finished or has another pod."""
    uids = {pod["metadata"]["uid"] for pod in pods}
    statuses = [each.get("status", {}) for each in stage.episodes.items("episodes")]
    left = [each for each in statuses if each.get("state") != "Finished"]
    return not any((each.get("podRef") or {}).get("uid") in uids for each in left)


def _answers(stage: Stage) -> bool:
    try:
        return "ok" in stage.episodes("get", "--raw", "/readyz")
    except Failed:
        return False
