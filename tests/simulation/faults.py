"""Faults of schedules: their targets and their effects."""

import asyncio
from typing import NamedTuple

from dgym.api import RETRY_KEY
from tests.simulation.api_server import Refusal, is_finished
from tests.simulation.sidecar import NAMESPACE

KINDS = (
    "leader: killed",
    "leader: stopped",
    "leader: partitioned",
    "leader: slowed",
    "leader: frozen",
    "leader: killed at an await",
    "leader: frozen as it writes",
    "leader: late with a write",
    "cluster: leader and pod lost after an assignment",
    "replicas: killed",
    "agent: restarted",
    "agent: deleted",
    "agent: drained",
    "agent: partitioned",
    "agent: cut off from the store",
    "pod: deleted",
    "pod: without its sidecar",
    "pod: out of memory",
    "pod: without its sandbox",
    "pod: on a lost node",
    "pod: on a rebooted node",
    "pod: with a sidecar that hangs",
    "cluster: server away",
    "cluster: watches cut off",
    "cluster: watches lag",
    "cluster: history compacted",
    "cluster: store away",
    "cluster: agent and node lost after an outcome",
    "cluster: agent and pod lost as it stores",
    "cluster: agent and pod deleted as it stores",
    "cluster: operators and pod lost as an agent stores",
    "episode: suspended",
    "episode: suspended as watches lag",
    "episode: cancelled",
    "driver: crashed",
    "policy: deleted",
    "policy: changed",
    "cluster: model away",
)
STRANGER = "episode: its next pod taken by a stranger"
"""A tenant creates a pod with the name, the labels and the owner of the Episode's next pod, and deletes it later."""
CANCELLED_SET = "set: cancelled"
USERS = ("set: suspended", "set: scaled down", "set: retried", "set: without one of its episodes")
"""Changes that users make to an EpisodeSet."""
HARMLESS = (
    "leader",
    "replicas",
    "cluster: server",
    "cluster: watches",
    "cluster: history",
    "cluster: store away",
    "cluster: model away",
    "policy",
)
"""Prefixes of the faults that must not cause the loss of an attempt."""


class Fault(NamedTuple):
    """A fault and its time. ``choice`` selects the target, and ``seconds`` is the duration."""

    at: float
    kind: str
    choice: int
    seconds: float

    @property
    def is_harmless(self):
        """True if every attempt must survive the fault."""
        return self.kind.startswith(HARMLESS)


class Injector:
    """Applies faults to the models and the replicas."""

    def __init__(self, api, world, replicas, slots):
        self._api = api
        self._world = world
        self._replicas = replicas
        self._slots = slots

    async def inflict(self, fault):
        """Wait until the fault's time, and apply it. If the fault has a duration, wait for its end."""
        await asyncio.sleep(fault.at)
        pods = [
            each["metadata"]["name"]
            for each in self._api.items("pods")
            if each["metadata"].get("labels", {}).get("app.kubernetes.io/component") == "sandbox"
        ]
        subject, _, verb = fault.kind.partition(": ")
        target = {
            "leader": lambda: self._leader,
            "replicas": lambda: self._replicas,
            "agent": lambda: _pick([agent for agent in self._world.agents if agent.alive], fault.choice),
            "pod": lambda: _pick(pods, fault.choice),
            "cluster": lambda: self._world,
            "episode": lambda: _pick(self._api.items("episodes"), fault.choice),
            "driver": lambda: _pick(list(self._world.drivers.values()), fault.choice),
            "policy": lambda: _pick(self._api.items("networkpolicies"), 0),
            "set": lambda: _pick(self._api.items("episodesets"), 0),
        }[subject]()
        if target is not None:
            await getattr(self, f"_{subject}_{verb.replace(' ', '_')}")(target, fault.seconds)

    @property
    def _leader(self):
        return next((each for each in self._replicas if each.leads), self._replicas[0])

    async def _leader_killed(self, leader, _seconds):
        leader.kill()

    async def _leader_stopped(self, leader, _seconds):
        leader.stop()

    async def _leader_partitioned(self, leader, seconds):
        leader.transport.cut_until = _after(seconds)

    async def _leader_slowed(self, leader, seconds):
        leader.transport.slow_until = _after(seconds)

    async def _leader_frozen(self, leader, seconds):
        leader.transport.frozen_until = _after(seconds)

    async def _leader_killed_at_an_await(self, leader, seconds):
        leader.transport.blow, leader.transport.fuse = leader.kill, 1 + int(seconds)

    async def _leader_frozen_as_it_writes(self, leader, seconds):
        """Freeze between the leadership check and the write, for longer than the Lease lasts."""
        leader.transport.writes_until_frozen = 1 + int(seconds) % 5
        leader.transport.frozen_seconds = 30.0 + 2.0 * seconds

    async def _leader_late_with_a_write(self, leader, seconds):
        """Delay a request in the network.

        Its sender gets no response, and the request arrives long after later requests.
        """
        leader.transport.writes_until_late = 1 + int(seconds) % 5
        leader.transport.late_seconds = 10.0 + seconds

    async def _cluster_leader_and_pod_lost_after_an_assignment(self, _world, seconds):
        """Lose the leader and the pod after an assignment.

        The watch of pods shows the loss, and the watch of Episodes lags.
        """
        self._api.lagging, self._api.lags_until = ("episodes",), _after(40.0)
        before, deadline = self._assigned(), _after(seconds)
        while not (new := self._assigned() - before) and _after(0.0) < deadline:
            await asyncio.sleep(0.2)
        self._leader.stop()
        for _, pod, _ in new:
            self._delete(pod)

    def _assigned(self):
        """Return the name, pod and epoch of each Episode that is assigned to an agent pod."""
        return {
            (each["metadata"]["name"], each["status"]["podName"], each["status"]["assignment"]["epoch"])
            for each in self._api.items("episodes")
            if each.get("status", {}).get("assignment") and each["status"].get("podName")
        }

    async def _replicas_killed(self, replicas, _seconds):
        for replica in replicas:
            replica.kill()

    async def _agent_restarted(self, agent, _seconds):
        agent.restart()

    async def _agent_deleted(self, agent, seconds):
        agent.delete()
        await asyncio.sleep(seconds)
        self._world.start_agent(self._slots)

    async def _agent_drained(self, agent, seconds):
        """Send SIGTERM. The agent pod finishes its assignments within the grace period."""
        agent.draining = True
        self._world.start_agent(self._slots)
        deadline = _after(seconds)
        while not agent.idle and _after(0.0) < deadline:
            await asyncio.sleep(1.0)
        # The report contains a finished assignment for some time, so that the operator reads it.
        await asyncio.sleep(7.0)
        agent.delete()

    async def _agent_partitioned(self, agent, seconds):
        agent.cut(seconds)

    async def _agent_cut_off_from_the_store(self, agent, seconds):
        agent.without_store_until = _after(seconds)

    async def _pod_deleted(self, pod, _seconds):
        self._delete(pod)

    def _delete(self, pod):
        if self._api.get("pods", NAMESPACE, pod) is not None:
            self._api.delete("pods", NAMESPACE, pod)

    async def _pod_without_its_sidecar(self, pod, _seconds):
        sidecar = self._world.sidecar_of(pod)
        if sidecar is not None:
            sidecar.kill()

    async def _pod_out_of_memory(self, pod, _seconds):
        self._kill_sandbox(pod, "OOMKilled")

    async def _pod_without_its_sandbox(self, pod, _seconds):
        self._kill_sandbox(pod, "Error")

    def _kill_sandbox(self, pod, reason):
        sidecar = self._world.sidecar_of(pod)
        if sidecar is not None and sidecar.ending is None:
            sidecar.kill_sandbox(reason)

    async def _pod_on_a_lost_node(self, pod, _seconds):
        self._world.kubelet.lose_node(pod)

    async def _pod_on_a_rebooted_node(self, pod, seconds):
        await self._world.kubelet.reboot_node(pod, seconds)

    async def _pod_with_a_sidecar_that_hangs(self, pod, seconds):
        sidecar = self._world.sidecar_of(pod)
        if sidecar is not None:
            sidecar.hung_until = max(sidecar.hung_until, _after(seconds))

    async def _episode_suspended(self, episode, seconds):
        self._patch(episode, {"suspend": True})
        await asyncio.sleep(seconds)
        self._patch(episode, {"suspend": False})

    async def _episode_cancelled(self, episode, _seconds):
        self._world.cancelled.add(episode["metadata"]["uid"])
        self._patch(episode, {"cancel": True})

    async def _set_cancelled(self, episode_set, _seconds):
        self._world.cancelled.add(episode_set["metadata"]["uid"])
        self._change_set(episode_set, spec={"cancel": True})

    async def _set_suspended(self, episode_set, seconds):
        self._change_set(episode_set, spec={"suspend": True})
        await asyncio.sleep(seconds)
        self._change_set(episode_set, spec={"suspend": False})

    async def _set_scaled_down(self, episode_set, seconds):
        parallelism = episode_set["spec"]["parallelism"]
        self._change_set(episode_set, spec={"parallelism": int(seconds) % max(1, parallelism)})
        await asyncio.sleep(seconds)
        self._change_set(episode_set, spec={"parallelism": max(1, parallelism)})

    async def _set_retried(self, episode_set, seconds):
        """Retry all failed episodes, or those with certain reasons."""
        reasons = ("", " SetupFailed", " SandboxLost,AgentPodLost", " Resolved")[int(seconds) % 4]
        self._change_set(episode_set, metadata={"annotations": {RETRY_KEY: f"{seconds:.3f}{reasons}"}})

    async def _set_without_one_of_its_episodes(self, _episode_set, seconds):
        episodes = [each for each in self._api.items("episodes") if not is_finished(each)]
        if episodes:
            self._api.delete("episodes", NAMESPACE, _pick(episodes, int(seconds))["metadata"]["name"])

    def _change_set(self, episode_set, **change):
        self._api.patch("episodesets", NAMESPACE, episode_set["metadata"]["name"], change, status=False)

    def _patch(self, episode, spec):
        self._api.patch("episodes", NAMESPACE, episode["metadata"]["name"], {"spec": spec}, status=False)

    async def _episode_its_next_pod_taken_by_a_stranger(self, episode, seconds):
        metadata, status = episode["metadata"], episode.get("status", {})
        attempt = status.get("attempt", 0) + 1
        name = f"{metadata['name']}-{attempt}"
        owner = {"kind": "Episode", "name": metadata["name"], "uid": metadata["uid"], "controller": True}
        labels = {
            "app.kubernetes.io/name": "dgym", "app.kubernetes.io/component": "sandbox",
            "dgym.dev/episode": metadata["name"], "dgym.dev/attempt": str(attempt),
        }  # fmt: skip
        if is_finished(episode) or self._api.get("pods", NAMESPACE, name) is not None:
            return
        body = {"metadata": {"name": name, "labels": labels, "ownerReferences": [owner]}, "spec": {}}
        try:
            made = self._api.create("pods", NAMESPACE, body)
        except Refusal:
            # The quota is exhausted.
            return
        self._world.strangers.append(made["metadata"]["uid"])
        await asyncio.sleep(seconds)
        if self._world.is_strangers(name):
            self._delete(name)

    async def _policy_deleted(self, policy, _seconds):
        self._api.delete("networkpolicies", NAMESPACE, policy["metadata"]["name"])

    async def _policy_changed(self, policy, _seconds):
        """Open the network, as a tenant could."""
        change = {"spec": {"egress": [{}]}}
        self._api.patch("networkpolicies", NAMESPACE, policy["metadata"]["name"], change, status=False)

    async def _driver_crashed(self, driver, _seconds):
        driver.crashed = True

    async def _episode_suspended_as_watches_lag(self, episode, seconds):
        self._api.lags_until = _after(10.0 + seconds)
        await self._episode_suspended(episode, seconds)

    async def _cluster_server_away(self, _world, seconds):
        self._api.away_until = _after(seconds)

    async def _cluster_watches_cut_off(self, _world, _seconds):
        self._api.drop_watches()

    async def _cluster_watches_lag(self, _world, seconds):
        self._api.lags_until = _after(seconds)

    async def _cluster_history_compacted(self, _world, _seconds):
        self._api.compact()

    async def _cluster_store_away(self, world, seconds):
        world.store.away_until = _after(seconds)

    async def _cluster_model_away(self, world, seconds):
        world.model_away_until = _after(seconds)

    async def _cluster_agent_and_node_lost_after_an_outcome(self, world, seconds):
        agent, assignment = await world.stored_first
        agent.cut(4.0 * seconds)
        world.kubelet.lose_node(assignment.pod_name)

    async def _cluster_agent_and_pod_lost_as_it_stores(self, world, seconds):
        """Cut the agent pod off from everything except the store, whose response is delayed."""
        agent, pod = await self._storing(world, 2.0 * seconds)
        agent.cut(240.0)
        world.kubelet.lose_node(pod)

    async def _cluster_agent_and_pod_deleted_as_it_stores(self, world, seconds):
        """Delete both. The outcome is then only in the pod's termination message."""
        agent, pod = await self._storing(world, seconds)
        agent.delete()
        self._delete(pod)
        await asyncio.sleep(seconds)
        world.start_agent(self._slots)

    async def _cluster_operators_and_pod_lost_as_an_agent_stores(self, world, seconds):
        """Kill the replicas. The next leader reaches the agent pod with the outcome later than the other agent pods."""
        agent, pod = await self._storing(world, 30.0 + seconds)
        world.sidecar_of(pod).kill()
        self._delete(pod)
        await asyncio.sleep(seconds / 10.0)
        for replica in self._replicas:
            replica.kill()
        agent.cut(15.0)

    @staticmethod
    async def _storing(world, seconds):
        """Find an agent pod that will store an outcome next. Block its store for this time.

        Return it and the sandbox pod.
        """
        while True:
            for agent in world.agents:
                pod = agent.storing_pod
                if pod is not None:
                    agent.without_store_until = _after(seconds)
                    return agent, pod
            await asyncio.sleep(0.2)


def _pick(candidates, choice):
    return candidates[choice % len(candidates)] if candidates else None


def _after(seconds):
    return asyncio.get_running_loop().time() + seconds
