"""The dispatcher: grants requests for sandboxes and agents as slots allow.

Workers request a pod or an agent for an episode; the dispatcher considers all requests together and grants as many as
there are slots, in the order of ``admission``. A grant is used or withdrawn by the next reconcile of the episode, so
that every episode still has a single writer. Nothing is stored: slots in use and active episodes are counted from
unfinished Episodes, which a new leader observes as well.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Protocol

import msgspec

from dgym.kube import Change, Key
from dgym_operator.cache import Cache
from dgym_operator.controllers import EPOCH, attempt_of
from dgym_operator.controllers.episode import has_image, stuck_cause
from dgym_operator.controllers.episodeset import child_index
from dgym_operator.dispatch.admission import Candidate, ModelsOut, PullBudget, Usage, choose
from dgym_operator.dispatch.demand import Demand, PendingPod
from dgym_operator.dispatch.holds import BUSY, Holds, find_agents_causes, find_full, find_models_out, find_stuck
from dgym_operator.dispatch.outages import Outages
from dgym_operator.dispatch.quotas import Quotas
from dgym_operator.objects import EpisodeView, QuotaView
from dgym_operator.policies import NamespacePolicies
from dgym_operator.pools import AgentPools

_ROUND_SECONDS = 0.02
"""Requests that arrive within it are considered together."""
_IMAGES = 10_000
"""So many images are remembered; nodes remove those that were not used for long."""
_FULL_SECONDS = 30.0
"""A namespace below ``maxActive`` is shown as full for so long: each change is a write for every waiting episode."""


class Enqueue(Protocol):
    """Queues an Episode for a reconcile."""

    def __call__(self, key: Key, *, low_priority: bool = False) -> None:
        """Add the Episode to the queue."""


class Dispatcher:
    """Requests for pods and agents, and their grants, by the key of the Episode.

    Slots, the head start and the fair share are of each pool of agents by itself.

    ``stuck_limit`` is how many pods of a namespace may be stuck at a time before the namespace gets no more of them,
    ``pull_limit`` how many images may be pulled at a time; None: no bound.
    """

    def __init__(
        self,
        cache: Cache,
        *,
        head_start: int,
        stuck_limit: int,
        policies: NamespacePolicies,
        enqueue: Enqueue,
        pull_limit: int | None = None,
        pools: AgentPools = AgentPools(),  # noqa: B008 - immutable
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
        """Images that some node has had, the one that was used last at the end."""
        self._holds = Holds()
        self._full: dict[str, tuple[float, str]] = {}
        self._work = asyncio.Event()

    # Requests and grants

    def request_pod(self, key: Key, candidate: Candidate | None) -> None:
        """Request the Episode's next pod; None: withdraw the request and its grant."""
        if candidate is None and self._demand.withdraw_pod(key) is not None:
            self.wake()
        if key not in self._demand.pods_granted:
            candidate = self._limited(key, candidate)
            is_new = candidate is not None and candidate != self._demand.pod_requests.get(key)
            self._demand.request_pod(key, candidate)
            if is_new:
                self.wake()

    def pod_granted(self, key: Key) -> bool:
        """Whether the Episode's next pod may be created now."""
        return key in self._demand.pods_granted

    def request_agent(self, key: Key, candidate: Candidate | None) -> None:
        """Request an agent for the Episode; None: withdraw the request."""
        candidate = self._limited(key, candidate)
        is_new = candidate is not None and candidate != self._demand.agent_requests.get(key)
        self._demand.request_agent(key, candidate)
        if is_new:
            self.wake()

    def granted_agent(self, key: Key) -> str | None:
        """The UID of the agent pod granted to the Episode. Its slot is reserved until ``release_agent``."""
        return self._demand.agents_granted.get(key)

    def release_agent(self, key: Key) -> None:
        """Release the reserved slot: the Episode's status shows the assignment by now, or the grant is not used."""
        if self._demand.withdraw_agent(key):
            self.wake()

    def observe_pod(self, key: Key, pod: PendingPod | None) -> None:
        """Record the Episode's pod that waits for an agent's slot, ready or not; None: it has none."""
        before = self._demand.observe_pod(key, pod)
        if pod is not None and pod.has_image:
            self._record_image(pod.image)
        if pod != before and (pod is None or pod.stuck is not None):
            self.wake()

    def held_by(self, key: Key) -> str:
        """Why the Episode's request for an agent or a pod is not granted; empty: there is no request."""
        candidate = self._demand.agent_requests.get(key)
        if candidate is not None:
            return self._holds.of_agent(key, candidate)
        requested = self._demand.pod_requests.get(key)
        return self._holds.of_pod(key[0], requested) if requested is not None else ""

    def waits_for(self, key: Key) -> str:
        """What the Episode's request for an agent or a pod waits for, in a word; empty: there is no request."""
        candidate = self._demand.agent_requests.get(key)
        if candidate is not None:
            return self._holds.kind_of_agent(key, candidate)
        requested = self._demand.pod_requests.get(key)
        return self._holds.kind_of_pod(key[0], requested) if requested is not None else ""

    def is_quota_full(self, key: Key) -> bool:
        """Whether ``held_by`` names the ResourceQuota of the namespace."""
        return self.waits_for(key) == "quota"

    def quota_room_at(self, namespace: str) -> datetime | None:
        """When the ResourceQuota of the namespace, which is full, has last had room for a pod."""
        return self._quotas.room_at(namespace)

    def quota_refused(self, namespace: str, message: str) -> None:
        """Record that the ResourceQuota has refused a pod, and withdraw the namespace's other grants."""
        self._quotas.refused(namespace, message)
        self._withdraw_pods({namespace})
        self.wake()

    def pod_created(self, namespace: str) -> None:
        """Record that a pod was created in the namespace."""
        self._quotas.created(namespace)
        self.wake()

    def pod_ended(self, namespace: str) -> None:
        """Record that a pod of the namespace has ended."""
        if self._quotas.pod_ended(namespace):
            self.wake()

    def observe_quota(self, change: Change[QuotaView]) -> None:
        """Record a change of a ResourceQuota."""
        namespace = change.key[0]
        if change.new is None:
            self._quotas.forget(namespace)
            self.wake()
        elif change.old is not None and change.new.has_more_room(change.old) and self._quotas.freed(namespace):
            self.wake()

    def forget(self, key: Key) -> None:
        """Drop requests, grants and pod of an Episode that is gone or finished."""
        self.observe_pod(key, None)
        self.request_agent(key, None)
        self.request_pod(key, None)
        self.release_agent(key)

    def wake(self) -> None:
        """Start a round soon: slots, agents or requests have changed."""
        self._work.set()

    def _record_image(self, image: str) -> None:
        if image not in self._images:
            self.wake()
        self._images.pop(image, None)
        self._images[image] = None
        if len(self._images) > _IMAGES:
            del self._images[next(iter(self._images))]

    def _limited(self, key: Key, candidate: Candidate | None) -> Candidate | None:
        """The candidate with the highest priority that its namespace allows."""
        # A priority may be raised after the pod's creation, at which the limit is checked.
        limit = self._policies.of(key[0]).limits.priority
        if candidate is None or limit is None or candidate.priority <= limit:
            return candidate
        return msgspec.structs.replace(candidate, priority=limit)

    # Rounds

    async def run(self) -> None:
        """Grant requests until cancelled."""
        # Workers have not reconciled everything yet: pending pods and the nodes' images are found here, once.
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
        """Grant what can be granted."""
        demand, in_use = self._demand, self._slots_in_use()
        out, everywhere = self._outages.of_agents(), self._outages.everywhere()
        demand.observe_out(frozenset(everywhere))
        # What one pool is granted counts in no other: usage is that of namespaces.
        usage = Usage(slots=self._served(in_use), active=self._assigned())
        for pool in self.pools.names:
            self._grant_agents(pool, in_use, usage, out)
        self._outages.record_probes(out)
        stuck = find_stuck(demand.stuck(), self._stuck_limit)
        pulls = PullBudget(self._images, demand.images(), self._pull_limit)
        self._withdraw_pods(stuck)
        if len(demand.pod_requests):
            usage = Usage(slots=self._served(in_use) + demand.reserving(), active=self._active())
            for pool in self.pools.names:
                self._grant_pods(
                    pool, in_use, usage, stuck, pulls, {model for name, model in everywhere if name == pool}
                )
        self._update_holds(stuck, pulls, everywhere)

    def slots(self) -> tuple[int, int]:
        """Used and free slots of the agents that answer."""
        in_use = self._slots_in_use()
        used = sum(in_use[agent.uid].total() for agent in self._cache.agents if agent.report is not None)
        return used, sum(self._free_slots(in_use).values())

    def requests(self) -> tuple[int, int]:
        """Episodes that wait for the grant of a pod, and of an agent."""
        return len(self._demand.pod_requests), len(self._demand.agent_requests)

    def _grant_agents(self, pool: str, in_use: Mapping[str, Counter[str]], usage: Usage, out: ModelsOut) -> None:
        requests = self._demand.agent_requests
        others = self._outside(pool, requests.namespaces())
        free = self._free_slots(in_use, pool)
        for key, agent in choose(requests, free, usage, self._policies, others, out).items():
            self._demand.grant_agent(key, agent)
            self._enqueue(key)

    def _withdraw_pods(self, stuck: Collection[str]) -> None:
        """Take unused grants from namespaces that get no more pods."""
        demand = self._demand
        for key in [key for key in demand.pods_granted if key[0] in stuck] if stuck else ():
            demand.request_pod(key, demand.withdraw_pod(key))

    def _grant_pods(
        self,
        pool: str,
        in_use: Mapping[str, Counter[str]],
        usage: Usage,
        stuck: Collection[str],
        pulls: PullBudget,
        out: Collection[str],
    ) -> None:
        """Grant pods of the pool; of the models that are ``out`` one pod at a time, for an episode that probes."""
        demand = self._demand
        taken = self._of_pool(demand.reserved, pool) + self._excess(pool)
        room = sum(self._free_slots(in_use, pool).values()) + self._head_start - taken
        closed = {*stuck, *self._outside(pool, demand.pod_requests.namespaces())}
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

    def _outside(self, pool: str, namespaces: Iterable[str]) -> set[str]:
        """Those of the namespaces that another pool serves, or none."""
        return {namespace for namespace in namespaces if self.pools.of(namespace) != pool}

    def _of_pool(self, counts: Mapping[str, int], pool: str) -> int:
        return sum(count for namespace, count in counts.items() if self.pools.of(namespace) == pool)

    def _update_holds(self, stuck: Mapping[str, str], pulls: PullBudget, out: Mapping[tuple[str, str], str]) -> None:
        """Queue the episodes whose cause of waiting has changed: their status shows it."""
        before = self._holds
        pod_requests, agent_requests = self._demand.pod_requests, self._demand.agent_requests
        full = find_full(pod_requests.namespaces(), self._active(), self._policies)
        ready = find_full(agent_requests.namespaces(), self._assigned(), self._policies)
        waiting_in = {*pod_requests.namespaces(), *agent_requests.namespaces()}
        agents = find_agents_causes(self._cache.agents, waiting_in, self.pools, before.agents)
        lasting = {name: text for name, text in self._lasting(full).items() if agents.get(name) == BUSY}
        pods = {**lasting, **full, **stuck}
        # An image is shown as waiting until it is pulled, whether or not slots are free meanwhile: see ``Holds``.
        waiting = {image for image in pulls.refused | before.images if not pulls.is_open(image)}
        images = frozenset(waiting & pod_requests.images()) if waiting else frozenset()
        self._holds = Holds(
            agents=agents,
            pods=pods,
            quotas=self._quotas.texts(),
            ready=ready,
            models=find_models_out(out, waiting_in, self.pools, before.models),
            images=images,
            pull_limit=self._pull_limit or 0,
        )
        if self._holds == before:
            return
        for key in pod_requests:
            candidate = pod_requests[key]
            if self._holds.of_pod(key[0], candidate) != before.of_pod(key[0], candidate):
                self._enqueue(key, low_priority=True)
        for key in agent_requests:
            candidate = agent_requests[key]
            if self._holds.of_agent(key, candidate) != before.of_agent(key, candidate):
                self._enqueue(key, low_priority=True)

    def _lasting(self, full: Mapping[str, str]) -> dict[str, str]:
        """Texts of the full namespaces, and of those that were full a moment ago."""
        now = self._cache.clock.monotonic()
        before = {name: each for name, each in self._full.items() if now - each[0] < _FULL_SECONDS}
        self._full = {**before, **{name: (now, text) for name, text in full.items()}}
        return {name: text for name, (_, text) in self._full.items()}

    # Counts

    def admission(self) -> dict[tuple[str, str], int]:
        """Number of ``active`` and ``waiting`` episodes of each namespace with a policy of its own."""
        active, found = self._active(), {}
        for namespace in self._policies.overrides:
            found[namespace, "active"] = active[namespace]
            requests = (self._demand.pod_requests, self._demand.agent_requests)
            found[namespace, "waiting"] = sum(each.count(namespace) for each in requests)
        return found

    def _excess(self, pool: str) -> int:
        """How many slots are reserved for episodes in back-off.

        Nothing is reserved for as many of them as there are slots: they delay no other episode. More of them, as when
        a model is away, reserve one each: sandboxes without an agent stay bounded.
        """
        agents = self._cache.agents
        slots = sum(agents.open_slots(agent) or 0 for agent in agents if agent.pool == pool)
        return max(0, self._of_pool(self._demand.backing_off, pool) - slots)

    def _served(self, in_use: Mapping[str, Counter[str]]) -> Counter[str]:
        """Number of slots in use or granted, by namespace."""
        served = Counter(namespace for namespace, _ in self._demand.agents_granted)
        for slots in in_use.values():
            served.update(slots)
        return served

    def _assigned(self) -> Counter[str]:
        """Number of episodes that are assigned or about to be, by namespace."""
        index = self._cache.assigned_by_namespace
        granted = Counter(key[0] for key in self._demand.agents_granted if not self._is_assigned(key))
        return granted + Counter({namespace: index.count(namespace) for namespace in index.values()})

    def _active(self) -> Counter[str]:
        """Number of active episodes by namespace: assigned, or with a sandbox that starts, is ready or is granted."""
        return self._assigned() + self._demand.starting()

    def _is_assigned(self, key: Key) -> bool:
        episode = self._cache.episodes.get(key)
        return episode is not None and episode.status.pod_name is not None

    def _slots_in_use(self) -> dict[str, Counter[str]]:
        """How many slots of each agent the episodes of each namespace use."""
        in_use: dict[str, Counter[str]] = {agent.uid: Counter() for agent in self._cache.agents}
        index = self._cache.episodes_by_slot
        for slot in index.values():
            if slot.agent_uid in in_use:
                in_use[slot.agent_uid][slot.namespace] = index.count(slot)
        return in_use

    def _free_slots(self, in_use: Mapping[str, Counter[str]], pool: str | None = None) -> dict[str, int]:
        """Free slots by the UID of the agent, of one pool or of all."""
        granted = Counter(self._demand.agents_granted.values())
        return {
            agent.uid: max(0, slots - in_use[agent.uid].total() - granted[agent.uid])
            for agent in self._cache.agents
            if pool in (None, agent.pool) and (slots := self._cache.agents.open_slots(agent)) is not None
        }


def pending_pod(cache: Cache, episode: EpisodeView) -> PendingPod | None:
    """The Episode's pod that no agent serves: of its next attempt, or one whose model failed or whose agent is lost."""
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
    """Whether its model failed, so that the agent has released the slot, or its agent is lost, and it is to go on."""
    assignment = episode.status.assignment
    if episode.status.ending is not None:
        return False
    if assignment is not None and assignment.failed_time is not None:
        return True
    agent = cache.agents.view(episode)
    return agent is not None and agent.lost_since is not None


def candidate_of(episode: EpisodeView, *, previous: str | None = None, image: str = "") -> Candidate:
    """The Episode as a candidate for admission."""
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
