"""EpisodeSet: many episodes of one shape, over a list of tasks, with several samples of each."""

from typing import Annotated, Literal

import msgspec

from dgym.api.episode import EpisodeSpec, TaskRef
from dgym.api.fields import (
    API_VERSION,
    Conditions,
    Count,
    Label,
    LabelKey,
    Labels,
    Model,
    ObjectMeta,
    Priority,
    Timestamp,
    TtlSeconds,
)


class LabelRequirement(Model, frozen=True, kw_only=True):
    """One condition on a label.

    Attributes:
        key: Key of the label.
        operator: ``In`` and ``NotIn`` compare with the values, ``Exists`` and ``DoesNotExist`` take none.
        values: The values for In and NotIn.
    """

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
    """Objects whose labels meet all conditions; an empty selector means all objects.

    Attributes:
        match_labels: Labels that the objects have.
        match_expressions: Further conditions on the objects' labels.
    """

    match_labels: Labels = msgspec.field(default_factory=dict)
    match_expressions: Annotated[tuple[LabelRequirement, ...], msgspec.Meta(max_length=64)] = ()

    def matches(self, labels: dict[str, str]) -> bool:
        """Whether an object with these labels is selected."""
        return all(labels.get(key) == value for key, value in self.match_labels.items()) and all(
            requirement.matches(labels) for requirement in self.match_expressions
        )


class EpisodeSetSpec(Model, frozen=True, kw_only=True):
    """Which tasks, how often, and by whom. Exactly one of ``taskSelector`` and ``tasks``.

    Index of an episode = task x samples + sample.

    Attributes:
        task_selector: The DebugTasks of the same namespace with these labels, in the order of their names, as they are
            when the set starts. Exactly one of ``taskSelector`` and ``tasks``.
        tasks: DebugTasks of the same namespace. Exactly one of ``taskSelector`` and ``tasks``.
        samples: How many episodes are made of each task.
        template: The spec of the episodes, without a task.
        parallelism: How many episodes may be under way at a time.
        priority: Of the sets in a namespace, episodes of those with a higher number are started first. Nothing that
            runs is stopped for them.
        suspend: Suspend the episodes that are under way and make no more until this is false.
        cancel: End the episodes that are under way and make no more. It cannot be taken back.
        max_failed: Make no more episodes once so many have failed for reasons that are no verdict; those under way
            finish. Without it, any number may fail.
        ttl_seconds_after_finished: How long the EpisodeSet is kept, with its Episodes, once it is finished. Without it,
            until it is deleted. Stored results stay.
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
    """Counts, never names: a set may have ten thousand children.

    Attributes:
        conditions: Finished and Suspended. Wait for Finished.
        reason: How the set stands: Running, WaitingForTask, EpisodeRefused, Suspended, Resuming, Cancelled,
            MaxFailedReached, TaskListLost or Completed. It is the end once Finished is True.
        message: The cause of the reason, for people.
        completed_indexes: Indexes of the finished episodes as intervals, such as 0-5,7, as of an Indexed Job.
        total: How many episodes there will have been.
        pending: How many of them have not begun.
        active: How many are under way and not suspended.
        suspended: How many have begun and are suspended.
        resolved: How many repaired their bug.
        unresolved: How many got another verdict.
        failed: How many ended without a verdict.
        pass_at_1: The share of the episodes with a verdict that repaired their bug, from 0 to 1: resolved / (resolved +
            unresolved), all tasks pooled, so that a task counts as often as it has verdicts. The mean over tasks of
            each task's share, which ``dgym report`` gives, cannot be told from these counts once Episodes are deleted.
            Every task has as many samples, so both are equal once all episodes have a verdict; while some have none,
            or failed, they may differ.
        start_time: When the list of tasks was frozen.
        completion_time: When the last episode finished.
        observed_generation: The generation of the EpisodeSet that this status is about.
    """

    conditions: Conditions = ()
    reason: Annotated[str, msgspec.Meta(max_length=64)] = ""
    message: Annotated[str, msgspec.Meta(max_length=1024)] = ""
    completed_indexes: Annotated[str, msgspec.Meta(max_length=524288)] = ""
    total: Count = 0
    pending: Count = 0
    active: Count = 0
    suspended: Count = 0
    resolved: Count = 0
    unresolved: Count = 0
    failed: Count = 0
    pass_at_1: Annotated[str, msgspec.Meta(max_length=16)] = msgspec.field(default="", name="passAt1")
    start_time: Timestamp | None = None
    completion_time: Timestamp | None = None
    observed_generation: Count | None = None


class EpisodeSet(Model, frozen=True, kw_only=True, omit_defaults=False):
    """Many debugging episodes of one shape, over a list of tasks, with several samples of each.

    Attributes:
        spec: Which tasks, how often, and by whom.
        status: What was observed.
    """

    api_version: Literal["dgym.dev/v1alpha1"] = API_VERSION
    kind: Literal["EpisodeSet"] = "EpisodeSet"
    metadata: ObjectMeta
    spec: EpisodeSetSpec
    status: EpisodeSetStatus = EpisodeSetStatus()
