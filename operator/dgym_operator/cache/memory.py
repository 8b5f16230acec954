"""State that decisions need and the API server does not show.

All of it may be lost: a new leader observes it again. It is dropped with the object that it belongs to.
"""

from collections import defaultdict
from datetime import datetime, timedelta

from dgym_operator.controllers import CreateFailure
from dgym_operator.objects import Pod

_UNANSWERED_CREATE = timedelta(seconds=30)
"""How long a create without an answer counts; by then the watch would have shown the object."""


class Memory:
    """Records by the UIDs of Episodes and EpisodeSets."""

    def __init__(self) -> None:
        self._failures: dict[str, tuple[int, CreateFailure]] = {}
        self._blocked: dict[str, datetime] = {}
        self._absent: defaultdict[str, set[str]] = defaultdict(set)
        self._refused: dict[str, str] = {}
        self._cancelled: dict[str, int] = {}
        self._last_pods: dict[str, Pod] = {}
        self._disrupted: dict[str, int] = {}
        self._creating: defaultdict[str, dict[int, datetime]] = defaultdict(dict)

    # Creation of pods

    def failure(self, uid: str, attempt: int) -> CreateFailure | None:
        """Why this attempt has no pod; None: its creation has not failed."""
        number, failure = self._failures.get(uid, (0, None))
        return failure if number == attempt else None

    def record_failure(self, uid: str, attempt: int, failure: CreateFailure) -> None:
        """Record a failed creation of the attempt's pod."""
        before = self.failure(uid, attempt)
        self._failures[uid] = (attempt, failure if before is None else before.followed_by(failure))

    def record_created(self, uid: str) -> None:
        """Record that the pod exists."""
        self._failures.pop(uid, None)
        self._blocked.pop(uid, None)
        self._absent.pop(uid, None)

    def blocked_for(self, uid: str, now: datetime) -> timedelta:
        """How long a pod of a deleted Episode of the same name has blocked the creation."""
        return now - self._blocked.setdefault(uid, now)

    # Objects that the API server has answered 404 for

    def absent(self, uid: str) -> frozenset[str]:
        """Names of the Episode's pods, or of the set's list of tasks, that do not exist."""
        return frozenset(self._absent.get(uid, ()))

    def record_absent(self, uid: str, name: str) -> None:
        """Record a 404."""
        self._absent[uid].add(name)

    # Attempts

    def cancelled(self, uid: str, attempt: int) -> bool:
        """Whether the sidecar has acknowledged the cancellation of the attempt."""
        return self._cancelled.get(uid) == attempt

    def record_cancelled(self, uid: str, attempt: int) -> None:
        """Record that the sidecar has acknowledged the cancellation of the attempt."""
        self._cancelled[uid] = attempt

    def last_pod(self, uid: str) -> Pod | None:
        """The last state of a deleted pod whose termination message no decision has read."""
        return self._last_pods.get(uid)

    def keep_pod(self, uid: str, pod: Pod) -> None:
        """Keep the pod's last state until ``drop_pod``."""
        self._last_pods[uid] = pod

    def drop_pod(self, uid: str) -> None:
        """Drop the last pod: its attempt is concluded."""
        self._last_pods.pop(uid, None)

    def disrupted_attempt(self, uid: str) -> int:
        """The last attempt whose pod was observed to be disrupted; 0: none."""
        return self._disrupted.get(uid, 0)

    def record_disrupted(self, uid: str, attempt: int) -> None:
        """Record that the attempt's pod was observed to be disrupted."""
        self._disrupted[uid] = max(attempt, self.disrupted_attempt(uid))

    # Children of a set

    def creating(self, uid: str, now: datetime) -> frozenset[int]:
        """Indexes of children whose creation had no answer."""
        known = self._creating.get(uid, {})
        for index in [index for index, since in known.items() if now - since > _UNANSWERED_CREATE]:
            del known[index]
        return frozenset(known)

    def record_creating(self, uid: str, index: int, now: datetime) -> None:
        """Record that the creation of the child had no answer."""
        self._creating[uid][index] = now

    def record_observed(self, uid: str, index: int) -> None:
        """Record that the child was observed."""
        if uid in self._creating:
            self._creating[uid].pop(index, None)

    def refusal(self, uid: str) -> str:
        """Why the API server refused the set's last child; empty: it did not."""
        return self._refused.get(uid, "")

    def record_refusal(self, uid: str, message: str) -> None:
        """Record that the API server refused a child of the set; empty: it accepted one."""
        self._refused[uid] = message

    def forget(self, uid: str) -> None:
        """Drop all records of an object that is gone."""
        self._failures.pop(uid, None)
        self._blocked.pop(uid, None)
        self._absent.pop(uid, None)
        self._refused.pop(uid, None)
        self._cancelled.pop(uid, None)
        self._last_pods.pop(uid, None)
        self._disrupted.pop(uid, None)
        self._creating.pop(uid, None)
