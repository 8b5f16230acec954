"""Episode: one agent (or an external driver), one task, one sandbox; and its status."""

from typing import Annotated, Any, Literal

import msgspec

from dgym.api.fields import (
    API_VERSION,
    Annotations,
    Conditions,
    Cost,
    Count,
    DnsLabel,
    Labels,
    Line,
    Model,
    Name,
    ObjectMeta,
    ObservedGeneration,
    Paid,
    Priority,
    Temperature,
    Timestamp,
    Token,
    TtlSeconds,
)
from dgym.api.task import DebugTaskSpec, Resources

DEFAULT_STEPS = 50
"""Steps of an agent whose Episode names no ``maxSteps``."""


class TaskRef(Model, frozen=True, kw_only=True):
    """A DebugTask by name: of the same namespace, or in a local run of the manifests given.

    Attributes:
        name: Name of the DebugTask.
    """

    name: Name


class AgentSpec(Model, frozen=True, kw_only=True):
    """Who debugs, and how far it may go.

    Attributes:
        name: Name of the agent, such as debug_agent.
        model: Name of a model in the agents' configuration of models.
        max_steps: How many calls of tools the agent may make.
        max_rewrites: How many of them may be rewrites. Without it, all.
        token_budget: How many tokens the model may read and write in total. Without it, any number.
        cost_limit: How much the model's tokens may cost over all attempts, in quotes ("2.50"), in the currency of the
            model's prices, which it must have. Without it, any amount.
        temperature: Of the model's sampling, in quotes ("0.2"), since floating numbers do not survive every serializer.
        seed: Of the model's sampling and the agent's own choices; a set adds the number of the sample.
        parameters: The agent's own parameters; see the documentation of the agent.
    """

    name: Token
    model: Line | None = None
    max_steps: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = DEFAULT_STEPS
    max_rewrites: Annotated[int, msgspec.Meta(ge=0, le=10_000)] | None = None
    token_budget: Annotated[int, msgspec.Meta(ge=1, le=10**12)] | None = None
    cost_limit: Cost | None = None
    temperature: Temperature | None = None
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**53)] | None = None
    parameters: Annotated[dict[str, Any], msgspec.Meta(max_length=128)] = msgspec.field(default_factory=dict)


class ToolSpec(Model, frozen=True, kw_only=True):
    """A tool with options of its own; a tool without is written as its name alone.

    Attributes:
        name: Name of the tool.
        options: The tool's own options; see the documentation of the tool.
    """

    name: Token
    options: Annotated[dict[str, Any], msgspec.Meta(max_length=64)] = msgspec.field(default_factory=dict)


class Toleration(Model, frozen=True, kw_only=True):
    """Which taint of a node the pod tolerates, as in the spec of a pod.

    Attributes:
        key: Key of the taint; without it, with operator Exists, every taint.
        operator: ``Equal`` compares the value, ``Exists`` does not.
        value: Value of the taint.
        effect: Effect of the taint; without it, every effect.
        toleration_seconds: How long a NoExecute taint is tolerated. Without it, for ever.
    """

    key: Line | None = None
    operator: Literal["Exists", "Equal"] = "Equal"
    value: Annotated[str, msgspec.Meta(max_length=253)] = ""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    toleration_seconds: Count | None = None


class PodOverrides(Model, frozen=True, kw_only=True):
    """What an episode may change of its pod; everything else belongs to the pod template.

    Attributes:
        resources: Requests and limits of the sandbox, in place of the task's.
        node_selector: Labels of the nodes that the pod may run on.
        tolerations: Which taints of nodes the pod tolerates, besides the template's.
        runtime_class_name: The RuntimeClass of the pod.
        labels: Labels of the pod, besides dgym's.
        annotations: Annotations of the pod, besides the template's.
    """

    resources: Resources = Resources()
    node_selector: Labels = msgspec.field(default_factory=dict)
    tolerations: Annotated[tuple[Toleration, ...], msgspec.Meta(max_length=32)] = ()
    runtime_class_name: Name | None = None
    labels: Labels = msgspec.field(default_factory=dict)
    annotations: Annotations = msgspec.field(default_factory=dict)


Tools = Annotated[tuple[Token | ToolSpec, ...], msgspec.Meta(max_length=64)]


class EpisodeSpec(Model, frozen=True, kw_only=True):
    """What is to be debugged, who debugs, and how far it may go. Exactly one of ``taskRef`` and ``task``.

    Attributes:
        task_ref: A DebugTask of the same namespace. Exactly one of ``taskRef`` and ``task``; neither in the template of
            an EpisodeSet, which has tasks of its own.
        task: The task itself. Exactly one of ``taskRef`` and ``task``.
        agent: Who debugs. Without it the episode is driven from outside.
        tools: The agent's tools, each a name or an object with ``name`` and ``options``. Without them, the agent's
            default ones.
        suspend: Delete the pod and wait. Once this is false, a new pod replays the recorded steps, and the agent goes
            on with what is left of the deadline. An episode that is being scored is finished first.
        cancel: End the episode. It cannot be taken back.
        start_timeout_seconds: How long it may take from the creation of the pod until the sandbox is ready.
        active_deadline_seconds: How long the agent may take, over all attempts. It runs from the first reset, and not
            while the episode is suspended or waits.
        driver_idle_timeout_seconds: How long an episode without ``agent`` waits for a call of its driver, before the
            first one and between any two; then it ends as DriverIdle and is scored as it is.
        backoff_limit: How many new pods are made after failures of the sandbox that are not the agent's doing.
        max_disruptions: How many new pods are made after the loss of a node, drains and preemptions.
        ttl_seconds_after_finished: How long the Episode is kept once it is finished. Without it, until it is
            deleted. Stored results stay.
        pod_template: Which of the cluster's pod templates makes the pod, in place of the task's.
        pod_overrides: What this episode changes of its pod.
        queue_name: The Kueue LocalQueue that admits the episode's pods: each waits as SchedulingGated until it is
            admitted, and its preemption is a disruption. Local runs have no queues.
        priority: Of the episodes in a namespace those with a higher number are started first. Nothing that runs is
            stopped for them.
    """

    task_ref: TaskRef | None = None
    task: DebugTaskSpec | None = None
    agent: AgentSpec | None = None
    tools: Tools = ()
    suspend: bool = False
    cancel: bool = False
    start_timeout_seconds: Annotated[int, msgspec.Meta(ge=1, le=7 * 86400)] = 900
    active_deadline_seconds: Annotated[int, msgspec.Meta(ge=1, le=7 * 86400)] = 3600
    driver_idle_timeout_seconds: Annotated[int, msgspec.Meta(ge=1, le=7 * 86400)] = 3600
    backoff_limit: Annotated[int, msgspec.Meta(ge=0, le=100)] = 2
    max_disruptions: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 10
    ttl_seconds_after_finished: TtlSeconds | None = None
    pod_template: Name | None = None
    pod_overrides: PodOverrides = PodOverrides()
    queue_name: DnsLabel | None = None
    priority: Priority = 0


class EpisodeOutcome(Model, frozen=True, kw_only=True):
    """What came of the episode, in the fields of ``result.json``.

    Attributes:
        resolved: Whether the score is the highest possible one.
        score: How many of the tests that count passed.
        max_score: How many tests count.
        steps: How many steps were taken.
        rewrites: How many of them rewrote a file.
        input_tokens: How many tokens the model read.
        output_tokens: How many tokens the model wrote.
        result_uri: Where result, patch and trajectory are stored.
        message: What else there is to say, for people.
    """

    resolved: bool
    score: Count = 0
    max_score: Count = 0
    steps: Count = 0
    rewrites: Count = 0
    input_tokens: Count = 0
    output_tokens: Count = 0
    result_uri: Annotated[str, msgspec.Meta(max_length=2048)] = msgspec.field(default="", name="resultURI")
    message: Annotated[str, msgspec.Meta(max_length=1024)] = ""


class AgentAssignment(Model, frozen=True, kw_only=True):
    """Which agent pod serves the episode; a higher epoch supersedes a lower one.

    Attributes:
        agent_pod_uid: UID of the agent's pod.
        epoch: Number of the assignment. It grows over all attempts of the episode and is never used twice.
        attempt: Number of the attempt.
        mode: What the agent does: run the episode, prepare it for an external driver, or recover a stored verdict.
        failures: How often another try was due in this pod because the model had failed.
        failed_time: When the model failed last; there until the next assignment.
        outages: How often in a row the provider of the model was out. They do not count as failures.
        losses: How many agents of this attempt were lost before.
    """

    agent_pod_uid: Token = msgspec.field(name="agentPodUID")
    epoch: Count
    attempt: Count = 0
    mode: Literal["run", "prepare", "recover"] = "run"
    failures: Count = 0
    outages: Count = 0
    failed_time: Timestamp | None = None
    losses: Count = 0


class Stages(Model, frozen=True, kw_only=True):
    """When each stage was first observed.

    Attributes:
        pod_created: The pod was created.
        scheduled: The pod had a node.
        sandbox_ready: The sandbox took commands.
        assigned: An agent had the episode.
        first_step: The first step was taken.
        last_step: The last step was taken.
        verified: The episode was scored.
    """

    pod_created: Timestamp | None = None
    scheduled: Timestamp | None = None
    sandbox_ready: Timestamp | None = None
    assigned: Timestamp | None = None
    first_step: Timestamp | None = None
    last_step: Timestamp | None = None
    verified: Timestamp | None = None


class Termination(Model, frozen=True, kw_only=True):
    """An end that an operator of version 0.1 has decided on; ``ending`` has taken its place.

    Attributes:
        reason: The reason of Finished, if the pod leaves no verdict.
        message: The cause, for people.
    """

    reason: Annotated[str, msgspec.Meta(max_length=64)]
    message: Annotated[str, msgspec.Meta(max_length=1024)] = ""


class PodRef(Model, frozen=True, kw_only=True):
    """Exactly one pod.

    Attributes:
        name: Name of the pod.
        uid: UID of the pod; another pod may have had the name.
    """

    name: Name
    uid: Token


class AttemptEnding(Model, frozen=True, kw_only=True):
    """An attempt that ends: its pod is deleted, its last message read, and a stored verdict looked for.

    Attributes:
        cause: Whose doing it is: agent, infrastructure, disruption or user.
        reason: The reason of the end, if there is no verdict.
        message: The cause, for people.
        since: When the end was decided on or observed.
    """

    cause: Annotated[str, msgspec.Meta(max_length=64)]
    reason: Annotated[str, msgspec.Meta(max_length=64)]
    message: Annotated[str, msgspec.Meta(max_length=1024)] = ""
    since: Timestamp | None = None


class PoisonedStep(Model, frozen=True, kw_only=True):
    """A step under which the sandbox, or its sidecar, died: the agent's doing.

    Attributes:
        step: Number of the step.
        reason: The cause, such as OOMKilled.
        attempt: Number of the attempt that was lost.
    """

    step: Count
    reason: Annotated[str, msgspec.Meta(max_length=256)] = ""
    attempt: Count = 0


class ReplaySource(Model, frozen=True, kw_only=True):
    """The attempt whose recorded steps the next attempt replays in its new pod.

    Attributes:
        attempt: Number of the attempt.
        steps: How many steps it had, as last reported.
    """

    attempt: Count
    steps: Count = 0


class EpisodeStatus(Model, frozen=True, kw_only=True):
    """What was observed. ``reason`` repeats the reason of ``Finished`` (or of waiting) where selectors can see it.

    Attributes:
        conditions: SandboxReady, Finished, Resolved, Suspended, and Ready and Stalled for tools that follow kstatus.
            Wait for Finished.
        reason: Why the episode finished or what it waits for, such as Resolved, Running or Unschedulable.
        state: Whether the episode is Waiting, Running or Finished: a reason such as Unschedulable may be that of a wait
            or that of the end.
        message: The cause of the reason, for people.
        steps: How many steps the attempt has taken, as last recorded.
        outcome: Score, steps and tokens; there once the episode is finished.
        cost: What the model's tokens have cost so far, over all attempts, in the currency of the model's prices. Empty
            for a model without prices.
        attempt: Number of the newest attempt that a pod was made for.
        failures: How many attempts the sandbox has failed. They count against backoffLimit.
        disruptions: How many attempts were lost with their node. They count against maxDisruptions.
        disrupted_attempt: Number of the last attempt whose pod was seen to be disrupted: drained, preempted, or its
            node lost. Its end counts against maxDisruptions, not against backoffLimit.
        active_seconds: How long agents had served the attempts that are over, from their resets on. It counts against
            the deadline.
        poisoned_steps: Steps under which the sandbox or its sidecar died. A new pod replays all others; the second of
            them ends the episode as SandboxKilled.
        replay: The attempt whose recorded steps the attempt that runs, or the next one, replays.
        attempt_seconds: How long agents before the present one had served the attempt that runs, from its reset on.
        pod_name: The pod of the attempt that runs.
        pod_ref: The same pod by name and UID.
        task_uid: UID of the DebugTask that is used.
        assignment: Which agent serves the episode.
        epoch: The highest epoch of all assignments so far.
        ending: How the attempt ends; there until its pod has ended and a stored verdict was looked for.
        termination: What operators of version 0.1 wrote in place of ``ending``; still read.
        start_time: When the first attempt began.
        completion_time: When the episode finished.
        stages: When each stage of the newest attempt was first observed.
        observed_generation: The generation of the Episode that this status is about; -1 before the first status.
    """

    conditions: Conditions = ()
    reason: Annotated[str, msgspec.Meta(max_length=64)] = ""
    state: Annotated[str, msgspec.Meta(max_length=64)] = ""
    message: Annotated[str, msgspec.Meta(max_length=1024)] = ""
    steps: Count = 0
    outcome: EpisodeOutcome | None = None
    cost: Paid = ""
    attempt: Count = 0
    failures: Count = 0
    disruptions: Count = 0
    disrupted_attempt: Count = 0
    active_seconds: Count = 0
    poisoned_steps: Annotated[tuple[PoisonedStep, ...], msgspec.Meta(max_length=8)] = ()
    replay: ReplaySource | None = None
    attempt_seconds: Count = 0
    pod_name: Name | None = None
    pod_ref: PodRef | None = None
    task_uid: Token | None = msgspec.field(default=None, name="taskUID")
    assignment: AgentAssignment | None = None
    epoch: Count = 0
    ending: AttemptEnding | None = None
    termination: Termination | None = None
    start_time: Timestamp | None = None
    completion_time: Timestamp | None = None
    stages: Stages = Stages()
    observed_generation: ObservedGeneration | None = None


class Episode(Model, frozen=True, kw_only=True, omit_defaults=False):
    """One debugging episode: one agent, one buggy Python repository, one sandbox.

    Attributes:
        spec: What is to be debugged, who debugs, and how far it may go.
        status: What was observed.
    """

    api_version: Literal["dgym.dev/v1alpha1"] = API_VERSION
    kind: Literal["Episode"] = "Episode"
    metadata: ObjectMeta
    spec: EpisodeSpec
    status: EpisodeStatus = EpisodeStatus()
