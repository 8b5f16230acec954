"""What is remembered from one decision to the next, because the API server does not show it.

All of it may be lost: a new leader finds out again. It is dropped with the object it is about.
"""

from collections import defaultdict
from datetime import datetime, timedelta

from dgym_operator.controllers import CreateFailure
from dgym_operator.objects import Pod

_UNKNOWN_CREATES_COUNT = timedelta(seconds=30)


class Memory:
    """By the UIDs of Episodes and EpisodeSets."""

    def __init__(self) -> None:
        self._failures: dict[str, tuple[int, CreateFailure]] = {}
        self._held: dict[str, datetime] = {}
        self._absent: defaultdict[str, set[str]] = defaultdict(set)
        self._refused: dict[str, str] = {}
        self._cancelled: dict[str, int] = {}
        self._last_pods: dict[str, Pod] = {}
        self._disrupted: dict[str, int] = {}
        self._creating: defaultdict[str, dict[int, datetime]] = defaultdict(dict)

    # Pods that could not be made

    def failure(self, uid: str, attempt: int) -> CreateFailure | None:
        """Why this attempt has no pod, as far as it was tried."""
        number, failure = self._failures.get(uid, (0, None))
        return failure if number == attempt else None

    def failed(self, uid: str, attempt: int, failure: CreateFailure) -> None:
        """Count a try that failed."""
        before = self.failure(uid, attempt)
        self._failures[uid] = (attempt, failure if before is None else before.followed_by(failure))

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

    # Attempts that their sidecar has cancelled

    def cancelled(self, uid: str, attempt: int) -> bool:
        """Whether the sidecar has acknowledged the end of the cancelled attempt."""
        return self._cancelled.get(uid) == attempt

    def is_cancelled(self, uid: str, attempt: int) -> None:
        """The sidecar has acknowledged the end of the cancelled attempt."""
        self._cancelled[uid] = attempt

    # Pods that were deleted with a last message that no decision has read

    def last_pod(self, uid: str) -> Pod | None:
        """The Episode's last pod as it was when it was deleted."""
        return self._last_pods.get(uid)

    def keep_pod(self, uid: str, pod: Pod) -> None:
        """Keep the pod's last state until ``drop_pod``."""
        self._last_pods[uid] = pod

    def drop_pod(self, uid: str) -> None:
        """Forget the last pod: its attempt is concluded."""
        self._last_pods.pop(uid, None)

    # Pods that a watch showed to be disrupted

    def disrupted_attempt(self, uid: str) -> int:
        """The last attempt whose pod was seen to be disrupted; 0: none."""
        return self._disrupted.get(uid, 0)

    def is_disrupted(self, uid: str, attempt: int) -> None:
        """The pod of this attempt was seen to be disrupted."""
        self._disrupted[uid] = max(attempt, self.disrupted_attempt(uid))

    # Children of which nobody knows whether they were made

    def creating(self, uid: str, now: datetime) -> frozenset[int]:
        """Their indexes; after a while the watch would have shown them."""
        known = self._creating.get(uid, {})
        for index in [index for index, since in known.items() if now - since > _UNKNOWN_CREATES_COUNT]:
            del known[index]
        return frozenset(known)

    def refused(self, uid: str, message: str) -> None:
        """The API server refused a child of the set; empty: it took one."""
        self._refused[uid] = message

    def refusal(self, uid: str) -> str:
        """Why the API server refused the set's last child; empty: it did not."""
        return self._refused.get(uid, "")

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
        self._refused.pop(uid, None)
        self._cancelled.pop(uid, None)
        self._last_pods.pop(uid, None)
        self._disrupted.pop(uid, None)
        self._creating.pop(uid, None)
