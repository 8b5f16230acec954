"""The controller of Episodes. Each attempt has one sandbox pod, which is assigned to one agent pod at a time."""

from dgym_operator.controllers.episode._assignment import (
    AgentPodRequest,
    agent_pod_request,
    assigned_events,
    assigned_status,
    retry_at,
)
from dgym_operator.controllers.episode._clocks import pod_deadline_seconds, remaining_seconds
from dgym_operator.controllers.episode._controller import decide, still_requires_pod
from dgym_operator.controllers.episode._pod_status import (
    Cause,
    created,
    has_image,
    loss,
    slow_at,
    start_failure,
    stuck_cause,
    waiting_cause,
)

__all__ = [
    "AgentPodRequest",
    "Cause",
    "agent_pod_request",
    "assigned_events",
    "assigned_status",
    "created",
    "decide",
    "has_image",
    "loss",
    "pod_deadline_seconds",
    "remaining_seconds",
    "retry_at",
    "slow_at",
    "start_failure",
    "still_requires_pod",
    "stuck_cause",
    "waiting_cause",
]
