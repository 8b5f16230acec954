"""What is remembered from one decision to the next, because the API server does not show it.

All of it may be lost: a new leader finds out again. It is dropped with the object it is about.
"""

from collections import defaultdict
from datetime import datetime, timedelta

from dgym_operator.reconcile.plan import CreateFailure

_UNKNOWN_CREATES_COUNT = timedelta(seconds=30)


class Memory:
    """By the UIDs of Episodes and EpisodeSets."""

    def __init__(self) -> None:
        self._failures: dict[str, tuple[int, CreateFailure]] = {}
        self._held: dict[str, datetime] = {}
        self._absent: defaultdict[str, set[str]] = defaultdict(set)
        self._creating: defaultdict[str, dict[int, datetime]] = defaultdict(dict)

    # Pods that could not be made

    def failure(self, uid: str, attempt: int) -> CreateFailure | None:
        """Why this attempt has no pod, as far as it was tried."""
        number, failure = self._failures.get(uid, (0, None))
        return failure if number == attempt else None

    def failed(self, uid: str, attempt: int, *, reason: str, message: str, now: datetime) -> CreateFailure:
        """One more try went wrong; the time is that of the first one."""
        before = self.failure(uid, attempt)
        failure = CreateFailure(
            reason=reason,
            message=message,
            since=before.since if before is not None else now,
            tries=before.tries + 1 if before is not None else 1,
        )
        self._failures[uid] = (attempt, failure)
        return failure

    def made(self, uid: str) -> None:
        """The pod is there."""
        self._failures.pop(uid, None)
        self._held.pop(uid, None)
        self._absent.pop(uid, None)

    # Pods of an Episode that had the same name

    def held_for(self, uid: str, now: datetime) -> timedelta:
        """How long such a pod has been in the way."""
        return now - self._held.setdefault(uid, now)

    # Pods that the API server itself said are not there

    def absent(self, uid: str) -> frozenset[str]:
        """Their names."""
        return frozenset(self._absent.get(uid, ()))

    def is_absent(self, uid: str, pod: str) -> None:
        """The API server has no such pod."""
        self._absent[uid].add(pod)

    # Children of which nobody knows whether they were made

    def creating(self, uid: str, now: datetime) -> frozenset[int]:
        """Their indexes; after a while the watch would have shown them."""
        known = self._creating.get(uid, {})
        for index in [index for index, since in known.items() if now - since > _UNKNOWN_CREATES_COUNT]:
            del known[index]
        return frozenset(known)

    def may_have_created(self, uid: str, index: int, now: datetime) -> None:
        """A create had no answer."""
        self._creating[uid][index] = now

    def created(self, uid: str, index: int) -> None:
        """The child was seen."""
        if uid in self._creating:
            self._creating[uid].pop(index, None)

    def forget(self, uid: str) -> None:
        """The object is gone."""
        self._failures.pop(uid, None)
        self._held.pop(uid, None)
        self._absent.pop(uid, None)
        self._creating.pop(uid, None)
