"""Requests and grants of episodes, and the counts of them that admission uses.

The counts are updated when requests, grants and pods change, so that the cost of a dispatcher round does not depend on
the number of episodes.
"""

from collections import Counter
from typing import NamedTuple

import msgspec

from dgym.kube import Key
from dgym_operator.chart_values import AgentPodPools
from dgym_operator.controllers.episode import Cause
from dgym_operator.dispatch._admission import Candidate, Requests
from dgym_operator.dispatch._holds import Stuck


class PendingPod(msgspec.Struct, frozen=True, kw_only=True):
    """A sandbox pod that is not served by an agent pod.

    Attributes:
        name: Name of the pod.
        needs_slot: True if its episode needs a slot.
        stuck: Why the pod cannot start at present. No slot is reserved for a stuck pod.
        displaced: True if an agent pod served it before, and the model failed or the agent pod was lost.
        image: Image of its task. Empty: the default image.
        has_image: True if the image is on the pod's node.
        model: Model of its agent. Empty if the agent does not use a model.
    """

    name: str
    needs_slot: bool
    stuck: Cause | None = None
    displaced: bool = False
    image: str = ""
    has_image: bool = False
    model: str = ""


class _Share(NamedTuple):
    """The contribution of one episode to the counts."""

    reserves: bool = False
    """The episode reserves a slot: its sandbox starts or is ready, or it waits for another agent pod."""
    granted: bool = False
    """An agent pod is granted. The slot counts as a slot of this agent pod."""
    starts: bool = False
    """The episode has a sandbox pod that starts, is ready or is granted, and is not assigned yet."""
    backs_off: bool = False
    """The episode has a pod and waits for the end of a back-off or of an outage of its model."""
    images: tuple[str, ...] = ()
    """Images that are pulled for the episode. Images of stuck pods do not count, because a pull may never end."""
    stuck: Stuck | None = None


_NOTHING = _Share()


class Demand:
    """Requests, grants and pending sandbox pods by the key of the Episode, and their counts.

    Attributes:
        pod_requests: Episodes that request a sandbox pod.
        agent_pod_requests: Episodes that request an agent pod.
        pods_granted: Episodes that may create a sandbox pod.
        agent_pods_granted: UID of the agent pod whose slot is reserved for the episode.
        reserved: Number of episodes for which a slot is reserved, by namespace.
        reserving: Number of slots that are reserved and not granted yet, by namespace.
        starting: Number of unassigned episodes whose sandbox pod starts, is ready or is granted, by namespace.
        images: Number of sandbox pods that wait for each image that is being pulled.
        stuck: Pods that cannot start, with the cause.
        backing_off: Number of episodes, by namespace, that have a pod, need a slot, and are in back-off or wait for a
            model that is out.
    """

    def __init__(self, pools: AgentPodPools = AgentPodPools()) -> None:  # noqa: B008 - immutable
        self._pools = pools
        self._out: frozenset[tuple[str | None, str]] = frozenset()
        self.pod_requests = Requests()
        self.agent_pod_requests = Requests()
        self.pods_granted: dict[Key, Candidate] = {}
        self.agent_pods_granted: dict[Key, str] = {}
        self.reserved: Counter[str] = Counter()
        self.backing_off: Counter[str] = Counter()
        self._pending: dict[Key, PendingPod] = {}
        self._shares: dict[Key, _Share] = {}
        self.reserving: Counter[str] = Counter()
        self.starting: Counter[str] = Counter()
        self.images: Counter[str] = Counter()
        self.stuck: dict[Key, Stuck] = {}

    # Changes

    def request_pod(self, key: Key, candidate: Candidate | None) -> None:
        """Request a sandbox pod. None withdraws the request."""
        _request(self.pod_requests, key, candidate)

    def request_agent_pod(self, key: Key, candidate: Candidate | None) -> None:
        """Request an agent pod. None withdraws the request."""
        _request(self.agent_pod_requests, key, candidate)
        self._count(key)

    def grant_pod(self, key: Key) -> None:
        """Grant the request for a sandbox pod."""
        self.pods_granted[key] = self.pod_requests[key]
        self.pod_requests.discard(key)
        self._count(key)

    def grant_agent_pod(self, key: Key, agent_pod: str) -> None:
        """Grant the request for an agent pod."""
        self.agent_pod_requests.discard(key)
        self.agent_pods_granted[key] = agent_pod
        self._count(key)

    def withdraw_pod(self, key: Key) -> Candidate | None:
        """Withdraw the grant of a sandbox pod. Returns its candidate, or None if there was no grant."""
        found = self.pods_granted.pop(key, None)
        self._count(key)
        return found

    def withdraw_agent_pod(self, key: Key) -> bool:
        """Withdraw the grant of an agent pod. Returns True if there was a grant."""
        found = self.agent_pods_granted.pop(key, None)
        self._count(key)
        return found is not None

    def observe_pod(self, key: Key, pod: PendingPod | None) -> PendingPod | None:
        """Record the Episode's pod that waits for an agent pod, ready or not. Returns the previous record."""
        before = self._pending.get(key)
        if pod != before:
            if pod is None:
                del self._pending[key]
            else:
                self._pending[key] = pod
            self._count(key)
        return before

    def observe_out(self, out: frozenset[tuple[str | None, str]]) -> None:
        """Record the models that are out in every agent pod of a pool, by pool and model.

        No slots are reserved for episodes with these models.
        """
        if out != self._out:
            self._out = out
            for key in {*self._pending, *self.agent_pod_requests, *self._shares}:
                self._count(key)

    # Counts

    def models_with_pod(self, pool: str) -> set[str]:
        """Return the models of the pool's episodes whose sandbox pod starts, is ready or is granted."""
        pods = {key: each.model for key, each in self._pending.items() if each.stuck is None}
        granted = {key: each.model for key, each in self.pods_granted.items()}
        return {model for key, model in (*pods.items(), *granted.items()) if self._pools.of(key[0]) == pool}

    def _count(self, key: Key) -> None:
        """Update the counts with the current state of the episode."""
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
            self.stuck.pop(key, None)
        else:
            self.stuck[key] = now.stuck

    def _add(self, key: Key, share: _Share, sign: int) -> None:
        if share.reserves:
            _change(self.reserved, key[0], sign)
        if share.backs_off:
            _change(self.backing_off, key[0], sign)
        if share.reserves and not share.granted:
            _change(self.reserving, key[0], sign)
        if share.starts and not share.granted:
            _change(self.starting, key[0], sign)
        for image in share.images:
            _change(self.images, image, sign)

    def _share(self, key: Key) -> _Share:
        pod, granted_pod, requested = (
            self._pending.get(key),
            self.pods_granted.get(key),
            self.agent_pod_requests.get(key),
        )
        granted = key in self.agent_pods_granted
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
