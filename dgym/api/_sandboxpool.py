"""SandboxPool: sandboxes that are started before an Episode needs them."""

from typing import Annotated, Literal

import msgspec

from dgym.api._episode import PodOverrides, TaskRef
from dgym.api._fields import (
    API_VERSION,
    Conditions,
    Count,
    DnsLabel,
    Idle,
    ManifestStruct,
    Name,
    ObjectMeta,
    ObservedGeneration,
)


class SandboxPoolSpec(ManifestStruct, frozen=True, kw_only=True):
    """The kind and number of sandboxes that are kept ready.

    An Episode claims a sandbox of the pool if its own pod would be equal to the pod of an Episode with this
    ``taskRef``, ``podTemplate`` and ``podOverrides``.

    Attributes:
        task_ref: A DebugTask of the same namespace. The sandboxes have its image, interpreter, directory and resources.
            Other tasks with the same values can use the pool too.
        pod_template: Name of the pod template, as for an Episode.
        pod_overrides: Changes of the pod, as for an Episode.
        queue_name: The Kueue LocalQueue that admits the sandboxes, as for an Episode.
        min_idle: Number of sandboxes that are kept ready.
        max_idle: Maximum number of sandboxes that are kept ready while Episodes claim more than ``minIdle`` in the
            time that a sandbox takes to start. Without it, ``minIdle``.
        ttl_seconds: How long a sandbox may be idle before it is replaced.
    """

    task_ref: TaskRef
    pod_template: Name | None = None
    pod_overrides: PodOverrides = PodOverrides()
    queue_name: DnsLabel | None = None
    min_idle: Idle = 1
    max_idle: Idle | None = None
    ttl_seconds: Annotated[int, msgspec.Meta(ge=60, le=604_800)] = 3600


class SandboxPoolStatus(ManifestStruct, frozen=True, kw_only=True):
    """Observed state of a pool. It has counts instead of names.

    Attributes:
        conditions: Ready once ``minIdle`` sandboxes are idle, and Stalled while the sandboxes cannot start.
        reason: Ready, Starting, Disabled, or why the sandboxes do not start.
        message: Explanation of the reason, for people.
        idle: Number of sandboxes that are ready and unclaimed.
        starting: Number of sandboxes that are not ready yet.
        claimed: Number of sandboxes that Episodes have claimed. The last claims before a change of the operator's
            leader may be missing.
        observed_generation: Generation of the SandboxPool for which the status was written. -1 before the first status.
    """

    conditions: Conditions = ()
    reason: Annotated[str, msgspec.Meta(max_length=64)] = ""
    message: Annotated[str, msgspec.Meta(max_length=1024)] = ""
    idle: Count = 0
    starting: Count = 0
    claimed: Count = 0
    observed_generation: ObservedGeneration | None = None


class SandboxPool(ManifestStruct, frozen=True, kw_only=True, omit_defaults=False):
    """Sandboxes that are started before an Episode needs them.

    Attributes:
        spec: The kind and number of sandboxes that are kept ready.
        status: Observed state of the pool.
    """

    api_version: Literal["dgym.dev/v1alpha1"] = API_VERSION
    kind: Literal["SandboxPool"] = "SandboxPool"
    metadata: ObjectMeta
    spec: SandboxPoolSpec
    status: SandboxPoolStatus = SandboxPoolStatus()
