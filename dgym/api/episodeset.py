"""EpisodeSet: many episodes of one shape, over a list of tasks, with several samples of each."""

from typing import Annotated, Literal

import msgspec

from dgym.api.episode import EpisodeSpec, TaskRef
from dgym.api.fields import API_VERSION, Count, Label, LabelKey, Labels, Model, Priority, TtlSeconds
from dgym.api.meta import Conditions, ObjectMeta, Timestamp


class LabelRequirement(Model, frozen=True, kw_only=True):
    """One condition on a label."""

    key: LabelKey
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: Annotated[tuple[Label, ...], msgspec.Meta(max_length=1024)] = ()

    def matches(self, labels: dict[str, str]) -> bool:
        """Whether an object with these labels meets the condition (``NotIn`` holds where the label is absent)."""
        present = self.key in labels
        match self.operator:
            case "Exists":
                return present
            case "DoesNotExist":
                return not present
            case "In":
                return present and labels[self.key] in self.values
            case "NotIn":
                return not present or labels[self.key] not in self.values


class LabelSelector(Model, frozen=True, kw_only=True):
    """Objects whose labels meet all conditions; an empty selector means all objects."""

    match_labels: Labels = msgspec.field(default_factory=dict)
    match_expressions: Annotated[tuple[LabelRequirement, ...], msgspec.Meta(max_length=64)] = ()

    def matches(self, labels: dict[str, str]) -> bool:
        """Whether an object with these labels is selected."""
        return all(labels.get(key) == value for key, value in self.match_labels.items()) and all(
            requirement.matches(labels) for requirement in self.match_expressions
        )


class EpisodeSetSpec(Model, frozen=True, kw_only=True):
    """Exactly one of ``task_selector`` and ``tasks``; ``template`` is an Episode's spec without a task.

    Index of an episode = task x samples + sample. ``max_failed`` stops creating, running episodes finish.
    """

    task_selector: LabelSelector | None = None
    tasks: Annotated[tuple[TaskRef, ...], msgspec.Meta(max_length=10_000)] = ()
    samples: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1
    template: EpisodeSpec = EpisodeSpec()
    parallelism: Annotated[int, msgspec.Meta(ge=0, le=100_000)] = 10
    priority: Priority = 0
    suspend: bool = False
    cancel: bool = False
    max_failed: Annotated[int, msgspec.Meta(ge=0, le=10_000_000)] | None = None
    ttl_seconds_after_finished: TtlSeconds | None = None


class EpisodeSetStatus(Model, frozen=True, kw_only=True):
    """Counts, never names: a set may have ten thousand children. ``completed_indexes`` is as of an Indexed Job."""

    conditions: Conditions = ()
    completed_indexes: Annotated[str, msgspec.Meta(max_length=524288)] = ""
    total: Count = 0
    pending: Count = 0
    active: Count = 0
    resolved: Count = 0
    unresolved: Count = 0
    failed: Count = 0
    pass_at_1: Annotated[str, msgspec.Meta(max_length=16)] = msgspec.field(default="", name="passAt1")
    start_time: Timestamp | None = None
    completion_time: Timestamp | None = None
    observed_generation: Count | None = None


class EpisodeSet(Model, frozen=True, kw_only=True, omit_defaults=False):
    """Many debugging episodes."""

    api_version: Literal["dgym.dev/v1alpha1"] = API_VERSION
    kind: Literal["EpisodeSet"] = "EpisodeSet"
    metadata: ObjectMeta
    spec: EpisodeSetSpec
    status: EpisodeSetStatus = EpisodeSetStatus()
