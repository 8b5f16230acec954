"""Benchmark of a leader with active episodes, and of its replacement.

Simulated agent pods hold the episodes, which are started, left running, and ended at a given rate. Then the leader is
replaced, once by SIGTERM as in a rollout, and once by SIGKILL. During the replacements episodes end continuously.
"""

import os
import signal
import time
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from tests.perf.measure import Figure
from tests.perf.scale.control_plane import ControlPlane, control_plane
from tests.perf.scale.operators import Replica, SimulatedNodes, create_set, lease, start_nodes

_SLOTS = 500
_QUIET_SECONDS = 20.0
_RATE = 50.0
_ENDED = 1000
_LEAD_SECONDS = 5.0
_DECISIONS = ("episodes/status", "pods")


class Active(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a leader with ``number`` active episodes.

    Attributes:
        number: Number of active episodes.
        starts: Episodes started per second, from the creation of the set to the last assignment.
        start_ms: Milliseconds of the operator's CPU for each start.
        start_server_ms: Milliseconds of CPU of API server and etcd for each start.
        idle: Share of a core that the operator uses while no episode starts or ends.
        memory: The operator's largest resident set in MB.
        ending: Share of a core that the operator uses while ``rate`` episodes end per second.
        rate: Episodes that ended per second.
        handover: Longest pause between two decisions in seconds, while a leader stops and another takes over.
        takeover: Seconds from a new leader's Lease to its first decision, after the old leader was killed.
    """

    number: int
    starts: float
    start_ms: float
    start_server_ms: float
    idle: float
    memory: float
    ending: float
    rate: float
    handover: float
    takeover: float


def active_figures(scratch: Path) -> list[Figure]:
    """The figures for ``DGYM_PERF_ACTIVE`` episodes."""
    found = measure_active(scratch / "active", int(os.environ.get("DGYM_PERF_ACTIVE", "10000")))
    what = f"{found.number:,} active"
    return [
        Figure(name=f"{what}: starts", unit="a second", median=found.starts),
        Figure(name=f"{what}: CPU of the operator for a start", unit="ms", median=found.start_ms),
        Figure(name=f"{what}: CPU of the operator while nothing happens", unit="% of a core", median=100 * found.idle),
        Figure(
            name=f"{what}: CPU of the operator while {found.rate:.0f} end a second",
            unit="% of a core",
            median=100 * found.ending,
            aim=25.0,
        ),
        Figure(name=f"{what}: memory of the operator", unit="MB", median=found.memory),
        Figure(name=f"{what}: pause of a handover", unit="s", median=found.handover, aim=1.0),
        Figure(name=f"{what}: first decision of a new leader", unit="s", median=found.takeover, aim=2.0),
    ]


def measure_active(directory: Path, number: int) -> Active:
    """Start ``number`` episodes and replace the leader twice."""
    with control_plane(directory) as plane:
        replica = Replica(plane)
        nodes = start_nodes(plane, replica, agents=-(-number // _SLOTS), slots=_SLOTS, hold=True)
        before = plane.usage(replica.process, nodes.process)
        create_set(plane, number)
        plane.wait(lambda: nodes.counts()["held"] == number, "all episodes to be active")
        started = plane.usage(replica.process, nodes.process).since(before)
        idle = _share(plane, replica, nodes, _QUIET_SECONDS)
        ending, rate = _end(plane, replica, nodes, min(_ENDED, number // 4))
        memory = replica.process.largest_mb
        second = _stand_by(plane, replica, 1)
        # While the leader is replaced, some episodes end each second, but never all of them.
        rate_meanwhile = min(20.0, number / 100)
        handover = _hand_over(plane, nodes, replica, second, rate_meanwhile)
        third = _stand_by(plane, replica, 2)
        takeover = _take_over(plane, nodes, second, third, rate_meanwhile)
        return Active(
            number=number,
            starts=number / started.seconds,
            start_ms=1e3 * started.controller / number,
            start_server_ms=1e3 * started.server / number,
            idle=idle,
            memory=memory,
            ending=ending,
            rate=rate,
            handover=handover,
            takeover=takeover,
        )


def _share(plane: ControlPlane, replica: Replica, nodes: SimulatedNodes, seconds: float) -> float:
    before = plane.usage(replica.process, nodes.process)
    time.sleep(seconds)
    used = plane.usage(replica.process, nodes.process).since(before)
    return used.controller / used.seconds


def _end(plane: ControlPlane, replica: Replica, nodes: SimulatedNodes, count: int) -> tuple[float, float]:
    """End ``count`` episodes. Returns the operator's share of a core until the last end, and episodes per second."""
    ended, before = nodes.counts()["ended"], plane.usage(replica.process, nodes.process)
    nodes.end(count, rate=_RATE)
    plane.wait(lambda: nodes.counts()["ended"] - ended >= count, "the episodes to end")
    used = plane.usage(replica.process, nodes.process).since(before)
    return used.controller / used.seconds, count / used.seconds


def _stand_by(plane: ControlPlane, leader: Replica, number: int) -> Replica:
    replica = Replica(plane, number, agent_port=leader.agent_port)
    plane.wait(replica.is_ready, "the caches of another replica")
    # The replica reads the Lease within this time.
    time.sleep(_LEAD_SECONDS)
    return replica


def _hand_over(plane: ControlPlane, nodes: SimulatedNodes, leader: Replica, other: Replica, rate: float) -> float:
    """The longest pause between two decisions while SIGTERM stops the leader."""
    begun = datetime.now(UTC)
    nodes.end(int(4 * _LEAD_SECONDS * rate), rate=rate)
    time.sleep(_LEAD_SECONDS)
    leader.process.stop(signal.SIGTERM)
    plane.wait(other.leads, "the other replica to lead")
    time.sleep(2 * _LEAD_SECONDS)
    times = _decisions(plane, begun)
    return max((after - before).total_seconds() for before, after in pairwise(times))


def _take_over(plane: ControlPlane, nodes: SimulatedNodes, leader: Replica, other: Replica, rate: float) -> float:
    """Seconds from the Lease of a killed leader's successor to the successor's first decision."""
    nodes.end(int(40 * rate), rate=rate)
    time.sleep(_LEAD_SECONDS)
    leader.process.stop(signal.SIGKILL)
    plane.wait(other.leads, "the other replica to lead")
    time.sleep(_LEAD_SECONDS)
    acquired = _time(lease(plane)["acquireTime"])
    return (_decisions(plane, acquired)[0] - acquired).total_seconds()


def _decisions(plane: ControlPlane, since: datetime) -> list[datetime]:
    """The times at which operators wrote the status of an Episode, or created, changed or deleted a pod."""
    return sorted(
        moment
        for entry in plane.server.writes()
        if entry.get("userAgent", "").startswith("dgym-operator")
        and _resource(entry) in _DECISIONS
        and (moment := _time(entry["requestReceivedTimestamp"])) >= since
    )


def _resource(entry: dict[str, Any]) -> str:
    about = entry.get("objectRef", {})
    return "/".join(part for part in (about.get("resource", ""), about.get("subresource", "")) if part)


def _time(text: str) -> datetime:
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC)
