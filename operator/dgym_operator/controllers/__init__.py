"""What ought to be done about Episodes and EpisodeSets, decided from observed state.

Pure: no client, no clock, no random, no environment. A decision takes an input and the time, and returns a plan of
actions; ``dgym_operator.actions`` applies it.
"""

from dgym_operator.controllers.conditions import EPOCH, find, is_true, state_of
from dgym_operator.controllers.inputs import (
    SIDECAR_PORT,
    AgentView,
    EpisodeInput,
    EpisodeSetInput,
    FrozenTasks,
    Policy,
    SidecarView,
    TaskState,
    attempt_of,
    sidecar_url,
)
from dgym_operator.controllers.plan import (
    Action,
    CallSidecar,
    CreateDriverSecret,
    CreateEpisode,
    CreateFailure,
    CreatePod,
    DeleteEpisode,
    DeletePod,
    DeleteSet,
    Emit,
    FreezeTasks,
    LookUpPod,
    LookUpTasks,
    PatchChild,
    PatchSetStatus,
    PatchStatus,
    Plan,
)

__all__ = [
    "EPOCH",
    "SIDECAR_PORT",
    "Action",
    "AgentView",
    "CallSidecar",
    "CreateDriverSecret",
    "CreateEpisode",
    "CreateFailure",
    "CreatePod",
    "DeleteEpisode",
    "DeletePod",
    "DeleteSet",
    "Emit",
    "EpisodeInput",
    "EpisodeSetInput",
    "FreezeTasks",
    "FrozenTasks",
    "LookUpPod",
    "LookUpTasks",
    "PatchChild",
    "PatchSetStatus",
    "PatchStatus",
    "Plan",
    "Policy",
    "SidecarView",
    "TaskState",
    "attempt_of",
    "find",
    "is_true",
    "sidecar_url",
    "state_of",
]
