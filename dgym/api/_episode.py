"""Episode: an agent or an external driver debugs one task in one sandbox. Also its conditions, reasons and causes."""

from enum import StrEnum
from typing import Annotated, Any, Literal

import msgspec

from dgym.api._fields import (
    API_VERSION,
    Annotations,
    Conditions,
    Cost,
    Count,
    DnsLabel,
    Labels,
    Line,
    ManifestStruct,
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
from dgym.api._task import DebugTaskSpec, Resources
from dgym.wire import EndReason, Outcome

DEFAULT_STEPS = 50
"""Default of ``agent.maxSteps``."""


class TaskRef(ManifestStruct, frozen=True, kw_only=True):
    """A reference to a DebugTask of the same namespace or, in a local run, of the given manifests.

    Attributes:
        name: Name of the DebugTask.
    """

    name: Name


class AgentSpec(ManifestStruct, frozen=True, kw_only=True):
    """The agent, its model and its limits.

    Attributes:
        name: Name of the agent, such as debug_agent.
        model: Name of a model in the model configuration of the agent pods.
        max_steps: Maximum number of tool calls of the agent.
        max_rewrites: Maximum number of calls of the tool ``rewrite``. They count as steps too. Without it,
            only ``maxSteps`` limits them.
        token_budget: Maximum number of tokens that the model may read and write in total. Without it, any number.
        cost_limit: Highest cost of the model's tokens over all attempts, in quotes ("2.50"), in the currency of the
            model's prices. The model must have prices. Without it, any cost.
        temperature: Temperature of the model's sampling, in quotes ("0.2"), because some serializers change
            floating-point numbers.
        seed: Seed of the model's sampling and of the agent's own choices. A set adds the number of the sample.
        parameters: Parameters of the agent. The documentation of the agent describes them.
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


class ToolSpec(ManifestStruct, frozen=True, kw_only=True):
    """A tool with options. A tool without options is written as its name alone.

    Attributes:
        name: Name of the tool.
        options: Options of the tool. The documentation of the tool describes them.
    """

    name: Token
    options: Annotated[dict[str, Any], msgspec.Meta(max_length=64)] = msgspec.field(default_factory=dict)


STANDARD_TOOLS = ("listdir", "view", "grep", "eval", "pdb", "rewrite", "bash", "submit")
"""The tools of an episode if neither its manifest nor its agent chooses."""


class Toleration(ManifestStruct, frozen=True, kw_only=True):
    """A toleration of the pod, as in the spec of a pod.

    Attributes:
        key: Key of the taint. Without it, and with the operator Exists, every taint matches.
        operator: ``Equal`` compares the value, ``Exists`` does not.
        value: Value of the taint.
        effect: Effect of the taint. Without it, every effect matches.
        toleration_seconds: How long a NoExecute taint is tolerated. Without it, forever.
    """

    key: Line | None = None
    operator: Literal["Exists", "Equal"] = "Equal"
    value: Annotated[str, msgspec.Meta(max_length=253)] = ""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    toleration_seconds: Count | None = None


class PodOverrides(ManifestStruct, frozen=True, kw_only=True):
    """The fields of its pod that an episode may change. The pod template defines all others.

    Attributes:
        resources: Resource requests and limits of the sandbox. They replace those of the task.
        node_selector: Labels of the nodes that the pod may run on.
        tolerations: Tolerations of the pod, in addition to those of the template.
        runtime_class_name: The RuntimeClass of the pod.
        labels: Labels of the pod, in addition to dgym's labels.
        annotations: Annotations of the pod, in addition to those of the template.
    """

    resources: Resources = Resources()
    node_selector: Labels = msgspec.field(default_factory=dict)
    tolerations: Annotated[tuple[Toleration, ...], msgspec.Meta(max_length=32)] = ()
    runtime_class_name: Name | None = None
    labels: Labels = msgspec.field(default_factory=dict)
    annotations: Annotations = msgspec.field(default_factory=dict)


Tools = Annotated[tuple[Token | ToolSpec, ...], msgspec.Meta(max_length=64)]


class EpisodeSpec(ManifestStruct, frozen=True, kw_only=True):
    """The task, the agent and the limits of an episode. Exactly one of ``taskRef`` and ``task`` is required.

    Attributes:
        task_ref: A DebugTask of the same namespace. Exactly one of ``taskRef`` and ``task`` is required. The template
            of an EpisodeSet has neither, because the set has tasks.
        task: The task inline. Exactly one of ``taskRef`` and ``task`` is required.
        agent: The agent. Without it, an external driver drives the episode.
        tools: The agent's tools. Each is a name or an object with ``name`` and ``options``. Without them, the default
            tools of the agent.
        suspend: Delete the pod and wait. When this becomes false, a new pod replays the recorded steps, and the agent
            continues with the rest of its deadline. If the episode is being scored, it finishes first.
        cancel: End the episode. This cannot be undone.
        start_timeout_seconds: Maximum time in seconds from the creation of the pod until the sandbox is ready.
        active_deadline_seconds: Deadline of the agent, over all attempts. It runs from the first reset, and is paused
            while the episode is suspended or waits.
        driver_idle_timeout_seconds: How long an episode without ``agent`` waits for the first or the next call of its
            driver. After that it ends as DriverIdle and is scored.
        backoff_limit: Maximum number of new pods after failures of the sandbox that the agent did not cause.
        max_disruptions: Maximum number of new pods after drains, preemptions and losses of nodes.
        ttl_seconds_after_finished: How long a finished Episode is kept. Without it, until it is deleted. Stored results
            remain.
        pod_template: Name of the cluster's pod template for the pod. It replaces the template of the task.
        pod_overrides: Changes of the pod for this episode.
        queue_name: The Kueue LocalQueue that admits the episode's pods. A pod waits as SchedulingGated until it is
            admitted. Its preemption is a disruption. Local runs have no queues.
        priority: In each namespace, episodes with a higher priority start first. Running episodes are not stopped for
            them.
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


class AgentPodAssignment(ManifestStruct, frozen=True, kw_only=True):
    """The assignment of the episode to an agent pod. A higher epoch supersedes a lower one.

    Attributes:
        agent_pod_uid: UID of the agent pod.
        epoch: Number of the assignment. It increases over all attempts of the episode and is never reused.
        attempt: Number of the attempt.
        mode: The task of the agent pod: ``run`` runs the episode, ``prepare`` prepares it for an external driver,
            ``recover`` looks for a stored result.
        failures: How often the model failed in this pod so that another try was due.
        failed_time: When the model last failed. Absent after the next assignment.
        outages: Number of consecutive outages of the model's provider. They do not count as failures.
        losses: How many agent pods of this attempt were lost before.
    """

    agent_pod_uid: Token = msgspec.field(name="agentPodUID")
    epoch: Count
    attempt: Count = 0
    mode: Literal["run", "prepare", "recover"] = "run"
    failures: Count = 0
    outages: Count = 0
    failed_time: Timestamp | None = None
    losses: Count = 0


class Stages(ManifestStruct, frozen=True, kw_only=True):
    """When each stage was first observed.

    Attributes:
        pod_created: The pod was created.
        scheduled: The pod was scheduled to a node.
        sandbox_ready: The sandbox was ready for commands.
        assigned: The episode was assigned to an agent pod.
        first_step: The first step was executed.
        last_step: The last step was executed.
        verified: The episode was scored.
    """

    pod_created: Timestamp | None = None
    scheduled: Timestamp | None = None
    sandbox_ready: Timestamp | None = None
    assigned: Timestamp | None = None
    first_step: Timestamp | None = None
    last_step: Timestamp | None = None
    verified: Timestamp | None = None


class PodRef(ManifestStruct, frozen=True, kw_only=True):
    """A pod.

    Attributes:
        name: Name of the pod.
        uid: UID of the pod. It differs for another pod with the same name.
    """

    name: Name
    uid: Token


class AttemptEnding(ManifestStruct, frozen=True, kw_only=True):
    """An attempt that is ending.

    Its pod is deleted, its termination message is read, and a stored result is looked for.

    Attributes:
        cause: Who or what ended the attempt: agent, infrastructure, disruption or user.
        reason: Reason of the end if the attempt failed.
        message: Explanation of the reason, for people.
        since: When the end was decided or observed.
    """

    cause: Annotated[str, msgspec.Meta(max_length=64)]
    reason: Annotated[str, msgspec.Meta(max_length=64)]
    message: Annotated[str, msgspec.Meta(max_length=1024)] = ""
    since: Timestamp | None = None


class PoisonedStep(ManifestStruct, frozen=True, kw_only=True):
    """A step during which the sandbox or its sidecar died, which counts as the agent's fault.

    Attributes:
        step: Number of the step.
        reason: How the container died, such as OOMKilled.
        attempt: Number of the attempt that was lost.
    """

    step: Count
    reason: Annotated[str, msgspec.Meta(max_length=256)] = ""
    attempt: Count = 0


class ReplaySource(ManifestStruct, frozen=True, kw_only=True):
    """The attempt whose recorded steps the next attempt replays in its new pod.

    Attributes:
        attempt: Number of the attempt.
        steps: Number of its steps, as last reported.
    """

    attempt: Count
    steps: Count = 0


class EpisodeStatus(ManifestStruct, frozen=True, kw_only=True):
    """Observed state of an episode.

    Attributes:
        conditions: SandboxReady, Finished, Resolved and Suspended, and Ready and Stalled for tools that follow kstatus.
            Wait for Finished.
        reason: Why the episode finished, or what it waits for, such as Resolved, Running or Unschedulable. Field
            selectors can use it.
        state: Waiting, Running or Finished. A reason such as Unschedulable can be that of a waiting or of a finished
            episode.
        message: Explanation of the reason, for people: what the episode waits for; at its end, the agent's message at
            submit or the cause of a failure.
        steps: Number of steps of the attempt, as last recorded.
        outcome: Score, steps and tokens of the finished episode.
        cost: Cost of the model's tokens so far, over all attempts, in the currency of the model's prices. Empty for a
            model without prices.
        attempt: Number of the newest attempt for which a pod was created.
        failures: Number of attempts that failed because of the sandbox. They count against ``backoffLimit``.
        disruptions: Number of attempts that were lost through disruptions. They count against ``maxDisruptions``.
        disrupted_attempt: Number of the last attempt whose pod was disrupted: drained, preempted, or lost with its
            node. Its end counts against ``maxDisruptions``, not against ``backoffLimit``.
        active_seconds: How long agent pods served the earlier attempts, each from its first reset. It counts against
            the deadline.
        poisoned_steps: Steps during which the sandbox or its sidecar died. A new pod replays all steps except the first
            of them. The second one ends the episode as SandboxKilled.
        replay: The attempt whose recorded steps the current or next attempt replays.
        attempt_seconds: How long earlier agent pods served the current attempt, from its first reset.
        pod_name: Name of the pod of the current attempt.
        pod_ref: Name and UID of the pod of the current attempt.
        task_uid: UID of the DebugTask.
        assignment: Assignment of the episode to an agent pod.
        epoch: Highest epoch of all assignments so far.
        ending: How the attempt ends. Absent once its pod has terminated and a stored result was looked for.
        start_time: When the first attempt started.
        completion_time: When the episode finished.
        stages: When each stage of the newest attempt was first observed.
        observed_generation: Generation of the Episode for which the status was written. -1 before the first status.
    """

    conditions: Conditions = ()
    reason: Annotated[str, msgspec.Meta(max_length=64)] = ""
    state: Annotated[str, msgspec.Meta(max_length=64)] = ""
    message: Annotated[str, msgspec.Meta(max_length=1024)] = ""
    steps: Count = 0
    outcome: Outcome | None = None
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
    assignment: AgentPodAssignment | None = None
    epoch: Count = 0
    ending: AttemptEnding | None = None
    start_time: Timestamp | None = None
    completion_time: Timestamp | None = None
    stages: Stages = Stages()
    observed_generation: ObservedGeneration | None = None


class Episode(ManifestStruct, frozen=True, kw_only=True, omit_defaults=False):
    """A debugging episode: an agent or an external driver debugs a Python repository in a sandbox.

    Attributes:
        spec: The task, the agent and the limits.
        status: Observed state of the episode.
    """

    api_version: Literal["dgym.dev/v1alpha1"] = API_VERSION
    kind: Literal["Episode"] = "Episode"
    metadata: ObjectMeta
    spec: EpisodeSpec
    status: EpisodeStatus = EpisodeStatus()


class ConditionType(StrEnum):
    """Types of conditions. The docstring of the status of each kind lists the types of that kind."""

    SANDBOX_READY = "SandboxReady"
    FINISHED = "Finished"
    RESOLVED = "Resolved"
    SUSPENDED = "Suspended"
    HEALTHY = "Healthy"
    READY = "Ready"
    MODEL_AVAILABLE = "ModelAvailable"
    RESULT_STORE_AVAILABLE = "ResultStoreAvailable"
    STALLED = "Stalled"


class ResolvedReason(StrEnum):
    """Reasons of the condition ``Resolved``.

    An episode that is not solved was either scored and failed, or never scored.
    """

    SOLVED = "Solved"
    UNSOLVED = "Unsolved"
    NOT_SCORED = "NotScored"


class EpisodeState(StrEnum):
    """``status.state``: whether ``status.reason`` belongs to a waiting, a running or a finished episode."""

    WAITING = "Waiting"
    RUNNING = "Running"
    FINISHED = "Finished"


class EndCause(StrEnum):
    """``status.ending.cause``: who or what ended an attempt. An unknown fault counts as infrastructure."""

    AGENT = "agent"
    INFRASTRUCTURE = "infrastructure"
    DISRUPTION = "disruption"
    USER = "user"


class ProgressReason(StrEnum):
    """``status.reason`` of an episode that is not finished."""

    PENDING = "Pending"
    WAITING_FOR_SLOT = "WaitingForSlot"
    WAITING_FOR_TASK = "WaitingForTask"
    POD_NOT_CREATED = "PodNotCreated"
    SCHEDULING_GATED = "SchedulingGated"
    STARTING = "Starting"
    RUNNING = "Running"
    SCORING = "Scoring"
    STORING = "Storing"
    RESULT_STORE_UNAVAILABLE = "ResultStoreUnavailable"
    TERMINATING = "Terminating"
    SUSPENDED = "Suspended"


class Treatment(StrEnum):
    """The controller's treatment of an episode that stopped; each reason has exactly one."""

    COUNTED = "counted"
    WAIT = "wait"
    REASSIGN = "reassign"
    NEW_POD = "new pod"
    TERMINAL = "terminal"


TREATMENTS: dict[str, Treatment] = {
    **{reason.value: Treatment.COUNTED for reason in EndReason if reason.is_counted},
    "Unschedulable": Treatment.WAIT,
    "ImagePullFailed": Treatment.WAIT,
    "QuotaExceeded": Treatment.WAIT,
    "TaskNotFound": Treatment.WAIT,
    "AgentPodLost": Treatment.REASSIGN,
    "ModelError": Treatment.REASSIGN,
    "SandboxLost": Treatment.NEW_POD,
    "SandboxStartFailed": Treatment.NEW_POD,
    "InvalidSpec": Treatment.TERMINAL,
    "PodRejected": Treatment.TERMINAL,
    "SourceFailed": Treatment.TERMINAL,
    "SetupFailed": Treatment.TERMINAL,
    "VerifierFailed": Treatment.TERMINAL,
    "InternalError": Treatment.TERMINAL,
}
