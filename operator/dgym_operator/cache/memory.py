"""What decisions need of Episodes, EpisodeSets and SandboxPools, and the API server does not show."""

from collections import defaultdict, deque
from collections.abc import Iterable
from datetime import datetime, timedelta

from dgym_operator.controllers import CreateFailure, Policy, SidecarView
from dgym_operator.controllers.sandboxpool import has_failed
from dgym_operator.objects import EpisodeView, Pod

_CLAIMS = 1000
_UNANSWERED_CREATE = timedelta(seconds=30)
"""How long a create without an answer counts; by then the watch would have shown the object."""


class PoolMemory:
    """Claims of a SandboxPool's pods, and their failures in a row.

    Attributes:
        template_hash: Of the pods that are created now.
        claims: Times of the last claims.
        misses: When attempts that could have claimed a pod found none.
        claimed: All claims.
        failures: How many pods in a row have failed before they were ready.
        failed_at: When the last of them did.
        changed_at: When the spec of a set's pool was written last.
    """

    def __init__(self) -> None:
        self.template_hash = ""
        self.claims: deque[datetime] = deque(maxlen=_CLAIMS)
        self.misses: deque[datetime] = deque(maxlen=_CLAIMS)
        self.claimed = 0
        self.failures = 0
        self.failed_at: datetime | None = None
        self.changed_at: datetime | None = None
        self._failed: deque[str] = deque(maxlen=_CLAIMS)

    def record_claim(self, at: datetime, counted: int) -> None:
        """Record a claim after ``counted`` others that the pool's status has."""
        self.claims.append(at)
        self.claimed = max(self.claimed, counted) + 1

    def record_failure(self, name: str, at: datetime) -> None:
        """Record the failure of this pod, once."""
        if name not in self._failed:
            self._failed.append(name)
            self.failures, self.failed_at = self.failures + 1, at

    def record(self, pods: Iterable[Pod], policy: Policy, now: datetime) -> None:
        """Record the failures of ``pods``; a pod that was ready after the last failure ends the row."""
        for pod in pods:
            if has_failed(pod, policy, now):
                self.record_failure(pod.metadata.name, now)
        ready = [each.last_transition_time for pod in pods if pod.ready and (each := pod.condition("Ready"))]
        if self.failed_at is not None and any(since is not None and since > self.failed_at for since in ready):
            self.failures, self.failed_at = 0, None


class Memory:
    """State by the UIDs of Episodes and EpisodeSets that decisions need and the API server does not show.

    All of it may be lost: a new leader observes it again. Records are dropped with their object.

    Attributes:
        blocked: Since when a pod of a deleted Episode of the same name blocks the creation of a pod.
        absent: Names of an Episode's pods, or of a set's list of tasks, that the API server has answered 404 for.
        refused: Why the API server refused a set's last child; empty: it accepted one.
        last_pods: The last state of a deleted pod whose termination message no decision has read.
        disrupted: The last attempt whose pod was observed to be disrupted.
        made: The attempt and the UID of the pod that this leader has made last.
        drivers: The attempt whose external driver has its Secret.
        pools: What is known of a SandboxPool beside its pods.
        failed_write_at: Monotonic time of the last write of an Episode's status that failed. It may have taken effect
            all the same, and show in the cache later.
    """

    def __init__(self) -> None:
        self.blocked: dict[str, datetime] = {}
        self.absent: dict[str, frozenset[str]] = {}
        self.refused: dict[str, str] = {}
        self.last_pods: dict[str, Pod] = {}
        self.disrupted: dict[str, int] = {}
        self.made: dict[str, tuple[int, str]] = {}
        self.drivers: dict[str, int] = {}
        self._sidecars: dict[str, tuple[int, SidecarView]] = {}
        self.pools: defaultdict[str, PoolMemory] = defaultdict(PoolMemory)
        self.failed_write_at = float("-inf")
        self._written: set[str] = set()
        self._failures: dict[str, tuple[int, CreateFailure]] = {}
        self._creating: defaultdict[str, dict[int, datetime]] = defaultdict(dict)

    def has_written(self, uid: str) -> bool:
        """Whether this leader has created the Episode or written its status, so that no other replica's write can."""
        return uid in self._written

    def record_written(self, episode: EpisodeView) -> None:
        """Record that this leader has created the Episode, or written its status.

        Versions that cannot be compared prove nothing: the cache may go back to an older one.
        """
        if episode.metadata.resource_version.isdecimal():
            self._written.add(episode.metadata.uid)

    def failure(self, uid: str, attempt: int) -> CreateFailure | None:
        """Why this attempt has no pod; None: its creation has not failed."""
        number, failure = self._failures.get(uid, (0, None))
        return failure if number == attempt else None

    def record_failure(self, uid: str, attempt: int, failure: CreateFailure) -> None:
        """Record a failed creation of the attempt's pod."""
        before = self.failure(uid, attempt)
        self._failures[uid] = (attempt, failure if before is None else before.followed_by(failure))

    def sidecar(self, uid: str, attempt: int) -> SidecarView:
        """What the sidecar of this attempt has answered."""
        number, view = self._sidecars.get(uid, (0, SidecarView()))
        return view if number == attempt else SidecarView()

    def record_sidecar(self, uid: str, attempt: int, view: SidecarView) -> None:
        """Record what the sidecar of this attempt has answered."""
        self._sidecars[uid] = (attempt, view)

    def record_created(self, uid: str, attempt: int, pod: Pod) -> None:
        """Record that the pod of the attempt exists, and is this one."""
        self.made[uid] = (attempt, pod.metadata.uid)
        self._forget_failures(uid)

    def _forget_failures(self, uid: str) -> None:
        for records in (self._failures, self.blocked, self.absent):
            records.pop(uid, None)

    def record_absent(self, uid: str, name: str) -> None:
        """Record a 404."""
        self.absent[uid] = self.absent.get(uid, frozenset()) | {name}

    def creating(self, uid: str, now: datetime) -> frozenset[int]:
        """Indexes of a set's children whose creation had no answer."""
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

    def forget(self, uid: str) -> None:
        """Drop all records of an object that is gone."""
        self._forget_failures(uid)
        self._written.discard(uid)
        for records in (
            self.refused,
            self.last_pods,
            self.disrupted,
            self._sidecars,
            self.made,
            self.drivers,
            self._creating,
            self.pools,
        ):
            records.pop(uid, None)
