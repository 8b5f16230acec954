"""The messages between the driver of an episode and its session: calls, observations, results.

Files and HTTP bodies use camelCase, Python uses snake_case. ``msgspec`` converts the names.
"""

from dgym.wire.messages import (
    ACTION_LIMIT,
    OBSERVATION_LIMIT,
    Breakpoint,
    Frame,
    Observation,
    Score,
    Step,
    ToolCall,
    checked_action,
)
from dgym.wire.outcome import (
    AttemptOutcome,
    EndReason,
    Integrity,
    IntegritySign,
    Outcome,
    Result,
    SignEvidence,
    read_cost,
    write_cost,
)

__all__ = [
    "ACTION_LIMIT",
    "OBSERVATION_LIMIT",
    "AttemptOutcome",
    "Breakpoint",
    "EndReason",
    "Frame",
    "Integrity",
    "IntegritySign",
    "Observation",
    "Outcome",
    "Result",
    "Score",
    "SignEvidence",
    "Step",
    "ToolCall",
    "checked_action",
    "read_cost",
    "write_cost",
]
