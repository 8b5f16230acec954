"""The objects that the operator watches, as structs, and the labels and names of objects that it creates.

Watch events are decoded from bytes directly into these structs. They have only the fields that decisions read, so that
a pod takes less than 2 kB. An inline task may have 200 kB: only its image, template and timeout are kept, and the rest
is read from the API server when it is needed.

Texts that thousands of pods share are stored once: known values as enums, and names as interned strings.
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
"""Name of the NetworkPolicy of sandboxes, in every namespace with episodes."""
OWNER_LEASE = "dgym-owner"
"""Name of the Lease with which an installation claims a namespace."""
NAMESPACE_LABEL = "kubernetes.io/metadata.name"
MANAGED_BY = {"app.kubernetes.io/name": "dgym", "app.kubernetes.io/managed-by": "dgym-operator"}
SANDBOX_LABELS = {"app.kubernetes.io/name": "dgym", "app.kubernetes.io/component": "sandbox"}
OPERATOR_LABELS = {"app.kubernetes.io/name": "dgym", "app.kubernetes.io/component": "operator"}


class View(msgspec.Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    """Base of all views. Unknown fields are ignored."""


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
        # A loop is faster than next() with a generator, and every index calls this for every change of an object.
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
        """True if the object with this UID controls this object."""
        owner = self.metadata.controller
        return owner is not None and owner.uid == uid


class QuotaSpec(View, frozen=True, kw_only=True):
    """The limits of a ResourceQuota."""

    hard: dict[str, str] = msgspec.field(default_factory=dict)


class QuotaStatus(View, frozen=True, kw_only=True):
    """The limits in force, and the used amounts."""

    hard: dict[str, str] = msgspec.field(default_factory=dict)
    used: dict[str, str] = msgspec.field(default_factory=dict)


class QuotaView(WatchedObject, frozen=True, kw_only=True):
    """A ResourceQuota."""

    spec: QuotaSpec = QuotaSpec()
    status: QuotaStatus = QuotaStatus()

    def has_more_room(self, before: "QuotaView") -> bool:
        """True if less is used or more is allowed than in ``before``."""
        return _has_lower(self.status.used, before.status.used) or _has_lower(before.status.hard, self.status.hard)


def _has_lower(some: dict[str, str], others: dict[str, str]) -> bool:
    """True if a quantity in ``some`` is lower than the quantity of this name in ``others``, or is missing there."""
    try:
        return any(
            name not in others or parse_quantity(text) < parse_quantity(others[name]) for name, text in some.items()
        )
    except ValueError:
        return True  # An unnecessary try is cheap. Without a try the episodes would wait too long.


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
        """When an Episode claimed the pod from its sandbox pool. None if the pod was created for its Episode."""
        try:
            return datetime.fromisoformat(self.annotations.claimed)
        except ValueError:
            return None

    @property
    def deleted_at(self) -> datetime | None:
        """When the deletion was requested, by the API server's clock. None if it was not requested or is not known."""
        if self.deletion_timestamp is None or self.deletion_grace_period_seconds is None:
            return None
        return self.deletion_timestamp - timedelta(seconds=self.deletion_grace_period_seconds)


class Terminated(View, frozen=True, kw_only=True):
    """How a container terminated."""

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
    """A container's state. A running container has neither field."""

    waiting: Waiting | None = None
    terminated: Terminated | None = None


class Container(View, frozen=True, kw_only=True):
    """A container's status. ``image_id`` is the image with its digest, as the kubelet reports it."""

    name: str
    image_id: str = msgspec.field(default="", name="imageID")
    state: ContainerState = ContainerState()

    def __post_init__(self) -> None:
        force_setattr(self, "name", intern(self.name))
        force_setattr(self, "image_id", intern(self.image_id))


class OpenEnum(StrEnum):
    """An enum with a member ``UNKNOWN``. All values without a member are mapped to it."""

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
    """Set by Kueue: the pod is deleted because its queue has evicted it."""
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
    """A pod's status. ``reason`` is set when the kubelet evicts or rejects the pod."""

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
    """A sandbox pod or an agent pod."""

    metadata: PodMeta
    status: PodStatus = PodStatus()

    def condition(self, kind: str) -> PodCondition | None:
        """Return the condition of this type, or None. Only types in ``_READ`` are kept."""
        return next((each for each in self.status.conditions if each.type == kind), None)

    def container(self, name: str) -> Container | None:
        """Return the status of the container or init container with this name, or None."""
        statuses = (*self.status.container_statuses, *self.status.init_container_statuses)
        return next((each for each in statuses if each.name == name), None)

    def terminated(self, name: str) -> Terminated | None:
        """Return how the container terminated, or None if it has not terminated."""
        container = self.container(name)
        return container.state.terminated if container is not None else None

    @property
    def is_over(self) -> bool:
        """True if the sidecar or the whole pod has terminated."""
        return self.terminated("sidecar") is not None or self.status.phase in (PodPhase.FAILED, PodPhase.SUCCEEDED)

    @property
    def ready(self) -> bool:
        """True if the pod has the condition Ready: all its containers are ready."""
        condition = self.condition("Ready")
        return condition is not None and condition.status == "True"

    def url(self, port: int) -> str:
        """Return the URL of the pod's port. Empty while the pod has no address."""
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
    """In the encoding of the API server, because decisions do not read the tools."""
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
        # Without the copy the Raw would keep the whole message in memory.
        if self.tools:
            force_setattr(self, "tools", self.tools.copy())


class InlineTask(View, frozen=True, kw_only=True):
    """The image, the pod template and the timeout of an inline task."""

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
        """True if the condition ``Finished`` is True."""
        for condition in self.status.conditions:
            if condition.type == ConditionType.FINISHED:
                return condition.status == "True"
        return False


class SetMeta(Meta, frozen=True, kw_only=True):
    """Metadata of an EpisodeSet."""

    annotations: dict[str, str] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        # Not needed, and as long as the whole set.
        self.annotations.pop("kubectl.kubernetes.io/last-applied-configuration", None)


class EpisodeSetView(WatchedObject, frozen=True, kw_only=True):
    """An EpisodeSet."""

    metadata: SetMeta
    spec: EpisodeSetSpec
    status: EpisodeSetStatus = EpisodeSetStatus()

    @property
    def retry(self) -> str:
        """Value of the annotation that requests a retry of failed episodes."""
        return self.metadata.annotations.get(RETRY_KEY, "")


class SandboxPoolView(WatchedObject, frozen=True, kw_only=True):
    """A SandboxPool."""

    metadata: Meta
    spec: SandboxPoolSpec
    status: SandboxPoolStatus = SandboxPoolStatus()


class TaskSpecView(View, frozen=True, kw_only=True):
    """The image and the timeout of a DebugTask."""

    image: str | None = None
    entrypoint_timeout_seconds: int = 300


class TaskView(WatchedObject, frozen=True, kw_only=True):
    """A DebugTask: identity, labels, image and timeout."""

    metadata: Meta
    spec: TaskSpecView = TaskSpecView()


class ConfigMapView(WatchedObject, frozen=True, kw_only=True):
    """A ConfigMap of a set. It contains the set's frozen list of tasks."""

    data: dict[str, str] = msgspec.field(default_factory=dict)
