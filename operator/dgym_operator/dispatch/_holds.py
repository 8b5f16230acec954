"""Explains in the status of waiting episodes why their requests are not granted, and counts what quotas have left.

The texts change only if the cause changes, and not with every slot that is taken, because each change causes a write
for every waiting episode.

Only the API server can decide if a pod fits a ResourceQuota, because quotas have scopes and other controllers create
pods too. When it refuses a pod, the namespace is closed. The namespace is opened again:

- for as many pods as have terminated, when the quota's status shows room, or when a pod terminates if the operator
  cannot watch the quota;
- for one pod at growing intervals, in case neither was observed.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime
from typing import NamedTuple

import msgspec

from dgym.kube import Key
from dgym.wire.assignments import ModelOutage
from dgym_operator.cache import AgentPod, AgentPods, Cache
from dgym_operator.chart_values import AgentPodPools, NamespacePolicies
from dgym_operator.controllers import backoff
from dgym_operator.controllers.episode import Cause
from dgym_operator.dispatch._admission import Candidate, ModelsOut

BUSY = (
    "all slots of the agent pods are used by episodes or reserved for sandboxes that start; "
    "raise agents.replicas or agents.slots to run more episodes at a time"
)
NO_STORE = "the results store of the agent pods does not answer"
_NO_AGENT_POD = "no agent pod exists; see agents.replicas, and the Deployment of the agent pods"
_PROBE_SECONDS = 10.0
"""How long a granted probe counts: a report that was sent before the grant may still request the probe."""


class Hold(NamedTuple):
    """Why a request is not granted.

    Attributes:
        kind: The missing resource: ``model``, ``slot``, ``quota``, ``image`` or ``store``.
        text: The cause, for users. Empty if not known yet.
    """

    kind: str
    text: str


class Stuck(msgspec.Struct, frozen=True):
    """A pod that cannot start, and why."""

    pod: str
    cause: Cause


class Holds(msgspec.Struct, frozen=True, kw_only=True):
    """Why requests are not granted.

    Attributes:
        agent_pods: By namespace, why the agent pods of its pool do not serve more episodes.
        pods: By namespace, why it does not get more sandbox pods.
        quotas: By namespace, the text about its full ResourceQuota.
        ready: By namespace, why no more of its ready sandboxes are assigned (``maxActive``).
        models: By namespace and model, the text about a model that is out in every agent pod that could serve it.
        images: Images that wait until fewer than ``pull_limit`` others are being pulled.
        pull_limit: Maximum number of images that are pulled at the same time.
    """

    agent_pods: Mapping[str, str] = {}
    pods: Mapping[str, str] = {}
    quotas: Mapping[str, str] = {}
    ready: Mapping[str, str] = {}
    models: Mapping[tuple[str, str], str] = {}
    images: frozenset[str] = frozenset()
    pull_limit: int = 0

    def of_pod(self, namespace: str, candidate: Candidate) -> Hold:
        """Return why an episode of the namespace does not get a sandbox pod."""
        if (namespace, candidate.model) in self.models:
            return Hold("model", self.models[namespace, candidate.model])
        if namespace in self.pods:
            return Hold("slot", self.pods[namespace])
        if namespace in self.quotas:
            return Hold("quota", self.quotas[namespace])
        if candidate.image in self.images:
            text = (
                f"no node is known to have its image; at most {self.pull_limit} "
                f"{'is' if self.pull_limit == 1 else 'are'} pulled at a time: "
                "raise sandboxes.maxConcurrentPulls in the chart's values to pull more"
            )
            return Hold("image", text)
        return self._of_agent_pods(namespace)

    def of_agent_pod(self, namespace: str, candidate: Candidate) -> Hold:
        """Return why an episode of the namespace with a ready sandbox does not get an agent pod."""
        if not candidate.active and namespace in self.ready:
            return Hold("slot", self.ready[namespace])
        if (namespace, candidate.model) in self.models:
            return Hold("model", self.models[namespace, candidate.model])
        return self._of_agent_pods(namespace)

    def _of_agent_pods(self, namespace: str) -> Hold:
        text = self.agent_pods.get(namespace, "")
        return Hold("store" if text.startswith(NO_STORE) else "slot", text)


def find_stuck(stuck: Mapping[Key, Stuck], limit: int) -> dict[str, str]:
    """Return why the namespaces with ``limit`` or more stuck pods do not get more pods."""
    counts = Counter(namespace for namespace, _ in stuck)
    full = {namespace for namespace, count in counts.items() if count >= limit}
    oldest: dict[str, Stuck] = {}
    for (namespace, _), each in sorted(stuck.items(), key=lambda item: (item[1].cause.since, item[0])):
        if namespace in full:
            oldest.setdefault(namespace, each)
    return {namespace: _stuck_text(namespace, each, limit) for namespace, each in oldest.items()}


def find_full(namespaces: Iterable[str], active: Mapping[str, int], policies: NamespacePolicies) -> dict[str, str]:
    """Return why the namespaces that have reached ``maxActive`` do not start more episodes."""
    return {
        namespace: f"namespace {namespace} has {bound} active episodes (maxActive); "
        f"raise {policies.place(namespace, 'maxActive')} in the chart's values to allow more"
        for namespace in namespaces
        if (bound := policies.of(namespace).max_active) is not None and active.get(namespace, 0) >= bound
    }


def _stuck_text(namespace: str, example: Stuck, limit: int) -> str:
    return (
        f"namespace {namespace} has {limit} pods or more that cannot start, such as {example.pod} "
        f"({example.cause.reason}); correct or cancel their episodes, or raise sandboxes.maxStuckPods"
    )


def find_failing_models(
    out: Mapping[tuple[str, str], str],
    namespaces: Iterable[str],
    pools: AgentPodPools,
    before: Mapping[tuple[str, str], str],
) -> dict[tuple[str, str], str]:
    """Return the texts about models that are out, by namespace and model. The text does not change during an outage."""
    return {
        (name, model): before.get((name, model))
        or f"model {model} is unavailable in every agent pod that could use it, and is tested regularly ({cause})"
        for name in namespaces
        for (pool, model), cause in out.items()
        if pools.of(name) == pool
    }


def find_agent_pod_causes(
    agent_pods: AgentPods, namespaces: Iterable[str], pools: AgentPodPools, before: Mapping[str, str]
) -> dict[str, str]:
    """Return by namespace why the agent pods of its pool do not serve more episodes.

    The text about an unavailable results store does not change during the outage.
    """
    found = dict.fromkeys(namespaces, "")
    causes = {
        pool: _cause(agent_pods, pool) for pool in {pools.of(namespace) for namespace in found} if pool is not None
    }
    for namespace in found:
        pool = pools.of(namespace)
        found[namespace] = _no_pool(namespace, pools) if pool is None else causes[pool]
        if found[namespace].startswith(NO_STORE) and before.get(namespace, "").startswith(NO_STORE):
            found[namespace] = before[namespace]
    return found


def _no_pool(namespace: str, pools: AgentPodPools) -> str:
    return (
        f"no pool of agent pods serves namespace {namespace}; add it to the namespaces of one of agents.pools "
        f"({pools}) in the chart's values"
    )


def _cause(agent_pods: AgentPods, pool: str) -> str:
    known = sorted(
        (agent_pod for agent_pod in agent_pods if agent_pod.pool == pool), key=lambda agent_pod: agent_pod.name
    )
    if any(agent_pods.open_slots(agent_pod) is not None for agent_pod in known):
        return BUSY
    if not known:
        return f"{_NO_AGENT_POD}{f' of pool {pool}' if pool else ''}"
    draining = [
        agent_pod for agent_pod in known if agent_pod.draining_since is not None and not agent_pods.is_silent(agent_pod)
    ]
    if draining:
        return f"no agent pod accepts new episodes: pod {draining[0].name} is draining"
    stored = next(
        (agent_pod for agent_pod in known if agent_pod.report is not None and agent_pod.report.store_problem), None
    )
    if stored is not None and stored.report is not None and not agent_pods.is_silent(stored):
        return f"{NO_STORE}: pod {stored.name}: {stored.report.store_problem}"
    failing = next((agent_pod for agent_pod in known if agent_pod.ready and agent_pod.failure), None)
    if failing is not None:
        return f"no agent pod answers: pod {failing.name}: {failing.failure}"
    if any(agent_pod.ready for agent_pod in known):
        return "no agent pod has answered yet"
    return f"no agent pod is ready: see pod {known[0].name} in the namespace of the agent pods"


class Outages:
    """The models that are out, by agent pod, and the probes that were granted."""

    def __init__(self, cache: Cache, pools: AgentPodPools) -> None:
        self._cache = cache
        self._pools = pools
        self._probes: dict[tuple[str, str], float] = {}

    def of_agent_pods(self) -> ModelsOut:
        """Return the models that are out, and for which of them a probe is due, by the UID of the agent pod."""
        now = self._cache.clock.monotonic()
        self._probes = {each: since for each, since in self._probes.items() if now - since < _PROBE_SECONDS}
        return ModelsOut(
            {
                (agent_pod.uid, each.model): each.probe and (agent_pod.uid, each.model) not in self._probes
                for agent_pod in self._cache.agent_pods
                for each in _outages(agent_pod)
            }
        )

    def record_probes(self, out: ModelsOut) -> None:
        """Record the probes that were granted."""
        now = self._cache.clock.monotonic()
        self._probes.update(dict.fromkeys(out.probed, now))

    def by_pool(self) -> Mapping[tuple[str, str], str]:
        """Return the last failure of each model that is out in every open agent pod of a pool, by pool and model."""
        found: dict[tuple[str, str], str] = {}
        for pool in self._pools.names:
            agent_pods = self._cache.agent_pods
            open_agent_pods = sorted(
                (a for a in agent_pods if a.pool == pool and agent_pods.open_slots(a) is not None), key=_name
            )
            for each in _outages(open_agent_pods[0]) if open_agent_pods else ():
                if all(
                    each.model in {other.model for other in _outages(agent_pod)} for agent_pod in open_agent_pods[1:]
                ):
                    found[pool, each.model] = f"agent pod {open_agent_pods[0].name}: {each.message}"
        return found


def _outages(agent_pod: AgentPod) -> Iterator[ModelOutage]:
    # The name "" stands for an agent that does not use a model.
    return (each for each in (agent_pod.report.outages if agent_pod.report is not None else ()) if each.model)


def _name(agent_pod: AgentPod) -> str:
    return agent_pod.name


_REFUSAL = re.compile(r"exceeded quota: (?P<name>[^,]+), .*limited: (?P<limit>.+)$")
_UNSEEN = 10.0
"""Factor by which a namespace stays closed longer without an observed change if its quota is watched."""
_SHOWN_SECONDS = 30.0
"""How long a namespace is still shown as full afterwards. Each change causes a write for every waiting episode."""


class _FullQuota:
    """A namespace whose quota has refused a pod.

    Attributes:
        text: A message for users with the name of the quota. It omits the amount in use, which changes with every pod.
        capacity: Number of pods that were active when the quota was full.
        open: Number of pods that may be tried now.
        tries: Number of refusals since the last created pod.
        probe_at: When to try one pod although no change was observed.
        shown_until: Until when the quota is shown as the cause of waiting.
        room_at: When the last pod was created. None if no pod was created since the first refusal.
    """

    def __init__(self) -> None:
        self.text = ""
        self.capacity = 0
        self.open = 0
        self.tries = 0
        self.probe_at = 0.0
        self.shown_until = 0.0
        self.room_at: datetime | None = None


class Quotas:
    """The namespaces whose quota is used up."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._full: dict[str, _FullQuota] = {}

    def refused(self, namespace: str, message: str) -> None:
        """Record that the quota has refused a pod."""
        full = self._full.setdefault(namespace, _FullQuota())
        full.text = _text(message)
        full.capacity, full.open, full.tries = self._active(namespace), 0, full.tries + 1
        policy, now = self._cache.policy, self._cache.clock.monotonic()
        longest = policy.create_retry_seconds * (_UNSEEN if self._is_watched(namespace) else 1.0)
        full.probe_at = now + backoff(policy.backoff_seconds, longest, full.tries)
        full.shown_until = now + _SHOWN_SECONDS

    def created(self, namespace: str) -> None:
        """Record that a pod was created. If more pods than ever are active, another pod may be tried."""
        full = self._full.get(namespace)
        if full is None:
            return
        active = self._active(namespace)
        full.open, full.tries, full.room_at = max(0, full.open - 1), 0, self._cache.clock.now()
        policy = self._cache.policy
        seconds = policy.create_retry_seconds if active >= full.capacity else policy.backoff_seconds
        full.probe_at = self._cache.clock.monotonic() + seconds
        if active > full.capacity:
            full.capacity, full.open = active, max(1, full.open)

    def freed(self, namespace: str) -> bool:
        """Record that the quota has room again. Returns False if the namespace was not full."""
        full = self._full.get(namespace)
        if full is None:
            return False
        full.open = max(1, full.open, full.capacity - self._active(namespace))
        return True

    def pod_ended(self, namespace: str) -> bool:
        """Record the end of a pod. It counts as room only if the quota itself is not watched."""
        return not self._is_watched(namespace) and self.freed(namespace)

    def forget(self, namespace: str) -> None:
        """Remove the namespace, because its quota no longer exists."""
        self._full.pop(namespace, None)

    def until_probe(self, namespaces: Collection[str]) -> float | None:
        """Return the seconds until one of the namespaces may try a pod without an observed change, or None."""
        now = self._cache.clock.monotonic()
        times = [full.probe_at - now for name, full in self._full.items() if not full.open and name in namespaces]
        return max(0.0, min(times)) if times else None

    def rooms(self, granted: Mapping[str, int]) -> dict[str, int]:
        """Return the number of further grants for each full namespace."""
        now, rooms = self._cache.clock.monotonic(), {}
        for namespace, full in self._full.items():
            if not full.open and now >= full.probe_at:
                full.open = 1
            rooms[namespace] = max(0, full.open - granted.get(namespace, 0))
        return rooms

    def texts(self) -> dict[str, str]:
        """Return the messages for users that explain why the full namespaces do not get more pods."""
        now = self._cache.clock.monotonic()
        for namespace, full in self._full.items():
            if self._active(namespace) >= full.capacity:
                full.shown_until = now + _SHOWN_SECONDS
        return {namespace: full.text for namespace, full in self._full.items() if now < full.shown_until}

    def room_at(self, namespace: str) -> datetime | None:
        """Return when the quota last had room. None if the quota was never full or had no room since."""
        full = self._full.get(namespace)
        return full.room_at if full is not None else None

    def _active(self, namespace: str) -> int:
        return self._cache.active_pods.count(namespace)

    def _is_watched(self, namespace: str) -> bool:
        return self._cache.quotas_by_namespace.count(namespace) > 0


def _text(message: str) -> str:
    found = _REFUSAL.search(message)
    if found is None:
        return f"the namespace's quota is used up: {message}"
    limit, _, never = found["limit"].partition("; ")
    if never:
        return f"ResourceQuota {found['name']} is too small ({limit}); {never}"
    return f"ResourceQuota {found['name']} is used up ({limit}); the next pod starts when one ends"
