"""Designed outcome of each fault at each moment. The tests compare the cells of the matrix with it."""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from tests.e2e.cluster.faults.moments import Moment


class Fault(StrEnum):
    """The faults that the tests cause."""

    SANDBOX_KILLED = "sandbox container killed"
    SANDBOX_OOM = "sandbox OOM-killed"
    POD_DELETED = "pod deleted"
    POD_EVICTED = "pod evicted"
    NODE_LOST = "node lost"
    SIDECAR_KILLED = "sidecar killed"
    AGENT_DELETED = "agent pod deleted"
    AGENT_RESTARTED = "agent container restarted"
    AGENT_PARTITIONED = "agent partitioned and back"
    LEADER_KILLED = "leader killed"
    OPERATORS_AWAY = "both operators gone for a minute"
    API_SERVER_RESTARTED = "kube-apiserver restarted"
    ETCD_RESTARTED = "etcd restarted"
    STORE_FULL = "results store full"
    STORE_SLOW = "results store slow"
    STORE_AWAY = "results store away"


OF_ONE_EPISODE = (Fault.SANDBOX_KILLED, Fault.SANDBOX_OOM, Fault.POD_DELETED, Fault.POD_EVICTED, Fault.SIDECAR_KILLED)
"""Faults that affect a single episode."""
OF_ONE_AGENT = (Fault.AGENT_DELETED, Fault.AGENT_RESTARTED, Fault.AGENT_PARTITIONED)
"""Faults that affect every episode of an agent pod."""
OF_THE_CLUSTER = (
    Fault.LEADER_KILLED,
    Fault.OPERATORS_AWAY,
    Fault.API_SERVER_RESTARTED,
    Fault.ETCD_RESTARTED,
    Fault.STORE_FULL,
    Fault.STORE_SLOW,
    Fault.STORE_AWAY,
    Fault.NODE_LOST,
)
"""Faults that affect all episodes."""


@dataclass(frozen=True)
class End:
    """How an episode ends: the reason, the number of attempts, and the counters of failures."""

    reason: str = "Resolved"
    attempts: int = 1
    failures: int = 0
    disruptions: int = 0
    poisoned: int = 0

    def as_json(self) -> dict[str, Any]:
        """The fields as a dict."""
        return asdict(self)


UNHARMED = End()
_FAILED = End(attempts=2, failures=1)
_DISRUPTED = End(attempts=2, disruptions=1)
_POISONED = End(attempts=2, poisoned=1)
_SANDBOX_IS_OVER = (Moment.DURING_CLOSE, Moment.AFTER_CLOSE)


def designed(fault: Fault, moment: Moment) -> End | None:
    """The designed end. None if the fault has no target, because the sandbox has already terminated."""
    if fault in (Fault.SANDBOX_KILLED, Fault.SANDBOX_OOM) and moment in _SANDBOX_IS_OVER:
        return None
    if moment is Moment.AFTER_CLOSE:
        # The agent pod has the outcome in memory and does not need the sandbox pod any more.
        return UNHARMED
    if fault in (Fault.SANDBOX_KILLED, Fault.SANDBOX_OOM, Fault.SIDECAR_KILLED):
        # A step is blamed only if it was in flight.
        return _POISONED if moment is Moment.DURING_STEP else _FAILED
    if fault is Fault.POD_DELETED:
        return _FAILED
    if fault in (Fault.POD_EVICTED, Fault.NODE_LOST):
        return _DISRUPTED
    return UNHARMED
