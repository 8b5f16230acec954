"""Reports of kubelets, agent pods and sidecars, independent of the transport.

The simulation, the tests with a real API server and the measurements have their own transports and clocks.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from dgym.wire import AttemptOutcome, EndReason, Result
from dgym.wire.assignments import AgentPodReport, Assignment, AssignmentState, AssignmentStatus
from dgym.wire.http import Role, make_token, token_digest
from dgym.wire.signing import sign_outcome

AGENT_LABELS = {"app.kubernetes.io/name": "dgym", "app.kubernetes.io/component": "agent"}
CONTAINERS = ("sandbox", "verifier", "sidecar")
RUNNING: dict[str, Any] = {"running": {}}
"""State of a container that runs."""


def time_text(now: datetime) -> str:
    """Return the time in the format of Kubernetes objects."""
    return now.strftime("%Y-%m-%dT%H:%M:%SZ")


def condition(kind: str, now: datetime, status: str = "True") -> dict[str, str]:
    """Return a condition of a pod."""
    return {"type": kind, "status": status, "lastTransitionTime": time_text(now)}


def conditions(now: datetime, *, ready: bool) -> list[dict[str, str]]:
    """Return the conditions of a pod on a node."""
    return [condition("PodScheduled", now), condition("Ready", now, str(ready))]


def terminated(now: datetime, exit_code: int = 0, reason: str = "Completed", message: str = "") -> dict[str, Any]:
    """Return the state of a container that has ended."""
    ended = {"exitCode": exit_code, "reason": reason, "message": message, "finishedAt": time_text(now)}
    return {"terminated": ended}


def status(states: Mapping[str, dict[str, Any]], now: datetime) -> dict[str, Any]:
    """Return the status of a pod on a node with these container states. The pod is ready if all containers run."""
    runs = {name: "running" in state for name, state in states.items()}
    containers = [
        {"name": name, "image": "i", "imageID": "", "ready": runs[name], "restartCount": 0, "state": state}
        for name, state in states.items()
    ]
    return {"conditions": conditions(now, ready=all(runs.values())), "containerStatuses": containers}


def running(address: str, now: datetime, containers: Iterable[str] = CONTAINERS) -> dict[str, Any]:
    """Return the status of a pod whose containers have all started."""
    started = status(dict.fromkeys(containers, RUNNING), now)
    return {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], **started}


class Assignments:
    """The assignments of an agent pod by UID of the episode, and their reported states."""

    def __init__(self) -> None:
        self.held: dict[str, Assignment] = {}
        self.states: dict[str, AssignmentStatus] = {}

    def is_newer(self, assignment: Assignment) -> bool:
        """Return True if the assignment supersedes the held one. Assignments are ordered by attempt and epoch."""
        known = self.held.get(assignment.episode_uid)
        return known is None or (known.attempt, known.epoch) < (assignment.attempt, assignment.epoch)

    def set(self, assignment: Assignment, state: AssignmentState, **more: Any) -> None:
        """Change the reported state of an assignment unless the assignment is superseded."""
        uid = assignment.episode_uid
        if self.held.get(uid) is assignment:
            self.states[uid] = AssignmentStatus(
                episode_uid=uid, attempt=assignment.attempt, epoch=assignment.epoch, state=state, **more
            )

    def drop(self, uid: str) -> None:
        """Remove an assignment."""
        self.held.pop(uid, None)
        self.states.pop(uid, None)

    def clear(self) -> None:
        """Remove all assignments."""
        self.held.clear()
        self.states.clear()

    def report(self, slots: int, *, incarnation: str = "1", **more: Any) -> AgentPodReport:
        """Return the response to the operator's poll."""
        states = tuple(self.states.values())
        return AgentPodReport(incarnation=incarnation, slots=slots, assignments=states, **more)


def operate_key(secret: bytes, uid: str, attempt: int) -> str:
    """Return the digest of the operator's token for the attempt. The sidecar of the pod has the same digest."""
    return token_digest(make_token(secret, episode_uid=uid, attempt=attempt, role=Role.OPERATE))


def signed_outcome(secret: bytes, uid: str, attempt: int, reason: EndReason, **counts: Any) -> AttemptOutcome:
    """Return the outcome of the attempt with the signature of its sidecar."""
    result = Result(reason=reason, resolved=reason is EndReason.RESOLVED, **counts)
    return AttemptOutcome.of(
        result, signature=sign_outcome(operate_key(secret, uid, attempt), result, episode_uid=uid, attempt=attempt)
    )
