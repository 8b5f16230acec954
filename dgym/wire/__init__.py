"""The messages between the driver of an episode and its session: calls, observations, results.

Files and HTTP bodies use camelCase, Python uses snake_case; ``msgspec`` translates.
"""

from dgym.wire.costs import read_cost, write_cost
from dgym.wire.messages import (
    ACTION_LIMIT,
    OBSERVATION_LIMIT,
    Breakpoint,
    EndReason,
    Frame,
    Integrity,
    IntegritySign,
    Observation,
    Outcome,
    Result,
    Score,
    Seen,
    Step,
    ToolCall,
    action_problem,
)

__all__ = [
    "ACTION_LIMIT",
    "OBSERVATION_LIMIT",
    "Breakpoint",
    "EndReason",
    "Frame",
    "Integrity",
    "IntegritySign",
    "Observation",
    "Outcome",
    "Result",
    "Score",
    "Seen",
    "Step",
    "ToolCall",
    "action_problem",
    "read_cost",
    "write_cost",
]
