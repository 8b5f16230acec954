"""What the controller keeps of the objects it watches: the few fields that decisions are made from.

Decoded from the bytes of a watch straight into these structs; a pod takes less than 2 kB. The task inside an Episode
may be 200 kB and is only noted to be there: whoever needs it asks the API server.

Texts that thousands of pods have in common are kept once: words of a known vocabulary as enums, names interned.
"""

from datetime import datetime
from enum import StrEnum
from sys import intern

import msgspec
from msgspec.structs import force_setattr

from dgym.api import AgentSpec, EpisodeSetSpec, EpisodeSetStatus, EpisodeStatus, PodOverrides, TaskRef
from dgym.api.labels import ATTEMPT, KEY

POLICY_NAME = "dgym-sandbox"
"""The NetworkPolicy of sandboxes, in every namespace with episodes."""
OWNER_LEASE = "dgym-owner"
"""The Lease by which an installation claims a namespace."""
MANAGED_BY = {"app.kubernetes.io/name": "dgym", "app.kubernetes.io/managed-by": "dgym-operator"}
SANDBOX_LABELS = {"app.kubernetes.io/name": "dgym", "app.kubernetes.io/component": "sandbox"}
OPERATOR_LABELS = {"app.kubernetes.io/name": "dgym", "app.kubernetes.io/component": "operator"}


class View(msgspec.Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    """Base of all views; fields that are not named are passed over."""


class Owner(View, frozen=True, kw_only=True):
    """Whose deletion deletes the object."""

    kind: str
    name: str
    uid: str
    controller: bool = False

    def __post_init__(self) -> None:
        force_setattr(self, "kind", intern(self.kind))


class Identity(View, frozen=True, kw_only=True):
    """Who an object is, which version of it this is, and whose it is."""

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    owner_references: tuple[Owner, ...] = ()

    def __post_init__(self) -> None:
        force_setattr(self, "namespace", intern(self.namespace))

    @property
    def controller(self) -> Owner | None:
        """The owner that controls this object."""
        return next((owner for owner in self.owner_references if owner.controller), None)


class Meta(Identity, frozen=True, kw_only=True):
    """Metadata as far as it matters."""

    generation: int = 0
    labels: dict[str, str] = msgspec.field(default_factory=dict)


class Object(View, frozen=True, kw_only=True):
    """Anything that is watched."""

    metadata: Identity

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""
        return (self.metadata.namespace, self.metadata.name)


# Pods


class PodLabels(View, frozen=True, kw_only=True):
    """The labels of a pod that are read; selectors are the API server's work."""

    attempt: str = msgspec.field(default="", name=ATTEMPT)
    key: str = msgspec.field(default="", name=KEY)

    def __post_init__(self) -> None:
        force_setattr(self, "key", intern(self.key))


class PodMeta(Identity, frozen=True, kw_only=True):
    """A pod's metadata."""

    labels: PodLabels = PodLabels()


class Terminated(View, frozen=True, kw_only=True):
    """How a container ended."""

    exit_code: int = 0
    reason: str = ""
    message: str = ""
    finished_at: datetime | None = None

    def __post_init__(self) -> None:
        force_setattr(self, "reason", intern(self.reason))


class Waiting(View, frozen=True, kw_only=True):
    """Why a container does not run yet."""

    reason: str = ""
    message: str = ""


class ContainerState(View, frozen=True, kw_only=True):
    """At most one of them; a container that runs has neither."""

    waiting: Waiting | None = None
    terminated: Terminated | None = None


class Container(View, frozen=True, kw_only=True):
    """A container's status."""

    name: str
    state: ContainerState = ContainerState()

    def __post_init__(self) -> None:
        force_setattr(self, "name", intern(self.name))


class PodConditionType(StrEnum):
    """Types of a pod's conditions. Others are as good as absent."""

    READY = "Ready"
    SCHEDULED = "PodScheduled"
    DISRUPTION_TARGET = "DisruptionTarget"
    INITIALIZED = "Initialized"
    CONTAINERS_READY = "ContainersReady"
    READY_TO_START_CONTAINERS = "PodReadyToStartContainers"
    OTHER = ""

    @classmethod
    def _missing_(cls, value: object) -> "PodConditionType":
        del value
        return cls.OTHER


_READ = (
    PodConditionType.READY,
    PodConditionType.SCHEDULED,
    PodConditionType.DISRUPTION_TARGET,
    PodConditionType.CONTAINERS_READY,
)


class ConditionStatus(StrEnum):
    """Of a pod's condition."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"

    @classmethod
    def _missing_(cls, value: object) -> "ConditionStatus":
        del value
        return cls.UNKNOWN


class PodCondition(View, frozen=True, kw_only=True):
    """A pod's condition."""

    type: PodConditionType
    status: ConditionStatus = ConditionStatus.UNKNOWN
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None


class PodPhase(StrEnum):
    """A pod's phase."""

    NONE = ""
    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    UNKNOWN = "Unknown"

    @classmethod
    def _missing_(cls, value: object) -> "PodPhase":
        del value
        return cls.UNKNOWN


class PodStatus(View, frozen=True, kw_only=True):
    """What became of the pod. ``reason`` is set by evictions and rejections of the kubelet."""

    phase: PodPhase = PodPhase.NONE
    reason: str = ""
    message: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")
    conditions: tuple[PodCondition, ...] = ()
    init_container_statuses: tuple[Container, ...] = ()
    container_statuses: tuple[Container, ...] = ()

    def __post_init__(self) -> None:
        force_setattr(self, "conditions", tuple([each for each in self.conditions if each.type in _READ]))


class Pod(Object, frozen=True, kw_only=True):
    """A pod of an episode, or of an agent."""

    metadata: PodMeta
    status: PodStatus = PodStatus()

    def condition(self, kind: str) -> PodCondition | None:
        """The condition of that type, if it is one that decisions read."""
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

    def url(self, port: int) -> str:
        """Where the pod listens on ``port``; empty while it has no address."""
        address = self.status.pod_ip
        if not address:
            return ""
        return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"


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

    metadata: Meta
    spec: EpisodeSpecView
    status: EpisodeStatus = EpisodeStatus()


class EpisodeSetView(Object, frozen=True, kw_only=True):
    """An EpisodeSet."""

    metadata: Meta
    spec: EpisodeSetSpec
    status: EpisodeSetStatus = EpisodeSetStatus()


class TaskSpecView(View, frozen=True, kw_only=True):
    """What of a DebugTask concerns clocks."""

    entrypoint_timeout_seconds: int = 300


class TaskView(Object, frozen=True, kw_only=True):
    """A DebugTask: that it is there, its labels, and its clock."""

    metadata: Meta
    spec: TaskSpecView = TaskSpecView()


class ConfigMapView(Object, frozen=True, kw_only=True):
    """A ConfigMap of a set: its frozen list of tasks."""

    data: dict[str, str] = msgspec.field(default_factory=dict)
