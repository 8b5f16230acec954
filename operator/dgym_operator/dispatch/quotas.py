"""Namespaces whose ResourceQuota is used up: one episode at a time tries to create its pod, and when.

The API server alone decides whether a pod fits: quotas have scopes, and other controllers create pods too. A refusal
closes the namespace. It is opened for as many pods as have ended when the quota's status shows room, or, where the
operator cannot watch the quota, when a pod ends; and for one pod from time to time, in case neither was observed.
"""

import re
from collections.abc import Collection, Mapping
from datetime import datetime

from dgym_operator.cache import Cache
from dgym_operator.controllers import backoff

_REFUSAL = re.compile(r"exceeded quota: (?P<name>[^,]+), .*limited: (?P<limit>.+)$")
_UNSEEN = 10.0
"""How much longer a namespace whose quota is watched stays closed without an observed change."""
_SHOWN_SECONDS = 30.0
"""A namespace is shown as full for so long after its last pod: each change is a write for every waiting episode."""


class _Full:
    """A namespace whose quota has refused a pod.

    Attributes:
        text: Which quota, for people. Without the amount in use, which changes with every pod.
        capacity: How many pods were active when the quota was full.
        open: How many pods may be tried now.
        tries: Refusals since the last pod.
        probe_at: When to try one pod although no change was observed.
        shown_until: Until when the quota counts as the cause of waiting.
        room_at: When the last pod was created; None: none was since the first refusal.
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
        self._full: dict[str, _Full] = {}

    def refused(self, namespace: str, message: str) -> None:
        """Record that the quota has refused a pod."""
        full = self._full.setdefault(namespace, _Full())
        full.text = _text(message)
        full.capacity, full.open, full.tries = self._active(namespace), 0, full.tries + 1
        policy, now = self._cache.policy, self._cache.clock.monotonic()
        longest = policy.create_retry_seconds * (_UNSEEN if self._is_watched(namespace) else 1.0)
        full.probe_at = now + backoff(policy.backoff_seconds, longest, full.tries)
        full.shown_until = now + _SHOWN_SECONDS

    def created(self, namespace: str) -> None:
        """Record that a pod was created, and allow one more than ever before to be tried."""
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
        """Record that the quota has room again; returns whether the namespace was closed."""
        full = self._full.get(namespace)
        if full is None:
            return False
        full.open = max(1, full.open, full.capacity - self._active(namespace))
        return True

    def pod_ended(self, namespace: str) -> bool:
        """Record the end of a pod, which shows room only where the quota itself is not watched."""
        return not self._is_watched(namespace) and self.freed(namespace)

    def forget(self, namespace: str) -> None:
        """Drop the namespace, whose quota is gone."""
        self._full.pop(namespace, None)

    def until_probe(self, namespaces: Collection[str]) -> float | None:
        """Seconds until one of the namespaces may try a pod although no change was observed; None: never."""
        now = self._cache.clock.monotonic()
        times = [full.probe_at - now for name, full in self._full.items() if not full.open and name in namespaces]
        return max(0.0, min(times)) if times else None

    def rooms(self, granted: Mapping[str, int]) -> dict[str, int]:
        """How many more grants each of the full namespaces may get."""
        now, rooms = self._cache.clock.monotonic(), {}
        for namespace, full in self._full.items():
            if not full.open and now >= full.probe_at:
                full.open = 1
            rooms[namespace] = max(0, full.open - granted.get(namespace, 0))
        return rooms

    def texts(self) -> dict[str, str]:
        """Why the full namespaces get no more pods."""
        now = self._cache.clock.monotonic()
        for namespace, full in self._full.items():
            if self._active(namespace) >= full.capacity:
                full.shown_until = now + _SHOWN_SECONDS
        return {namespace: full.text for namespace, full in self._full.items() if now < full.shown_until}

    def room_at(self, namespace: str) -> datetime | None:
        """When the quota last had room; None: it was not full, or has had none since."""
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
