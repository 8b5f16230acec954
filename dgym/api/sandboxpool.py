"""SandboxPool: sandboxes that are started before an Episode needs them."""

from typing import Annotated, Literal

import msgspec

from dgym.api.episode import PodOverrides, TaskRef
from dgym.api.fields import API_VERSION, Conditions, Count, DnsLabel, Idle, Model, Name, ObjectMeta, ObservedGeneration


class SandboxPoolSpec(Model, frozen=True, kw_only=True):
    """Which sandboxes are kept ready, and how many.

    An Episode claims a sandbox of the pool if its own pod would be equal: the pod of an Episode with this ``taskRef``,
    ``podTemplate`` and ``podOverrides``.

    Attributes:
        task_ref: A DebugTask of the same namespace, whose image, interpreter, directory and resources the sandboxes
            have. Tasks that agree in these share the pool.
        pod_template: Name of the pod template, as of an Episode.
        pod_overrides: Changes of the pod, as of an Episode.
        queue_name: The Kueue LocalQueue that admits the sandboxes, as of an Episode.
        min_idle: How many sandboxes are kept ready.
        max_idle: How many at most are kept ready while Episodes claim more than ``minIdle`` in the time in which a
            sandbox starts. Without it, ``minIdle``.
        ttl_seconds: How long a sandbox may be idle before it is replaced.
    """

    task_ref: TaskRef
    pod_template: Name | None = None
    pod_overrides: PodOverrides = PodOverrides()
    queue_name: DnsLabel | None = None
    min_idle: Idle = 1
    max_idle: Idle | None = None
    ttl_seconds: Annotated[int, msgspec.Meta(ge=60, le=604_800)] = 3600


class SandboxPoolStatus(Model, frozen=True, kw_only=True):
    """Counts, never names.

    Attributes:
        conditions: Ready, once ``minIdle`` sandboxes are idle, and Stalled while none can start.
        reason: How the pool stands: Ready, Starting, Disabled, or why its sandboxes do not start.
        message: The cause of the reason, for people.
        idle: How many sandboxes are ready and unclaimed.
        starting: How many are not ready yet.
        claimed: How many sandboxes Episodes have claimed. It may lack the last claims before a change of the leader.
        observed_generation: The generation of the SandboxPool that this status is about; -1 before the first status.
    """

    conditions: Conditions = ()
    reason: Annotated[str, msgspec.Meta(max_length=64)] = ""
    message: Annotated[str, msgspec.Meta(max_length=1024)] = ""
    idle: Count = 0
    starting: Count = 0
    claimed: Count = 0
    observed_generation: ObservedGeneration | None = None


class SandboxPool(Model, frozen=True, kw_only=True, omit_defaults=False):
    """Sandboxes that are started before an Episode needs them.

    Attributes:
        spec: Which sandboxes are kept ready, and how many.
        status: What was observed.
    """

    api_version: Literal["dgym.dev/v1alpha1"] = API_VERSION
    kind: Literal["SandboxPool"] = "SandboxPool"
    metadata: ObjectMeta
    spec: SandboxPoolSpec
    status: SandboxPoolStatus = SandboxPoolStatus()
