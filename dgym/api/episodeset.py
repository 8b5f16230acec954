"""EpisodeSet: many episodes of one shape, over a list of tasks, with several samples of each."""

from typing import Annotated, Any, Literal

import msgspec

from dgym.api.episode import AgentSpec, EpisodeSpec, TaskRef, Tools
from dgym.api.fields import (
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
    Model,
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
"""Arms of a set at most: each has series of its own in the metrics, and counts in the status."""


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


class AgentOverrides(Model, frozen=True, kw_only=True):
    """What an arm changes of the template's agent. The seed is the same under every arm.

    Attributes:
        name: Name of the agent, such as debug_agent.
        model: Name of a model in the agents' configuration of models.
        max_steps: How many calls of tools the agent may make.
        max_rewrites: How many of them may be rewrites.
        token_budget: How many tokens the model may read and write in total.
        cost_limit: How much the model's tokens may cost, in quotes ("2.50").
        temperature: Of the model's sampling, in quotes ("0.2").
        parameters: The agent's own parameters, in place of all those of the template's agent. Without them, the
            template's if the agent is the same, else none.
    """

    name: Token | None = None
    model: Line | None = None
    max_steps: Annotated[int, msgspec.Meta(ge=1, le=10_000)] | None = None
    max_rewrites: Annotated[int, msgspec.Meta(ge=0, le=10_000)] | None = None
    token_budget: Annotated[int, msgspec.Meta(ge=1, le=10**12)] | None = None
    cost_limit: Cost | None = None
    temperature: Temperature | None = None
    parameters: Annotated[dict[str, Any], msgspec.Meta(max_length=128)] | None = None


class Arm(Model, frozen=True, kw_only=True):
    """One of the configurations that a set compares; every task and sample has an episode under each of them.

    Attributes:
        name: Name of the arm: the value of the label ``dgym.dev/arm`` of its Episodes, and part of their names.
        agent: What the arm changes of the template's agent.
        tools: The agent's tools, in place of the template's. Without them, the template's.
    """

    name: DnsLabel
    agent: AgentOverrides = AgentOverrides()
    tools: Tools = ()

    def applied_to(self, template: EpisodeSpec) -> EpisodeSpec:
        """The spec of this arm's episodes.

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


class SetPool(Model, frozen=True, kw_only=True):
    """A SandboxPool of the set's own, with the ``podTemplate`` and the ``podOverrides`` of the set's template.

    Its sandboxes are those of the task whose episode begins next. They help where many episodes in a row have equal
    pods: tasks that deliver their repository to one image, or many samples of each task.

    Attributes:
        min_idle: How many sandboxes are kept ready, as long as so many episodes are to begin.
        max_idle: How many at most are kept ready. Between both bounds the number follows the demand, as of a
            SandboxPool. Without it, the set's ``parallelism``.
    """

    min_idle: Idle = 1
    max_idle: Idle | None = None


class EpisodeSetSpec(Model, frozen=True, kw_only=True):
    """Which tasks, how often, and by whom. Exactly one of ``taskSelector`` and ``tasks``.

    Index of an episode = task x samples + sample; with arms (sample x tasks + task) x arms + arm, so that the episodes
    of one task and sample start side by side under all arms.

    Attributes:
        task_selector: The DebugTasks of the same namespace with these labels, in the order of their names, as they are
            when the set starts. Exactly one of ``taskSelector`` and ``tasks``.
        tasks: DebugTasks of the same namespace. Exactly one of ``taskSelector`` and ``tasks``.
        samples: How many episodes are made of each task.
        template: The spec of the episodes, without a task.
        arms: Configurations to compare: each changes the agent or the tools of the template, and every task and sample
            has an episode under each. Without any, the template alone.
        parallelism: How many episodes may be under way at a time.
        pool: Start sandboxes ahead of the episodes that are to begin. Without it, an episode claims those of the
            namespace's SandboxPools.
        priority: Of the sets in a namespace, episodes of those with a higher number are started first. Nothing that
            runs is stopped for them.
        suspend: Suspend the episodes that are under way and make no more until this is false.
        cancel: End the episodes that are under way and make no more. It cannot be taken back.
        max_failed: Make no more episodes once so many have failed for reasons that are no verdict; those under way
            finish. Without it, any number may fail.
        cost_limit: Make no more episodes once the set's episodes have cost so much, in quotes ("50"), in the currency
            of the models' prices, which they must have; those under way finish. All attempts count, also of episodes
            that ran again. Episodes that are not made do not count as failed; the reason is CostLimitReached. It is
            also the highest ``agent.costLimit`` of each episode. Without it, any amount.
        ttl_seconds_after_finished: How long the EpisodeSet is kept, with its Episodes, once it is finished. Without it,
            until it is deleted. Stored results stay.
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


class ArmStatus(Model, frozen=True, kw_only=True):
    """The counts of one arm.

    Attributes:
        name: Name of the arm.
        total: How many episodes there will have been.
        resolved: How many repaired their bug.
        unresolved: How many got another verdict.
        failed: How many ended without a verdict.
        pass_at_1: The share of the episodes with a verdict that repaired their bug, from 0 to 1, as of the whole set.
    """

    name: DnsLabel
    total: Count = 0
    resolved: Count = 0
    unresolved: Count = 0
    failed: Count = 0
    pass_at_1: Annotated[str, msgspec.Meta(max_length=16)] = msgspec.field(default="", name="passAt1")


class FailedIndexes(Model, frozen=True, kw_only=True):
    """The episodes of a set that ended for one reason without a verdict.

    Attributes:
        reason: Reason of the condition Finished of the episodes, such as ModelError.
        indexes: Their indexes as intervals, such as 0-5,7.
    """

    reason: Token
    indexes: Annotated[str, msgspec.Meta(max_length=524288)]


class EpisodeSetStatus(Model, frozen=True, kw_only=True):
    """Counts, never names: a set may have ten thousand children.

    Attributes:
        conditions: Finished, Suspended, Ready and Stalled for tools that follow kstatus, and ModelAvailable and
            ResultStoreAvailable, which are False while episodes wait for a model or a store that is out. Wait for
            Finished.
        reason: How the set stands: Running, WaitingForTask, EpisodeRefused, Suspended, Resuming, Cancelled,
            MaxFailedReached, CostLimitReached, TaskListLost or Completed. It is the end once Finished is True.
        message: The cause of the reason, for people.
        completed_indexes: Indexes of the finished episodes as intervals, such as 0-5,7, as of an Indexed Job.
        total: How many episodes there will have been.
        pending: How many of them are to begin and have no pod.
        active: How many have a pod and are not suspended.
        suspended: How many Episodes are suspended.
        unfinished: How many Episodes exist and are not finished, at most ``parallelism``.
        waiting: What Episodes wait for, and how many, such as quota 171, slot 12: room in the ResourceQuota, a slot of
            an agent pod, a node, an image, the gate of a queue, a model or the store that is out, the task, or
            the API server (pod).
        resolved: How many repaired their bug.
        unresolved: How many got another verdict.
        failed: How many ended without a verdict.
        failed_indexes: The indexes of the failed episodes by reason: those that dgym retry and the annotation
            dgym.dev/retry run again.
        cost: What the finished episodes have cost, in the currency of the models' prices.
        retry: The last value of the annotation dgym.dev/retry whose episodes are run again.
        cancelled: How many were cancelled and not scored, such as those that never began.
        pass_at_1: The share of the episodes with a verdict that repaired their bug, from 0 to 1: resolved / (resolved +
            unresolved), all tasks pooled, so that a task counts as often as it has verdicts. The mean over tasks of
            each task's share, which ``dgym report`` gives, cannot be told from these counts once Episodes are deleted.
            Every task has as many samples, so both are equal once all episodes have a verdict; while some have none,
            or failed, they may differ.
        arms: The counts of each arm, in the order of the spec.
        resolved_by_arm: The same in one line: the resolved episodes of those with a verdict, such as debug 12/20,
            rewrite 8/20.
        start_time: When the list of tasks was frozen.
        completion_time: When the last episode finished.
        observed_generation: The generation of the EpisodeSet that this status is about; -1 before the first status.
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
