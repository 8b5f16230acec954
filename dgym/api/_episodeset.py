"""EpisodeSet: episodes with one template over a list of tasks, with several samples of each task."""

from typing import Annotated, Any, Literal

import msgspec

from dgym.api._episode import AgentSpec, EpisodeSpec, TaskRef, Tools
from dgym.api._fields import (
    API_VERSION,
    Conditions,
    Cost,
    Count,
    DnsLabel,
    Idle,
    Label,
    LabelKey,
    Labels,
    Line,
    ManifestStruct,
    ObjectMeta,
    ObservedGeneration,
    Paid,
    Priority,
    Temperature,
    Timestamp,
    Token,
    TtlSeconds,
)

MOST_ARMS = 16
"""Maximum number of arms of a set. Each arm has its own metric series and its own counts in the status."""


class LabelRequirement(ManifestStruct, frozen=True, kw_only=True):
    """A condition on a label.

    Attributes:
        key: Key of the label.
        operator: ``In`` and ``NotIn`` compare with the values. ``Exists`` and ``DoesNotExist`` have no values.
        values: Values for In and NotIn.
    """

    key: LabelKey
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: Annotated[tuple[Label, ...], msgspec.Meta(max_length=1024)] = ()

    def matches(self, labels: dict[str, str]) -> bool:
        """Return whether an object with these labels meets the condition.

        ``NotIn`` also matches if the label is absent.
        """
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


class LabelSelector(ManifestStruct, frozen=True, kw_only=True):
    """A selector of objects whose labels meet all conditions. An empty selector selects all objects.

    Attributes:
        match_labels: Labels that the objects have.
        match_expressions: Further conditions on the objects' labels.
    """

    match_labels: Labels = msgspec.field(default_factory=dict)
    match_expressions: Annotated[tuple[LabelRequirement, ...], msgspec.Meta(max_length=64)] = ()

    def matches(self, labels: dict[str, str]) -> bool:
        """Return whether an object with these labels is selected."""
        return all(labels.get(key) == value for key, value in self.match_labels.items()) and all(
            requirement.matches(labels) for requirement in self.match_expressions
        )


class AgentOverrides(ManifestStruct, frozen=True, kw_only=True):
    """The fields of the template's agent that an arm changes. The seed is the same for all arms.

    Attributes:
        name: Name of the agent, such as debug_agent.
        model: Name of a model in the model configuration of the agent pods.
        max_steps: Maximum number of tool calls of the agent.
        max_rewrites: Maximum number of calls of the tool ``rewrite``. They count as steps too.
        token_budget: Maximum number of tokens that the model may read and write in total.
        cost_limit: Highest cost of the model's tokens, in quotes ("2.50").
        temperature: Temperature of the model's sampling, in quotes ("0.2").
        parameters: Parameters of the agent. They replace all parameters of the template's agent. Without them, those of
            the template if the agent is the same, else none.
    """

    name: Token | None = None
    model: Line | None = None
    max_steps: Annotated[int, msgspec.Meta(ge=1, le=10_000)] | None = None
    max_rewrites: Annotated[int, msgspec.Meta(ge=0, le=10_000)] | None = None
    token_budget: Annotated[int, msgspec.Meta(ge=1, le=10**12)] | None = None
    cost_limit: Cost | None = None
    temperature: Temperature | None = None
    parameters: Annotated[dict[str, Any], msgspec.Meta(max_length=128)] | None = None


class Arm(ManifestStruct, frozen=True, kw_only=True):
    """A configuration of the comparison. Each task and sample has one episode per arm.

    Attributes:
        name: Name of the arm. It is the value of the label ``dgym.dev/arm`` of the arm's Episodes and a part of their
            names.
        agent: Changes of the template's agent.
        tools: The agent's tools. They replace the tools of the template. Without them, the tools of the template.
    """

    name: DnsLabel
    agent: AgentOverrides = AgentOverrides()
    tools: Tools = ()

    def applied_to(self, template: EpisodeSpec) -> EpisodeSpec:
        """Return the spec of this arm's episodes.

        Raises:
            ValueError: Neither the arm nor the template names an agent.
        """
        given = {name: value for name, value in msgspec.structs.asdict(self.agent).items() if value is not None}
        common = template.agent
        if common is None:
            if self.agent.name is None:
                raise ValueError(f"neither arm {self.name} nor the template names an agent")
            common = AgentSpec(name=self.agent.name)
        if given.get("name", common.name) != common.name:
            given.setdefault("parameters", {})
        agent = msgspec.structs.replace(common, **given)
        return msgspec.structs.replace(template, agent=agent, tools=self.tools or template.tools)


class SetPool(ManifestStruct, frozen=True, kw_only=True):
    """A SandboxPool that the set owns, with the ``podTemplate`` and the ``podOverrides`` of the set's template.

    Its sandboxes are for the task of the episode that starts next. A pool helps if many consecutive episodes have equal
    pods, for example if tasks with an inline repository share an image, or if each task has many samples.

    Attributes:
        min_idle: Number of sandboxes that are kept ready, but not more than the number of episodes that have not
            started.
        max_idle: Maximum number of sandboxes that are kept ready. Between ``minIdle`` and ``maxIdle`` the
            number follows the demand, as for a SandboxPool. Without it, the set's ``parallelism``.
    """

    min_idle: Idle = 1
    max_idle: Idle | None = None


class EpisodeSetSpec(ManifestStruct, frozen=True, kw_only=True):
    """The tasks, samples, arms and limits of a set. Exactly one of ``taskSelector`` and ``tasks`` is required.

    Without arms, the index of an episode is task x samples + sample. With arms it is (sample x tasks + task) x arms +
    arm, so that the episodes of one task and sample start next to each other in all arms.

    Attributes:
        task_selector: Selects DebugTasks of the same namespace by their labels when the set starts. They are ordered by
            name. Exactly one of ``taskSelector`` and ``tasks`` is required.
        tasks: DebugTasks of the same namespace. Exactly one of ``taskSelector`` and ``tasks`` is required.
        samples: Number of episodes of each task.
        template: Spec of the episodes, without a task.
        arms: Configurations to compare. Each changes the agent or the tools of the template, and each task and sample
            has one episode per arm. Without arms, all episodes have the template's agent and tools.
        parallelism: Maximum number of unfinished episodes at the same time.
        pool: Start sandboxes before the episodes that need them. Without it, the episodes claim sandboxes of the
            namespace's SandboxPools.
        priority: In each namespace, episodes of sets with a higher priority start first. Running episodes are not
            stopped for them.
        suspend: Suspend the unfinished episodes and create no more until this becomes false.
        cancel: End the unfinished episodes and create no more. This cannot be undone.
        max_failed: Create no more episodes after this number of episodes has failed. Unfinished
            episodes continue. Without it, any number may fail.
        cost_limit: Create no more episodes after the set's episodes have cost this amount, in quotes ("50"), in the
            currency of the models' prices. The models must have prices. Unfinished episodes continue. The cost of all
            attempts counts, including episodes that ran again. Episodes that are not created do not count as failed.
            The reason is CostLimitReached. This is also the highest ``agent.costLimit`` of each episode. Without it,
            any cost.
        ttl_seconds_after_finished: How long a finished EpisodeSet is kept with its Episodes. Without it, until it is
            deleted. Stored results remain.
    """

    task_selector: LabelSelector | None = None
    tasks: Annotated[tuple[TaskRef, ...], msgspec.Meta(max_length=10_000)] = ()
    samples: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1
    template: EpisodeSpec = EpisodeSpec()
    arms: Annotated[tuple[Arm, ...], msgspec.Meta(max_length=MOST_ARMS)] = ()
    parallelism: Annotated[int, msgspec.Meta(ge=0, le=100_000)] = 10
    pool: SetPool | None = None
    priority: Priority = 0
    suspend: bool = False
    cancel: bool = False
    max_failed: Annotated[int, msgspec.Meta(ge=0, le=10_000_000)] | None = None
    cost_limit: Cost | None = None
    ttl_seconds_after_finished: TtlSeconds | None = None


class ArmStatus(ManifestStruct, frozen=True, kw_only=True):
    """Counts of one arm.

    Attributes:
        name: Name of the arm.
        total: Number of episodes of the arm.
        resolved: Number of episodes that repaired the bug.
        unresolved: Number of episodes that count for the agent and did not repair the bug.
        failed: Number of episodes that ended with a failure, such as SandboxLost.
        pass_at_1: Share of the arm's counted episodes that repaired the bug, from 0 to 1, computed as for the
            whole set.
    """

    name: DnsLabel
    total: Count = 0
    resolved: Count = 0
    unresolved: Count = 0
    failed: Count = 0
    pass_at_1: Annotated[str, msgspec.Meta(max_length=16)] = msgspec.field(default="", name="passAt1")


class FailedIndexes(ManifestStruct, frozen=True, kw_only=True):
    """The episodes of a set that failed for the same reason.

    Attributes:
        reason: Reason of the condition Finished of the episodes, such as ModelError.
        indexes: Indexes of the episodes as intervals, such as 0-5,7.
    """

    reason: Token
    indexes: Annotated[str, msgspec.Meta(max_length=524288)]


class EpisodeSetStatus(ManifestStruct, frozen=True, kw_only=True):
    """Observed state of a set. It has counts instead of names, because a set may have ten thousand episodes.

    Attributes:
        conditions: Finished, Suspended, Ready and Stalled for tools that follow kstatus, and ModelAvailable and
            ResultStoreAvailable, which are False while episodes wait because of an outage of a model or of a results
            store. Wait for Finished.
        reason: Running, WaitingForTask, EpisodeRefused, Suspended, Resuming, Cancelled, MaxFailedReached,
            CostLimitReached, TaskListLost or Completed. It is final once Finished is True.
        message: Explanation of the reason, for people.
        completed_indexes: Indexes of the finished episodes as intervals, such as 0-5,7, as in an Indexed Job.
        total: Number of episodes of the set.
        pending: Number of episodes that have not started and have no pod.
        active: Number of episodes that have a pod and are not suspended.
        suspended: Number of suspended Episodes.
        unfinished: Number of Episodes that exist and are not finished. At most ``parallelism``.
        waiting: Number of waiting Episodes for each cause, such as quota 171, slot 12. They wait for room in the
            ResourceQuota, a slot of an agent pod, a node, an image, the gate of a queue, the end of an outage of a
            model or of the results store, the task, or the API server (pod).
        resolved: Number of episodes that repaired the bug.
        unresolved: Number of episodes that count for the agent and did not repair the bug.
        failed: Number of episodes that ended with a failure, such as SandboxLost.
        failed_indexes: Indexes of the failed episodes by reason. ``dgym retry`` and the annotation dgym.dev/retry run
            them again.
        cost: Cost of the finished episodes, in the currency of the models' prices.
        retry: Last value of the annotation dgym.dev/retry for which episodes run again.
        cancelled: Number of episodes that were cancelled and not scored, for example because they had not started.
        pass_at_1: Share of the counted episodes that repaired the bug, from 0 to 1: resolved / (resolved +
            unresolved). All tasks are pooled, so a task counts as often as it has counted episodes. ``dgym report``
            shows the mean over tasks of each task's share instead, which cannot be computed from these counts. Both are
            equal once all episodes are counted, because every task has the same number of samples. They may differ
            while some episodes are not counted.
        arms: Counts of each arm, in the order of the spec.
        resolved_by_arm: Resolved episodes and counted episodes of each arm, such as debug 12/20, rewrite 8/20.
        start_time: When the list of tasks was fixed.
        completion_time: When the last episode finished.
        observed_generation: Generation of the EpisodeSet for which the status was written. -1 before the first status.
    """

    conditions: Conditions = ()
    reason: Annotated[str, msgspec.Meta(max_length=64)] = ""
    message: Annotated[str, msgspec.Meta(max_length=1024)] = ""
    completed_indexes: Annotated[str, msgspec.Meta(max_length=524288)] = ""
    total: Count = 0
    pending: Count = 0
    active: Count = 0
    suspended: Count = 0
    unfinished: Count = 0
    waiting: Annotated[str, msgspec.Meta(max_length=256)] = ""
    resolved: Count = 0
    unresolved: Count = 0
    failed: Count = 0
    failed_indexes: Annotated[tuple[FailedIndexes, ...], msgspec.Meta(max_length=64)] = ()
    cost: Paid = ""
    retry: Annotated[str, msgspec.Meta(max_length=256)] = ""
    cancelled: Count = 0
    pass_at_1: Annotated[str, msgspec.Meta(max_length=16)] = msgspec.field(default="", name="passAt1")
    arms: Annotated[tuple[ArmStatus, ...], msgspec.Meta(max_length=MOST_ARMS)] = ()
    resolved_by_arm: Annotated[str, msgspec.Meta(max_length=2048)] = ""
    start_time: Timestamp | None = None
    completion_time: Timestamp | None = None
    observed_generation: ObservedGeneration | None = None


class EpisodeSet(ManifestStruct, frozen=True, kw_only=True, omit_defaults=False):
    """Debugging episodes with one template over a list of tasks, with several samples of each task.

    Attributes:
        spec: The tasks, samples, arms and limits.
        status: Observed state of the set.
    """

    api_version: Literal["dgym.dev/v1alpha1"] = API_VERSION
    kind: Literal["EpisodeSet"] = "EpisodeSet"
    metadata: ObjectMeta
    spec: EpisodeSetSpec
    status: EpisodeSetStatus = EpisodeSetStatus()
