"""What the controller keeps of the objects it watches: the few fields that decisions are made from.

Decoded from the bytes of a watch straight into these structs; a pod takes some 2 kB. The task inside an Episode may be
200 kB and is only noted to be there: whoever needs it asks the API server.
"""

from datetime import datetime
from typing import Any

import msgspec

from dgym.api import AgentSpec, EpisodeSetSpec, EpisodeSetStatus, EpisodeStatus, OwnerReference, PodOverrides, TaskRef


class View(msgspec.Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    """Base of all views; fields that are not named are passed over."""


class Meta(View, frozen=True, kw_only=True):
    """Metadata as far as it matters."""

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    owner_references: tuple[OwnerReference, ...] = ()

    @property
    def controller(self) -> OwnerReference | None:
        """The owner that controls this object."""
        return next((owner for owner in self.owner_references if owner.controller), None)


class Object(View, frozen=True, kw_only=True):
    """Anything that is watched."""

    metadata: Meta

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""
        return (self.metadata.namespace, self.metadata.name)


# Pods


class Terminated(View, frozen=True, kw_only=True):
    """How a container ended."""

    exit_code: int = 0
    reason: str = ""
    message: str = ""
    finished_at: datetime | None = None


class Waiting(View, frozen=True, kw_only=True):
    """Why a container does not run yet."""

    reason: str = ""
    message: str = ""


class ContainerState(View, frozen=True, kw_only=True):
    """Exactly one of them; ``running`` holds nothing that matters."""

    waiting: Waiting | None = None
    running: dict[str, Any] | None = None
    terminated: Terminated | None = None


class Container(View, frozen=True, kw_only=True):
    """A container's status."""

    name: str
    ready: bool = False
    state: ContainerState = ContainerState()


class PodCondition(View, frozen=True, kw_only=True):
    """A pod's condition."""

    type: str
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None


class PodStatus(View, frozen=True, kw_only=True):
    """What became of the pod. ``reason`` is set by evictions and rejections of the kubelet."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")
    conditions: tuple[PodCondition, ...] = ()
    init_container_statuses: tuple[Container, ...] = ()
    container_statuses: tuple[Container, ...] = ()


class PodSpec(View, frozen=True, kw_only=True):
    """Where the pod runs."""

    node_name: str = ""


class Pod(Object, frozen=True, kw_only=True):
    """A pod of an episode, or of an agent."""

    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    def condition(self, kind: str) -> PodCondition | None:
        """The condition of that type."""
        return next((each for each in self.status.conditions if each.type == kind), None)

    def container(self, name: str) -> Container | None:
        """The status of that container, init containers included."""
        statuses = (*self.status.container_statuses, *self.status.init_container_statuses)
        return next((each for each in statuses if each.name == name), None)

    @property
    def ready(self) -> bool:
        """Whether sandbox, verifier and sidecar are up."""
        condition = self.condition("Ready")
        return condition is not None and condition.status == "True"


# Episodes, sets, tasks


class EpisodeSpecView(View, frozen=True, kw_only=True):
    """An Episode's spec without the task's contents: ``task`` stays the bytes it came in, of which only {} matters."""

    task_ref: TaskRef | None = None
    task: "InlineTask | None" = None
    agent: AgentSpec | None = None
    suspend: bool = False
    cancel: bool = False
    start_timeout_seconds: int = 900
    active_deadline_seconds: int = 3600
    backoff_limit: int = 2
    max_disruptions: int = 10
    ttl_seconds_after_finished: int | None = None
    pod_template: str | None = None
    pod_overrides: PodOverrides = PodOverrides()
    priority: int = 0


class InlineTask(View, frozen=True, kw_only=True):
    """That there is an inline task, and what of it concerns the pod's clock."""

    image: str | None = None
    pod_template: str | None = None
    entrypoint_timeout_seconds: int = 300


class EpisodeView(Object, frozen=True, kw_only=True):
    """An Episode."""

    spec: EpisodeSpecView
    status: EpisodeStatus = EpisodeStatus()


class EpisodeSetView(Object, frozen=True, kw_only=True):
    """An EpisodeSet."""

    spec: EpisodeSetSpec
    status: EpisodeSetStatus = EpisodeSetStatus()


class TaskSpecView(View, frozen=True, kw_only=True):
    """What of a DebugTask concerns clocks."""

    entrypoint_timeout_seconds: int = 300


class TaskView(Object, frozen=True, kw_only=True):
    """A DebugTask: that it is there, its labels, and its clock."""

    spec: TaskSpecView = TaskSpecView()


class ConfigMapView(Object, frozen=True, kw_only=True):
    """A ConfigMap of a set: its frozen list of tasks."""

    data: dict[str, str] = msgspec.field(default_factory=dict)
