"""The nouns: DebugTask, Episode and EpisodeSet, and how they are read from manifests.

The structs are here at once; what reads, checks and plans is imported when first used.
"""

from typing import TYPE_CHECKING, Any

from dgym.api.conditions import TREATMENTS, ConditionType, EpisodeState, ProgressReason, ResolvedReason, Treatment
from dgym.api.episode import (
    AgentAssignment,
    AgentSpec,
    Episode,
    EpisodeOutcome,
    EpisodeSpec,
    EpisodeStatus,
    PodOverrides,
    Stages,
    TaskRef,
    Termination,
    Toleration,
    ToolSpec,
)
from dgym.api.episodeset import EpisodeSet, EpisodeSetSpec, EpisodeSetStatus, LabelRequirement, LabelSelector
from dgym.api.fields import API_VERSION, GROUP, INLINE_LIMIT
from dgym.api.meta import Condition, ObjectMeta, OwnerReference
from dgym.api.task import (
    DEFAULT_ENTRYPOINT,
    ArchiveSource,
    ConfigMapSource,
    DebugTask,
    DebugTaskSpec,
    EnvVar,
    GitSource,
    InlineFile,
    KeyToPath,
    Resources,
    Scoring,
    SourceSpec,
)

if TYPE_CHECKING:
    from dgym.api.crd import custom_resource_definitions
    from dgym.api.loading import KINDS, Loaded, Resource, load, load_documents, loads
    from dgym.api.overrides import apply_overrides
    from dgym.api.planning import PlannedEpisode, child_name, digest, expand, find_task

_LAZY = {
    **dict.fromkeys(("KINDS", "Loaded", "Resource", "load", "load_documents", "loads"), "loading"),
    "apply_overrides": "overrides",
    "custom_resource_definitions": "crd",
    **dict.fromkeys(("PlannedEpisode", "child_name", "digest", "expand", "find_task"), "planning"),
}

__all__ = [
    "API_VERSION",
    "DEFAULT_ENTRYPOINT",
    "GROUP",
    "INLINE_LIMIT",
    "KINDS",
    "TREATMENTS",
    "AgentAssignment",
    "AgentSpec",
    "ArchiveSource",
    "Condition",
    "ConditionType",
    "ConfigMapSource",
    "DebugTask",
    "DebugTaskSpec",
    "EnvVar",
    "Episode",
    "EpisodeOutcome",
    "EpisodeSet",
    "EpisodeSetSpec",
    "EpisodeSetStatus",
    "EpisodeSpec",
    "EpisodeState",
    "EpisodeStatus",
    "GitSource",
    "InlineFile",
    "KeyToPath",
    "LabelRequirement",
    "LabelSelector",
    "Loaded",
    "ObjectMeta",
    "OwnerReference",
    "PlannedEpisode",
    "PodOverrides",
    "ProgressReason",
    "ResolvedReason",
    "Resource",
    "Resources",
    "Scoring",
    "SourceSpec",
    "Stages",
    "TaskRef",
    "Termination",
    "Toleration",
    "ToolSpec",
    "Treatment",
    "apply_overrides",
    "child_name",
    "custom_resource_definitions",
    "digest",
    "expand",
    "find_task",
    "load",
    "load_documents",
    "loads",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"dgym.api.{_LAZY[name]}"), name)
