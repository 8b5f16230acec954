"""Episode: one agent (or an external driver), one task, one sandbox; and what became of it."""

from typing import Annotated, Any, Literal

import msgspec

from dgym.api.fields import (
    API_VERSION,
    Annotations,
    Count,
    Labels,
    Line,
    Model,
    Name,
    Priority,
    Token,
    TtlSeconds,
)
from dgym.api.meta import Conditions, ObjectMeta, Timestamp
from dgym.api.task import DebugTaskSpec, Resources


class TaskRef(Model, frozen=True, kw_only=True):
    """A DebugTask by name: of the same namespace, or in a local run of the manifests given."""

    name: Name


class AgentSpec(Model, frozen=True, kw_only=True):
    """Who debugs, and how far it may go.

    ``temperature`` is text, because floating numbers do not survive every serializer. ``parameters`` are the agent's
    own.
    """

    name: Token
    model: Line | None = None
    max_steps: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 50
    max_rewrites: Annotated[int, msgspec.Meta(ge=0, le=10_000)] | None = None
    token_budget: Annotated[int, msgspec.Meta(ge=1, le=10**12)] | None = None
    temperature: (
        Annotated[
            str, msgspec.Meta(max_length=16, pattern=r"^[0-9]+(\.[0-9]+)?$", description='a number in quotes ("0.2")')
        ]
        | None
    ) = None
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**53)] | None = None
    parameters: Annotated[dict[str, Any], msgspec.Meta(max_length=128)] = msgspec.field(default_factory=dict)


class ToolSpec(Model, frozen=True, kw_only=True):
    """A tool with options of its own; a tool without is written as its name alone."""

    name: Token
    options: Annotated[dict[str, Any], msgspec.Meta(max_length=64)] = msgspec.field(default_factory=dict)


class Toleration(Model, frozen=True, kw_only=True):
    """As of a pod."""

    key: Line | None = None
    operator: Literal["Exists", "Equal"] = "Equal"
    value: Annotated[str, msgspec.Meta(max_length=253)] = ""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    toleration_seconds: Count | None = None


class PodOverrides(Model, frozen=True, kw_only=True):
    """What an episode may change of its pod; everything else belongs to the pod template."""

    resources: Resources = Resources()
    node_selector: Labels = msgspec.field(default_factory=dict)
    tolerations: Annotated[tuple[Toleration, ...], msgspec.Meta(max_length=32)] = ()
    runtime_class_name: Name | None = None
    labels: Labels = msgspec.field(default_factory=dict)
    annotations: Annotations = msgspec.field(default_factory=dict)


Tools = Annotated[tuple[Token | ToolSpec, ...], msgspec.Meta(max_length=64)]


class EpisodeSpec(Model, frozen=True, kw_only=True):
    """Exactly one of ``task_ref`` and ``task`` (neither in a set's template, which gets its tasks from the set).

    Without ``agent`` the episode is driven from outside. Empty ``tools`` mean the agent's default ones.
    ``active_deadline_seconds`` runs from the first reset over all attempts, without suspended and waiting time;
    ``start_timeout_seconds`` from the pod's creation until the sandbox is ready. ``backoff_limit`` bounds new pods
    after failures of the sandbox, ``max_disruptions`` after failures of nodes. ``priority`` orders, never preempts.
    """

    task_ref: TaskRef | None = None
    task: DebugTaskSpec | None = None
    agent: AgentSpec | None = None
    tools: Tools = ()
    suspend: bool = False
    cancel: bool = False
    start_timeout_seconds: Annotated[int, msgspec.Meta(ge=1, le=7 * 86400)] = 900
    active_deadline_seconds: Annotated[int, msgspec.Meta(ge=1, le=7 * 86400)] = 3600
    backoff_limit: Annotated[int, msgspec.Meta(ge=0, le=100)] = 2
    max_disruptions: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 10
    ttl_seconds_after_finished: TtlSeconds | None = None
    pod_template: Name | None = None
    pod_overrides: PodOverrides = PodOverrides()
    priority: Priority = 0


class EpisodeOutcome(Model, frozen=True, kw_only=True):
    """What came of the episode, in the fields of ``result.json``."""

    resolved: bool
    score: Count = 0
    max_score: Count = 0
    steps: Count = 0
    rewrites: Count = 0
    input_tokens: Count = 0
    output_tokens: Count = 0
    result_uri: Annotated[str, msgspec.Meta(max_length=2048)] = msgspec.field(default="", name="resultURI")
    message: Annotated[str, msgspec.Meta(max_length=1024)] = ""


class Assignment(Model, frozen=True, kw_only=True):
    """Which agent pod serves the episode; a higher epoch supersedes a lower one."""

    agent_pod_uid: Token = msgspec.field(name="agentPodUID")
    epoch: Count


class Stages(Model, frozen=True, kw_only=True):
    """When each stage was first observed."""

    pod_created: Timestamp | None = None
    scheduled: Timestamp | None = None
    sandbox_ready: Timestamp | None = None
    assigned: Timestamp | None = None
    first_step: Timestamp | None = None
    last_step: Timestamp | None = None
    verified: Timestamp | None = None


class EpisodeStatus(Model, frozen=True, kw_only=True):
    """What was observed. ``reason`` repeats the reason of ``Finished`` (or of waiting) where selectors can see it."""

    conditions: Conditions = ()
    reason: Annotated[str, msgspec.Meta(max_length=64)] = ""
    outcome: EpisodeOutcome | None = None
    attempt: Count = 0
    pod_name: Name | None = None
    task_uid: Token | None = msgspec.field(default=None, name="taskUID")
    assignment: Assignment | None = None
    start_time: Timestamp | None = None
    completion_time: Timestamp | None = None
    stages: Stages = Stages()
    observed_generation: Count | None = None


class Episode(Model, frozen=True, kw_only=True, omit_defaults=False):
    """One debugging episode."""

    api_version: Literal["dgym.dev/v1alpha1"] = API_VERSION
    kind: Literal["Episode"] = "Episode"
    metadata: ObjectMeta
    spec: EpisodeSpec
    status: EpisodeStatus = EpisodeStatus()
