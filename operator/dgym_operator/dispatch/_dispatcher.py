"""The dispatcher grants requests for sandbox pods and agent pods within the limits of the slots.

Workers request a sandbox pod or an agent pod for an episode. The dispatcher considers all requests together, in rounds,
and grants as many as there are slots, in the order of ``admission``. The next reconcile of the episode uses or
withdraws the grant, so that each episode has only one writer. The dispatcher does not store any state: it counts used
slots and active episodes from the unfinished Episodes, which a new leader observes as well.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime

import msgspec

from dgym.kube import Key, ObjectChange
from dgym_operator.cache import Cache
from dgym_operator.chart_values import AgentPodPools, NamespacePolicies
from dgym_operator.controllers import EPOCH, attempt_of, child_index
from dgym_operator.controllers.episode import has_image, stuck_cause
from dgym_operator.dispatch._admission import Candidate, ModelsOut, NamespaceUsage, PullBudget, choose
from dgym_operator.dispatch._demand import Demand, PendingPod
from dgym_operator.dispatch._holds import (
    BUSY,
    Hold,
    Holds,
    Outages,
    Quotas,
    find_agent_pod_causes,
    find_failing_models,
    find_full,
    find_stuck,
)
from dgym_operator.objects import EpisodeView, QuotaView

_ROUND_SECONDS = 0.02
"""Requests that arrive within this time are considered together."""
_IMAGES = 10_000
"""Number of images that are remembered. Nodes remove images that were not used for a long time."""
_FULL_SECONDS = 30.0
"""How long a namespace is still shown as full after it fell below ``maxActive``.

Without this delay each change would cause a write for every waiting episode.
"""


class Dispatcher:
    """Requests for sandbox pods and agent pods, and their grants, by the key of the Episode.

    Slots, the head start and the fair share apply to each pool of agent pods separately.

    Args:
        cache: The cache.
        head_start: Number of sandbox pods per pool that may start in addition to the free slots.
        stuck_limit: Number of stuck pods at which a namespace gets no more pods.
        policies: Limits and weights of the namespaces.
        enqueue: Adds the Episode with this key to the work queue. With ``low_priority`` it comes after others.
        pull_limit: Maximum number of images that are pulled at the same time. None: no limit.
        pools: The pools of agent pods.
    """

    def __init__(
        self,
        cache: Cache,
        *,
        head_start: int,
        stuck_limit: int,
        policies: NamespacePolicies,
        enqueue: Callable[..., None],
        pull_limit: int | None = None,
        pools: AgentPodPools = AgentPodPools(),  # noqa: B008 - immutable
    ) -> None:
        self.pools = pools
        self._cache = cache
        self._head_start = head_start
        self._stuck_limit = stuck_limit
        self._pull_limit = pull_limit
        self._policies = policies
        self._enqueue = enqueue
        self._demand = Demand(pools)
        self._quotas = Quotas(cache)
        self._outages = Outages(cache, pools)
        self._images: dict[str, None] = {}
        """Images that were observed on a node. The most recently used image is last."""
        self._holds = Holds()
        self._full: dict[str, tuple[float, str]] = {}
        self._work = asyncio.Event()

    # Requests and grants

    def request_pod(self, key: Key, candidate: Candidate | None) -> None:
        """Request the Episode's next sandbox pod. None withdraws the request and its grant."""
        if candidate is None and self._demand.withdraw_pod(key) is not None:
            self.wake()
        if key not in self._demand.pods_granted:
            candidate = self._limited(key, candidate)
            is_new = candidate is not None and candidate != self._demand.pod_requests.get(key)
            self._demand.request_pod(key, candidate)
            if is_new:
                self.wake()

    def pod_granted(self, key: Key) -> bool:
        """True if the Episode's next sandbox pod may be created now."""
        return key in self._demand.pods_granted

    def request_agent_pod(self, key: Key, candidate: Candidate | None) -> None:
        """Request an agent pod for the Episode. None withdraws the request."""
        candidate = self._limited(key, candidate)
        is_new = candidate is not None and candidate != self._demand.agent_pod_requests.get(key)
        self._demand.request_agent_pod(key, candidate)
        if is_new:
            self.wake()

    def granted_agent_pod(self, key: Key) -> str | None:
        """Return the UID of the agent pod granted to the Episode. Its slot is reserved until ``release_agent_pod``."""
        return self._demand.agent_pods_granted.get(key)

    def release_agent_pod(self, key: Key) -> None:
        """Release the reserved slot, because status now contains the assignment or the grant is not used."""
        if self._demand.withdraw_agent_pod(key):
            self.wake()

    def observe_pod(self, key: Key, pod: PendingPod | None) -> None:
        """Record the Episode's pod that waits for a slot, ready or not. None: the Episode has no such pod."""
        before = self._demand.observe_pod(key, pod)
        if pod is not None and pod.has_image:
            self._record_image(pod.image)
        if pod != before and (pod is None or pod.stuck is not None):
            self.wake()

    def hold(self, key: Key, candidate: Candidate | None = None) -> Hold | None:
        """Return why the Episode's request for an agent pod or a sandbox pod is not granted. None without a request.

        ``candidate`` describes a sandbox pod that is not requested yet.
        """
        waiting = self._demand.agent_pod_requests.get(key)
        if waiting is not None:
            return self._holds.of_agent_pod(key[0], waiting)
        requested = candidate or self._demand.pod_requests.get(key)
        return self._holds.of_pod(key[0], requested) if requested is not None else None

    def quota_room_at(self, namespace: str) -> datetime | None:
        """Return when the full ResourceQuota of the namespace last had room for a pod, or None."""
        return self._quotas.room_at(namespace)

    def quota_refused(self, namespace: str, message: str) -> None:
        """Record that the ResourceQuota refused a pod, and withdraw the namespace's other grants."""
        self._quotas.refused(namespace, message)
        self._withdraw_pods({namespace})
        self.wake()

    def pod_created(self, namespace: str) -> None:
        """Record that a pod was created in the namespace."""
        self._quotas.created(namespace)
        self.wake()

    def pod_ended(self, namespace: str) -> None:
        """Record that a pod of the namespace has terminated."""
        if self._quotas.pod_ended(namespace):
            self.wake()

    def observe_quota(self, change: ObjectChange[QuotaView]) -> None:
        """Record a change of a ResourceQuota."""
        namespace = change.key[0]
        if change.new is None:
            self._quotas.forget(namespace)
            self.wake()
        elif change.old is not None and change.new.has_more_room(change.old) and self._quotas.freed(namespace):
            self.wake()

    def forget(self, key: Key) -> None:
        """Remove the requests, grants and pod of an Episode that is gone or finished."""
        self.observe_pod(key, None)
        self.request_agent_pod(key, None)
        self.request_pod(key, None)
        self.release_agent_pod(key)

    def wake(self) -> None:
        """Start a round soon, because slots, agent pods or requests have changed."""
        self._work.set()

    def _record_image(self, image: str) -> None:
        if image not in self._images:
            self.wake()
        self._images.pop(image, None)
        self._images[image] = None
        if len(self._images) > _IMAGES:
            del self._images[next(iter(self._images))]

    def _limited(self, key: Key, candidate: Candidate | None) -> Candidate | None:
        """Return the candidate with its priority reduced to the limit of its namespace."""
        # The limit is also checked when the pod is created, but the priority may be raised after that.
        limit = self._policies.of(key[0]).limits.priority
        if candidate is None or limit is None or candidate.priority <= limit:
            return candidate
        return msgspec.structs.replace(candidate, priority=limit)

    # Rounds

    async def run(self) -> None:
        """Grant requests until cancelled."""
        # Find pending pods and the images on nodes once at the start, because workers have not reconciled yet.
        for episode in self._cache.episodes:
            self.observe_pod(episode.key, pending_pod(self._cache, episode))
            if any(map(has_image, self._cache.pods_of(episode.metadata.uid))):
                self._record_image(self._cache.image_of(episode))
        self.wake()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._quotas.until_probe(self._demand.pod_requests.namespaces())):
                    await self._work.wait()
            await self._cache.clock.sleep(_ROUND_SECONDS)
            self._work.clear()
            self.round()

    def round(self) -> None:
        """Grant all requests that can be granted now."""
        demand, in_use = self._demand, self._slots_in_use()
        out, by_pool = self._outages.of_agent_pods(), self._outages.by_pool()
        demand.observe_out(frozenset(by_pool))
        # One ``NamespaceUsage`` serves all pools: it counts by namespace, and each namespace belongs to one pool.
        usage = NamespaceUsage(slots=self._served(in_use), active=self._assigned())
        for pool in self.pools.names:
            self._grant_agent_pods(pool, in_use, usage, out)
        self._outages.record_probes(out)
        stuck = find_stuck(demand.stuck, self._stuck_limit)
        pulls = PullBudget(self._images, demand.images, self._pull_limit)
        self._withdraw_pods(stuck)
        if len(demand.pod_requests):
            usage = NamespaceUsage(slots=self._served(in_use) + demand.reserving, active=self._active())
            for pool in self.pools.names:
                self._grant_pods(pool, in_use, usage, stuck, pulls, {model for name, model in by_pool if name == pool})
        self._update_holds(stuck, pulls, by_pool)

    def slots(self) -> tuple[int, int]:
        """Return the numbers of used and free slots of the agent pods that answer."""
        in_use = self._slots_in_use()
        used = sum(
            in_use[agent_pod.uid].total() for agent_pod in self._cache.agent_pods if agent_pod.report is not None
        )
        return used, sum(self._free_slots(in_use).values())

    def requests(self) -> tuple[int, int]:
        """Return the numbers of episodes that wait for a sandbox pod and for an agent pod."""
        return len(self._demand.pod_requests), len(self._demand.agent_pod_requests)

    def _grant_agent_pods(
        self, pool: str, in_use: Mapping[str, Counter[str]], usage: NamespaceUsage, out: ModelsOut
    ) -> None:
        requests = self._demand.agent_pod_requests
        others = self._not_served(pool, requests.namespaces())
        free = self._free_slots(in_use, pool)
        for key, agent_pod in choose(requests, free, usage, self._policies, others, out).items():
            self._demand.grant_agent_pod(key, agent_pod)
            self._enqueue(key)

    def _withdraw_pods(self, stuck: Collection[str]) -> None:
        """Turn unused grants of these namespaces back into requests, because the namespaces do not get more pods."""
        demand = self._demand
        for key in [key for key in demand.pods_granted if key[0] in stuck] if stuck else ():
            demand.request_pod(key, demand.withdraw_pod(key))

    def _grant_pods(
        self,
        pool: str,
        in_use: Mapping[str, Counter[str]],
        usage: NamespaceUsage,
        stuck: Collection[str],
        pulls: PullBudget,
        out: Collection[str],
    ) -> None:
        """Grant sandbox pods to the pool's episodes.

        For each model in ``out`` there is only one pod at a time, whose episode probes the model.
        """
        demand = self._demand
        taken = self._of_pool(demand.reserved, pool) + self._slots_kept_for_back_off(pool)
        room = sum(self._free_slots(in_use, pool).values()) + self._head_start - taken
        closed = {*stuck, *self._not_served(pool, demand.pod_requests.namespaces())}
        rooms = self._quotas.rooms(Counter(namespace for namespace, _ in demand.pods_granted))
        probing = demand.models_with_pod(pool) if out else set()

        def serves(_: bool, model: str) -> bool:
            return model not in out or model not in probing

        granted = []
        turns = demand.pod_requests.in_turn(room, usage, self._policies, closed, pulls, rooms, serves if out else None)
        for key in turns:
            granted.append(key)
            probing.add(demand.pod_requests[key].model)
        for key in granted:
            demand.grant_pod(key)
            self._enqueue(key)

    def _not_served(self, pool: str, namespaces: Iterable[str]) -> set[str]:
        """Return those of the namespaces that this pool does not serve."""
        return {namespace for namespace in namespaces if self.pools.of(namespace) != pool}

    def _of_pool(self, counts: Mapping[str, int], pool: str) -> int:
        return sum(count for namespace, count in counts.items() if self.pools.of(namespace) == pool)

    def _update_holds(self, stuck: Mapping[str, str], pulls: PullBudget, out: Mapping[tuple[str, str], str]) -> None:
        """Enqueue the episodes whose cause of waiting has changed, because their status shows it."""
        before = self._holds
        pod_requests, agent_pod_requests = self._demand.pod_requests, self._demand.agent_pod_requests
        full = find_full(pod_requests.namespaces(), self._active(), self._policies)
        ready = find_full(agent_pod_requests.namespaces(), self._assigned(), self._policies)
        waiting_in = {*pod_requests.namespaces(), *agent_pod_requests.namespaces()}
        agent_pods = find_agent_pod_causes(self._cache.agent_pods, waiting_in, self.pools, before.agent_pods)
        lasting = {name: text for name, text in self._recently_full(full).items() if agent_pods.get(name) == BUSY}
        pods = {**lasting, **full, **stuck}
        # An image is shown as waiting until it is pulled, even if no slots are free meanwhile. This avoids writes.
        waiting = {image for image in pulls.refused | before.images if not pulls.is_open(image)}
        images = frozenset(waiting & pod_requests.images()) if waiting else frozenset()
        self._holds = Holds(
            agent_pods=agent_pods,
            pods=pods,
            quotas=self._quotas.texts(),
            ready=ready,
            models=find_failing_models(out, waiting_in, self.pools, before.models),
            images=images,
            pull_limit=self._pull_limit or 0,
        )
        if self._holds == before:
            return
        for key in pod_requests:
            candidate = pod_requests[key]
            if self._holds.of_pod(key[0], candidate) != before.of_pod(key[0], candidate):
                self._enqueue(key, low_priority=True)
        for key in agent_pod_requests:
            candidate = agent_pod_requests[key]
            if self._holds.of_agent_pod(key[0], candidate) != before.of_agent_pod(key[0], candidate):
                self._enqueue(key, low_priority=True)

    def _recently_full(self, full: Mapping[str, str]) -> dict[str, str]:
        """Return the texts of the full namespaces, and of those that were full in the last ``_FULL_SECONDS``."""
        now = self._cache.clock.monotonic()
        before = {name: each for name, each in self._full.items() if now - each[0] < _FULL_SECONDS}
        self._full = {**before, **{name: (now, text) for name, text in full.items()}}
        return {name: text for name, (_, text) in self._full.items()}

    # Counts

    def admission(self) -> dict[tuple[str, str], int]:
        """Return the number of ``active`` and ``waiting`` episodes of each namespace that has its own policy."""
        active, found = self._active(), {}
        for namespace in self._policies.overrides:
            found[namespace, "active"] = active[namespace]
            requests = (self._demand.pod_requests, self._demand.agent_pod_requests)
            found[namespace, "waiting"] = sum(each.count(namespace) for each in requests)
        return found

    def _slots_kept_for_back_off(self, pool: str) -> int:
        """Return the number of slots that are reserved for episodes in back-off.

        As many of these episodes as there are slots do not reserve a slot, so that they do not delay other episodes.
        Each further episode reserves one. This limits the number of sandboxes without agent pod while a model is out.
        """
        agent_pods = self._cache.agent_pods
        slots = sum(agent_pods.open_slots(agent_pod) or 0 for agent_pod in agent_pods if agent_pod.pool == pool)
        return max(0, self._of_pool(self._demand.backing_off, pool) - slots)

    def _served(self, in_use: Mapping[str, Counter[str]]) -> Counter[str]:
        """Return the number of slots in use or granted, by namespace."""
        served = Counter(namespace for namespace, _ in self._demand.agent_pods_granted)
        for slots in in_use.values():
            served.update(slots)
        return served

    def _assigned(self) -> Counter[str]:
        """Return the number of episodes that are assigned or have a granted agent pod, by namespace."""
        index = self._cache.assigned_by_namespace
        granted = Counter(key[0] for key in self._demand.agent_pods_granted if not self._is_assigned(key))
        return granted + Counter({namespace: index.count(namespace) for namespace in index.values()})

    def _active(self) -> Counter[str]:
        """Return the number of active episodes by namespace.

        They are assigned, or have a sandbox pod that starts, is ready or is granted.
        """
        return self._assigned() + self._demand.starting

    def _is_assigned(self, key: Key) -> bool:
        episode = self._cache.episodes.get(key)
        return episode is not None and episode.status.pod_name is not None

    def _slots_in_use(self) -> dict[str, Counter[str]]:
        """Return the number of used slots by the UID of the agent pod and by namespace."""
        in_use: dict[str, Counter[str]] = {agent_pod.uid: Counter() for agent_pod in self._cache.agent_pods}
        index = self._cache.episodes_by_slot
        for slot in index.values():
            if slot.agent_pod_uid in in_use:
                in_use[slot.agent_pod_uid][slot.namespace] = index.count(slot)
        return in_use

    def _free_slots(self, in_use: Mapping[str, Counter[str]], pool: str | None = None) -> dict[str, int]:
        """Return the free slots by the UID of the agent pod, for one pool or for all."""
        granted = Counter(self._demand.agent_pods_granted.values())
        return {
            agent_pod.uid: max(0, slots - in_use[agent_pod.uid].total() - granted[agent_pod.uid])
            for agent_pod in self._cache.agent_pods
            if pool in (None, agent_pod.pool) and (slots := self._cache.agent_pods.open_slots(agent_pod)) is not None
        }


def pending_pod(cache: Cache, episode: EpisodeView) -> PendingPod | None:
    """Return the Episode's sandbox pod without a serving agent pod, or None.

    It is the pod of the next attempt, or the pod of an attempt whose model failed or whose agent pod is lost.
    """
    status, needs_slot = episode.status, episode.spec.agent is not None
    if episode.is_finished:
        return None
    image, model = cache.image_of(episode), _model_of(episode)
    if status.pod_name is not None:
        displaced = PendingPod(
            name=status.pod_name, needs_slot=needs_slot, displaced=True, image=image, has_image=True, model=model
        )
        return displaced if _is_displaced(cache, episode) else None
    for pod in cache.pods_of(episode.metadata.uid):
        if attempt_of(pod) == status.attempt + 1:
            stuck = stuck_cause(pod, cache.clock.now(), cache.policy.slow_start_seconds)
            return PendingPod(
                name=pod.metadata.name,
                needs_slot=needs_slot,
                stuck=stuck,
                image=image,
                has_image=has_image(pod),
                model=model,
            )
    return None


def _is_displaced(cache: Cache, episode: EpisodeView) -> bool:
    """True if the episode must be reassigned: its model failed, which releases the slot, or its agent pod is lost."""
    assignment = episode.status.assignment
    if episode.status.ending is not None:
        return False
    if assignment is not None and assignment.failed_time is not None:
        return True
    agent_pod = cache.agent_pods.view(episode)
    return agent_pod is not None and agent_pod.lost_since is not None


def candidate_of(episode: EpisodeView, *, previous: str | None = None, image: str = "") -> Candidate:
    """Return the Episode as a candidate for admission."""
    return Candidate(
        priority=episode.spec.priority,
        created=episode.metadata.creation_timestamp or EPOCH,
        needs_slot=episode.spec.agent is not None,
        active=episode.status.pod_name is not None,
        previous=previous,
        image=image,
        index=child_index(episode) or 0,
        model=_model_of(episode),
    )


def _model_of(episode: EpisodeView) -> str:
    return (episode.spec.agent.model or "") if episode.spec.agent is not None else ""
