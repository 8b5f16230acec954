"""The nouns: DebugTask, Episode and EpisodeSet, and how they are read from manifests.

The structs are imported at once; loading, checking and planning when first used.
"""

from typing import TYPE_CHECKING, Any

from dgym.api.episode import (
    AgentAssignment,
    AgentSpec,
    AttemptEnding,
    Episode,
    EpisodeOutcome,
    EpisodeSpec,
    EpisodeStatus,
    PodOverrides,
    PodRef,
    PoisonedStep,
    ReplaySource,
    Stages,
    TaskRef,
    Toleration,
    ToolSpec,
)
from dgym.api.episodeset import EpisodeSet, EpisodeSetSpec, EpisodeSetStatus, LabelRequirement, LabelSelector
from dgym.api.fields import (
    API_VERSION,
    ATTEMPT_LABEL,
    BENCHMARK_LABEL,
    DRIVER_LABEL,
    EPISODE_LABEL,
    GROUP,
    INDEX_LABEL,
    INLINE_LIMIT,
    KEY_LABEL,
    SAMPLE_LABEL,
    SET_LABEL,
    TASK_LABEL,
    TASK_UID_LABEL,
    Condition,
    ObjectMeta,
    OwnerReference,
    parse_quantity,
)
from dgym.api.reasons import (
    TREATMENTS,
    ConditionType,
    EndCause,
    EpisodeState,
    ProgressReason,
    ResolvedReason,
    Treatment,
)
from dgym.api.task import (
    DEFAULT_ENTRYPOINT,
    ArchiveSource,
    ConfigMapSource,
    DebugTask,
    DebugTaskSpec,
    EnvVar,
    Evaluation,
    GitSource,
    InlineFile,
    KeyToPath,
    Parser,
    Resources,
    Scoring,
    SourceSpec,
)

if TYPE_CHECKING:
    from dgym.api.crd import custom_resource_definitions
    from dgym.api.loading import KINDS, Loaded, Resource, load, load_documents, loads
    from dgym.api.overrides import apply_overrides
    from dgym.api.planning import (
        PlannedEpisode,
        child_name,
        digest,
        driver_secret_name,
        expand,
        find_task,
        label_value,
    )
    from dgym.api.rules import check_rules
    from dgym.api.schema import known_paths, struct_type

_LAZY = {
    **dict.fromkeys(("KINDS", "Loaded", "Resource", "load", "load_documents", "loads"), "loading"),
    "apply_overrides": "overrides",
    "custom_resource_definitions": "crd",
    **dict.fromkeys(
        ("PlannedEpisode", "child_name", "digest", "driver_secret_name", "expand", "find_task", "label_value"),
        "planning",
    ),
    "check_rules": "rules",
    "known_paths": "schema",
    "struct_type": "schema",
}

__all__ = [
    "API_VERSION",
    "ATTEMPT_LABEL",
    "BENCHMARK_LABEL",
    "DEFAULT_ENTRYPOINT",
    "DRIVER_LABEL",
    "EPISODE_LABEL",
    "GROUP",
    "INDEX_LABEL",
    "INLINE_LIMIT",
    "KEY_LABEL",
    "KINDS",
    "SAMPLE_LABEL",
    "SET_LABEL",
    "TASK_LABEL",
    "TASK_UID_LABEL",
    "TREATMENTS",
    "AgentAssignment",
    "AgentSpec",
    "ArchiveSource",
    "AttemptEnding",
    "Condition",
    "ConditionType",
    "ConfigMapSource",
    "DebugTask",
    "DebugTaskSpec",
    "EndCause",
    "EnvVar",
    "Episode",
    "EpisodeOutcome",
    "EpisodeSet",
    "EpisodeSetSpec",
    "EpisodeSetStatus",
    "EpisodeSpec",
    "EpisodeState",
    "EpisodeStatus",
    "Evaluation",
    "GitSource",
    "InlineFile",
    "KeyToPath",
    "LabelRequirement",
    "LabelSelector",
    "Loaded",
    "ObjectMeta",
    "OwnerReference",
    "Parser",
    "PlannedEpisode",
    "PodOverrides",
    "PodRef",
    "PoisonedStep",
    "ProgressReason",
    "ReplaySource",
    "ResolvedReason",
    "Resource",
    "Resources",
    "Scoring",
    "SourceSpec",
    "Stages",
    "TaskRef",
    "Toleration",
    "ToolSpec",
    "Treatment",
    "apply_overrides",
    "check_rules",
    "child_name",
    "custom_resource_definitions",
    "digest",
    "driver_secret_name",
    "expand",
    "find_task",
    "known_paths",
    "label_value",
    "load",
    "load_documents",
    "loads",
    "parse_quantity",
    "struct_type",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"dgym.api.{_LAZY[name]}"), name)
