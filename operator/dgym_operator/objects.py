"""The objects that the operator watches, as narrow structs, and the labels and names of those that it makes.

Watch events are decoded from bytes straight into these structs: only the fields that decisions read; a pod takes less
than 2 kB. Of an inline task, which may be 200 kB, only its clock and image are kept: the rest is read from the API
server when it is needed.

Texts that thousands of pods share are kept once: words of a known vocabulary as enums, names interned.
"""

from datetime import datetime, timedelta
from enum import StrEnum
from sys import intern
from typing import Any

import msgspec
from msgspec.structs import force_setattr

from dgym.api import (
    ATTEMPT_LABEL,
    CLAIMED_ANNOTATION,
    KEY_LABEL,
    POOL_LABEL,
    PROOF_ANNOTATION,
    RETRY_KEY,
    TEMPLATE_HASH_ANNOTATION,
    AgentSpec,
    ConditionType,
    EpisodeSetSpec,
    EpisodeSetStatus,
    EpisodeStatus,
    PodOverrides,
    SandboxPoolSpec,
    SandboxPoolStatus,
    TaskRef,
    parse_quantity,
)

POLICY_NAME = "dgym-sandbox"
"""The NetworkPolicy of sandboxes, in every namespace with episodes."""
OWNER_LEASE = "dgym-owner"
"""The Lease by which an installation claims a namespace."""
NAMESPACE_LABEL = "kubernetes.io/metadata.name"
MANAGED_BY = {"app.kubernetes.io/name": "dgym", "app.kubernetes.io/managed-by": "dgym-operator"}
SANDBOX_LABELS = {"app.kubernetes.io/name": "dgym", "app.kubernetes.io/component": "sandbox"}
OPERATOR_LABELS = {"app.kubernetes.io/name": "dgym", "app.kubernetes.io/component": "operator"}


class View(msgspec.Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    """Base of all views; unknown fields are ignored."""


class Owner(View, frozen=True, kw_only=True):
    """An owner reference."""

    kind: str
    name: str
    uid: str
    controller: bool = False

    def __post_init__(self) -> None:
        force_setattr(self, "kind", intern(self.kind))


class Identity(View, frozen=True, kw_only=True):
    """An object's identity, version and owners."""

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
        # Not by a generator: every index asks, for every change of every object.
        for owner in self.owner_references:
            if owner.controller:
                return owner
        return None


class Meta(Identity, frozen=True, kw_only=True):
    """Metadata with generation and labels."""

    generation: int = 0
    labels: dict[str, str] = msgspec.field(default_factory=dict)


class WatchedObject(View, frozen=True, kw_only=True):
    """Base of all watched objects."""

    metadata: Identity

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""
        return (self.metadata.namespace, self.metadata.name)

    def is_controlled_by(self, uid: str | None) -> bool:
        """Whether the object with this UID controls this one."""
        owner = self.metadata.controller
        return owner is not None and owner.uid == uid


class QuotaSpec(View, frozen=True, kw_only=True):
    """The limits of a ResourceQuota."""

    hard: dict[str, str] = msgspec.field(default_factory=dict)


class QuotaStatus(View, frozen=True, kw_only=True):
    """The limits in force, and what is used of them."""

    hard: dict[str, str] = msgspec.field(default_factory=dict)
    used: dict[str, str] = msgspec.field(default_factory=dict)


class QuotaView(WatchedObject, frozen=True, kw_only=True):
    """A ResourceQuota."""

    spec: QuotaSpec = QuotaSpec()
    status: QuotaStatus = QuotaStatus()

    def has_more_room(self, before: "QuotaView") -> bool:
        """Whether less is used, or more allowed, than ``before``."""
        return _is_less(self.status.used, before.status.used) or _is_less(before.status.hard, self.status.hard)


def _is_less(some: dict[str, str], others: dict[str, str]) -> bool:
    """Whether any quantity of ``some`` is below that of the same name in ``others``, or missing there."""
    try:
        return any(
            name not in others or parse_quantity(text) < parse_quantity(others[name]) for name, text in some.items()
        )
    except ValueError:
        return True  # A try that is refused costs less than one that is not made.


class NetworkPolicyView(WatchedObject, frozen=True, kw_only=True):
    """The NetworkPolicy of a namespace's sandboxes."""

    metadata: Meta
    spec: dict[str, Any] = msgspec.field(default_factory=dict)


# Pods


class PodLabels(View, frozen=True, kw_only=True):
    """The labels of a pod that decisions read."""

    attempt: str = msgspec.field(default="", name=ATTEMPT_LABEL)
    key: str = msgspec.field(default="", name=KEY_LABEL)
    pool: str = msgspec.field(default="", name=POOL_LABEL)

    def __post_init__(self) -> None:
        force_setattr(self, "key", intern(self.key))


class PodAnnotations(View, frozen=True, kw_only=True):
    """The annotations of a pod that decisions read."""

    proof: str = msgspec.field(default="", name=PROOF_ANNOTATION)
    template_hash: str = msgspec.field(default="", name=TEMPLATE_HASH_ANNOTATION)
    claimed: str = msgspec.field(default="", name=CLAIMED_ANNOTATION)


class PodMeta(Identity, frozen=True, kw_only=True):
    """A pod's metadata."""

    deletion_grace_period_seconds: int | None = None
    labels: PodLabels = PodLabels()
    annotations: PodAnnotations = PodAnnotations()

    @property
    def claimed_at(self) -> datetime | None:
        """When an Episode took the pod from its pool; None: it was made for its Episode."""
        try:
            return datetime.fromisoformat(self.annotations.claimed)
        except ValueError:
            return None

    @property
    def deleted_at(self) -> datetime | None:
        """When the deletion was requested, by the API server's clock; None: it was not, or the time is not known."""
        if self.deletion_timestamp is None or self.deletion_grace_period_seconds is None:
            return None
        return self.deletion_timestamp - timedelta(seconds=self.deletion_grace_period_seconds)


class Terminated(View, frozen=True, kw_only=True):
    """How a container ended."""

    exit_code: int = 0
    reason: str = ""
    message: str = ""
    finished_at: datetime | None = None

    def __post_init__(self) -> None:
        force_setattr(self, "reason", intern(self.reason))


class Waiting(View, frozen=True, kw_only=True):
    """The reason why a container is not running yet."""

    reason: str = ""
    message: str = ""


class ContainerState(View, frozen=True, kw_only=True):
    """A container's state; a running container has neither field."""

    waiting: Waiting | None = None
    terminated: Terminated | None = None


class Container(View, frozen=True, kw_only=True):
    """A container's status. ``image_id`` names the image as the kubelet found it, with its digest."""

    name: str
    image_id: str = msgspec.field(default="", name="imageID")
    state: ContainerState = ContainerState()

    def __post_init__(self) -> None:
        force_setattr(self, "name", intern(self.name))
        force_setattr(self, "image_id", intern(self.image_id))


class OpenEnum(StrEnum):
    """An enum with a member ``UNKNOWN``, which any word that is not a member becomes."""

    @classmethod
    def _missing_(cls, value: object) -> "OpenEnum":
        del value
        return cls.__members__["UNKNOWN"]


class PodConditionType(OpenEnum):
    """Types of a pod's conditions."""

    READY = "Ready"
    SCHEDULED = "PodScheduled"
    DISRUPTION_TARGET = "DisruptionTarget"
    TERMINATION_TARGET = "TerminationTarget"
    """Kueue's: the pod is deleted, since its queue has evicted it."""
    INITIALIZED = "Initialized"
    CONTAINERS_READY = "ContainersReady"
    READY_TO_START_CONTAINERS = "PodReadyToStartContainers"
    UNKNOWN = ""


_READ = (
    PodConditionType.READY,
    PodConditionType.SCHEDULED,
    PodConditionType.DISRUPTION_TARGET,
    PodConditionType.TERMINATION_TARGET,
    PodConditionType.CONTAINERS_READY,
)


class ConditionStatus(OpenEnum):
    """Status of a pod's condition."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class PodCondition(View, frozen=True, kw_only=True):
    """A pod's condition."""

    type: PodConditionType
    status: ConditionStatus = ConditionStatus.UNKNOWN
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None


class PodPhase(OpenEnum):
    """A pod's phase."""

    NONE = ""
    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    UNKNOWN = "Unknown"


class PodStatus(View, frozen=True, kw_only=True):
    """A pod's status. ``reason`` is set by evictions and rejections of the kubelet."""

    phase: PodPhase = PodPhase.NONE
    reason: str = ""
    message: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")
    conditions: tuple[PodCondition, ...] = ()
    init_container_statuses: tuple[Container, ...] = ()
    container_statuses: tuple[Container, ...] = ()

    def __post_init__(self) -> None:
        force_setattr(self, "conditions", tuple([each for each in self.conditions if each.type in _READ]))


class Pod(WatchedObject, frozen=True, kw_only=True):
    """A pod of an episode, or of an agent."""

    metadata: PodMeta
    status: PodStatus = PodStatus()

    def condition(self, kind: str) -> PodCondition | None:
        """The condition of that type; only types in ``_READ`` are kept."""
        return next((each for each in self.status.conditions if each.type == kind), None)

    def container(self, name: str) -> Container | None:
        """The status of that container, init containers included."""
        statuses = (*self.status.container_statuses, *self.status.init_container_statuses)
        return next((each for each in statuses if each.name == name), None)

    def terminated(self, name: str) -> Terminated | None:
        """The end of that container; None while it has not ended."""
        container = self.container(name)
        return container.state.terminated if container is not None else None

    @property
    def is_over(self) -> bool:
        """Whether the sidecar has terminated, or the whole pod."""
        return self.terminated("sidecar") is not None or self.status.phase in (PodPhase.FAILED, PodPhase.SUCCEEDED)

    @property
    def ready(self) -> bool:
        """Whether sandbox, verifier and sidecar are ready."""
        condition = self.condition("Ready")
        return condition is not None and condition.status == "True"

    def url(self, port: int) -> str:
        """The URL of the pod's port; empty while the pod has no address."""
        address = self.status.pod_ip
        if not address:
            return ""
        return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"


# Episodes, sets, tasks


class EpisodeSpecView(View, frozen=True, kw_only=True):
    """An Episode's spec, without the contents of an inline task."""

    task_ref: TaskRef | None = None
    task: "InlineTask | None" = None
    agent: AgentSpec | None = None
    tools: msgspec.Raw = msgspec.Raw()
    """As the API server encodes them: no decision reads them."""
    suspend: bool = False
    cancel: bool = False
    start_timeout_seconds: int = 900
    active_deadline_seconds: int = 3600
    driver_idle_timeout_seconds: int = 3600
    backoff_limit: int = 2
    max_disruptions: int = 10
    ttl_seconds_after_finished: int | None = None
    pod_template: str | None = None
    pod_overrides: PodOverrides = PodOverrides()
    queue_name: str | None = None
    priority: int = 0

    def __post_init__(self) -> None:
        # A Raw is a part of the whole message, which it would keep.
        if self.tools:
            force_setattr(self, "tools", self.tools.copy())


class InlineTask(View, frozen=True, kw_only=True):
    """An inline task: image, template and clock."""

    image: str | None = None
    pod_template: str | None = None
    entrypoint_timeout_seconds: int = 300


class EpisodeView(WatchedObject, frozen=True, kw_only=True):
    """An Episode."""

    metadata: Meta
    spec: EpisodeSpecView
    status: EpisodeStatus = EpisodeStatus()

    @property
    def is_finished(self) -> bool:
        """Whether the condition ``Finished`` is True."""
        for condition in self.status.conditions:
            if condition.type == ConditionType.FINISHED:
                return condition.status == "True"
        return False


class SetMeta(Meta, frozen=True, kw_only=True):
    """Metadata of an EpisodeSet."""

    annotations: dict[str, str] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        # As long as the whole set.
        self.annotations.pop("kubectl.kubernetes.io/last-applied-configuration", None)


class EpisodeSetView(WatchedObject, frozen=True, kw_only=True):
    """An EpisodeSet."""

    metadata: SetMeta
    spec: EpisodeSetSpec
    status: EpisodeSetStatus = EpisodeSetStatus()

    @property
    def retry(self) -> str:
        """The annotation that requests to run failed episodes again."""
        return self.metadata.annotations.get(RETRY_KEY, "")


class SandboxPoolView(WatchedObject, frozen=True, kw_only=True):
    """A SandboxPool."""

    metadata: Meta
    spec: SandboxPoolSpec
    status: SandboxPoolStatus = SandboxPoolStatus()


class TaskSpecView(View, frozen=True, kw_only=True):
    """A DebugTask's image and clock."""

    image: str | None = None
    entrypoint_timeout_seconds: int = 300


class TaskView(WatchedObject, frozen=True, kw_only=True):
    """A DebugTask: identity, labels, image and clock."""

    metadata: Meta
    spec: TaskSpecView = TaskSpecView()


class ConfigMapView(WatchedObject, frozen=True, kw_only=True):
    """A ConfigMap of a set, which holds its frozen list of tasks."""

    data: dict[str, str] = msgspec.field(default_factory=dict)
