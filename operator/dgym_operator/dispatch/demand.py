"""What episodes request and have been granted, with the counts that admission takes of it.

The counts are kept as requests, grants and pods change: a round of the dispatcher costs the same for a hundred and for
ten thousand episodes.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from dgym.kube import Key
from dgym_operator.controllers.episode import Cause
from dgym_operator.dispatch.admission import Candidate, Requests
from dgym_operator.dispatch.holds import Stuck
from dgym_operator.pools import AgentPools


class PendingPod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that no agent serves.

    Attributes:
        name: Of the pod.
        needs_slot: Whether its episode needs one.
        stuck: Why it cannot start for now, so that no slot is reserved.
        displaced: Whether an agent has served it: its model failed or the agent was lost.
        image: Of its task; empty: the default one.
        has_image: Whether the image is on the pod's node.
        model: Of its agent; empty: the agent asks none.
    """

    name: str
    needs_slot: bool
    stuck: Cause | None = None
    displaced: bool = False
    image: str = ""
    has_image: bool = False
    model: str = ""


class _Share(NamedTuple):
    """What an episode adds to the counts."""

    reserves: bool = False
    """A slot: its sandbox starts or is ready, or it waits for another agent."""
    granted: bool = False
    """An agent, whose slot is counted with the agent."""
    starts: bool = False
    """It has a sandbox that starts or is ready, or is granted one, and is not assigned yet."""
    backs_off: bool = False
    """It waits with a pod for its model: for the end of a back-off, or of an outage."""
    images: tuple[str, ...] = ()
    """That are pulled for it. Those of pods that are stuck do not count: a pull may take too long."""
    stuck: Stuck | None = None


_NOTHING = _Share()


class Demand:
    """Requests and grants of pods and agents, and the pods that no agent serves, by the key of the Episode.

    Attributes:
        pod_requests: Episodes that request a pod.
        agent_requests: Episodes that request an agent.
        pods_granted: Episodes that may create a pod.
        agents_granted: UIDs of agents whose slot is reserved for an episode.
        reserved: Number of episodes for which a slot is reserved, by namespace.
        backing_off: Number of episodes in back-off, or whose model is out, that have a pod and need a slot, by
            namespace.
    """

    def __init__(self, pools: AgentPools = AgentPools()) -> None:  # noqa: B008 - immutable
        self._pools = pools
        self._out: frozenset[tuple[str | None, str]] = frozenset()
        self.pod_requests = Requests()
        self.agent_requests = Requests()
        self.pods_granted: dict[Key, Candidate] = {}
        self.agents_granted: dict[Key, str] = {}
        self.reserved: Counter[str] = Counter()
        self.backing_off: Counter[str] = Counter()
        self._pending: dict[Key, PendingPod] = {}
        self._shares: dict[Key, _Share] = {}
        self._reserving: Counter[str] = Counter()
        self._starting: Counter[str] = Counter()
        self._images: Counter[str] = Counter()
        self._stuck: dict[Key, Stuck] = {}

    # Changes

    def request_pod(self, key: Key, candidate: Candidate | None) -> None:
        """Request a pod, or withdraw the request."""
        _request(self.pod_requests, key, candidate)

    def request_agent(self, key: Key, candidate: Candidate | None) -> None:
        """Request an agent, or withdraw the request."""
        _request(self.agent_requests, key, candidate)
        self._count(key)

    def grant_pod(self, key: Key) -> None:
        """Grant the request for a pod."""
        self.pods_granted[key] = self.pod_requests[key]
        self.pod_requests.discard(key)
        self._count(key)

    def grant_agent(self, key: Key, agent: str) -> None:
        """Grant the request for an agent."""
        self.agent_requests.discard(key)
        self.agents_granted[key] = agent
        self._count(key)

    def withdraw_pod(self, key: Key) -> Candidate | None:
        """Withdraw the grant of a pod; returns for whom, if there was one."""
        found = self.pods_granted.pop(key, None)
        self._count(key)
        return found

    def withdraw_agent(self, key: Key) -> bool:
        """Withdraw the grant of an agent; returns whether there was one."""
        found = self.agents_granted.pop(key, None)
        self._count(key)
        return found is not None

    def observe_pod(self, key: Key, pod: PendingPod | None) -> PendingPod | None:
        """Record the Episode's pod that waits for an agent, ready or not; returns the one before."""
        before = self._pending.get(key)
        if pod != before:
            if pod is None:
                del self._pending[key]
            else:
                self._pending[key] = pod
            self._count(key)
        return before

    def observe_out(self, out: frozenset[tuple[str | None, str]]) -> None:
        """Record the models that are out in every agent of a pool, by pool and model: no slot is reserved for them."""
        if out != self._out:
            self._out = out
            for key in {*self._pending, *self.agent_requests, *self._shares}:
                self._count(key)

    # Counts

    def models_with_pod(self, pool: str) -> set[str]:
        """Models of the pool's episodes whose pod starts, is ready or is granted."""
        pods = {key: each.model for key, each in self._pending.items() if each.stuck is None}
        granted = {key: each.model for key, each in self.pods_granted.items()}
        return {model for key, model in (*pods.items(), *granted.items()) if self._pools.of(key[0]) == pool}

    def reserving(self) -> Counter[str]:
        """Number of slots that are reserved and not granted yet, by namespace."""
        return self._reserving

    def starting(self) -> Counter[str]:
        """Number of episodes with a sandbox that starts, is ready or is granted, and no agent, by namespace."""
        return self._starting

    def images(self) -> Iterator[str]:
        """Images that are pulled."""
        return iter(self._images)

    def stuck(self) -> Mapping[Key, Stuck]:
        """Pods that cannot start, and why."""
        return self._stuck

    def _count(self, key: Key) -> None:
        """Count the episode as what it is now."""
        before, now = self._shares.get(key, _NOTHING), self._share(key)
        if now == before:
            return
        if now == _NOTHING:
            del self._shares[key]
        else:
            self._shares[key] = now
        self._add(key, before, -1)
        self._add(key, now, 1)
        if now.stuck is None:
            self._stuck.pop(key, None)
        else:
            self._stuck[key] = now.stuck

    def _add(self, key: Key, share: _Share, sign: int) -> None:
        if share.reserves:
            _change(self.reserved, key[0], sign)
        if share.backs_off:
            _change(self.backing_off, key[0], sign)
        if share.reserves and not share.granted:
            _change(self._reserving, key[0], sign)
        if share.starts and not share.granted:
            _change(self._starting, key[0], sign)
        for image in share.images:
            _change(self._images, image, sign)

    def _share(self, key: Key) -> _Share:
        pod, granted_pod, requested = self._pending.get(key), self.pods_granted.get(key), self.agent_requests.get(key)
        granted = key in self.agents_granted
        starts = pod is not None and pod.stuck is None
        model = pod.model if pod is not None else requested.model if requested is not None else ""
        out = bool(self._out) and (self._pools.of(key[0]), model) in self._out
        waits = pod is not None and pod.needs_slot and starts and (granted or not (pod.displaced or out))
        images = (granted_pod.image,) if granted_pod is not None else ()
        if pod is not None and starts and not pod.has_image:
            images = (*images, pod.image)
        return _Share(
            reserves=(
                waits
                or (granted_pod is not None and granted_pod.needs_slot)
                or (requested is not None and requested.needs_slot and not out)
            ),
            granted=granted,
            starts=(pod is not None and starts and not pod.displaced) or granted_pod is not None,
            backs_off=(
                pod is not None
                and pod.needs_slot
                and not granted
                and ((out and starts) or (pod.displaced and requested is None))
            ),
            images=images,
            stuck=Stuck(pod.name, pod.stuck) if pod is not None and pod.stuck is not None else None,
        )


def _request(requests: Requests, key: Key, candidate: Candidate | None) -> None:
    if candidate is None:
        requests.discard(key)
    elif requests.get(key) != candidate:
        requests.put(key, candidate)


def _change(counts: Counter[str], name: str, sign: int) -> None:
    counts[name] += sign
    if not counts[name]:
        del counts[name]
