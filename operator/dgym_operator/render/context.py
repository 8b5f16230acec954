"""What a pod's template may use."""

import msgspec

from dgym.api import DebugTaskSpec, PodOverrides


class PodSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The same for all pods of an installation.

    Attributes:
        sandbox_image: For tasks that name no image.
        sidecar_image: The sidecar's; it also holds the runner that the init container copies in.
        image_pull_policy: Of all containers.
        image_pull_secrets: Names of Secrets in the episode's namespace.
        sidecar_resources: Requests and limits of the sidecar.
    """

    sandbox_image: str
    sidecar_image: str
    image_pull_policy: str = "IfNotPresent"
    image_pull_secrets: tuple[str, ...] = ()
    sidecar_resources: dict[str, dict[str, str]] = msgspec.field(
        default_factory=lambda: {"requests": {"cpu": "20m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}}
    )
    log_level: str = "INFO"


class PodContext(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of one episode.

    Attributes:
        name: The pod's, ``<episode>-<attempt>``.
        digests: SHA-256 of each role's token: ``prepare``, ``drive``, ``operate``.
        delivered: Whether the repository is sent to the sidecar; otherwise the image holds it.
        overrides: The Episode's; they beat the task.
        active_deadline_seconds: Of the pod; above every other deadline.
    """

    name: str
    namespace: str
    episode: str
    episode_uid: str
    attempt: int
    task: DebugTaskSpec
    delivered: bool
    digests: dict[str, str]
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    overrides: PodOverrides = PodOverrides()
    active_deadline_seconds: int
    settings: PodSettings
