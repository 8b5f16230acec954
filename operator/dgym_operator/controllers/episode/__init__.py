"""The controller of Episodes: one pod for each attempt, one agent for each pod, and the end of both."""

from dgym_operator.controllers.episode.assignment import (
    AgentRequest,
    agent_request,
    assigned_events,
    assigned_status,
    retry_at,
)
from dgym_operator.controllers.episode.clocks import pod_deadline_seconds, remaining_seconds
from dgym_operator.controllers.episode.controller import decide, still_wants
from dgym_operator.controllers.episode.pods import (
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
    "AgentRequest",
    "Cause",
    "agent_request",
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
    "still_wants",
    "stuck_cause",
    "waiting_cause",
]
