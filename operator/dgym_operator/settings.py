"""The operator's settings from its environment: one frozen object, read once at the start.

Every field is the variable ``DGYM_OPERATOR_<NAME>``. Its description gives the unit and why to change it. The table in
the documentation is made from the fields.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from dgym.logs import JsonFormatter, TextFormatter, log_to_stderr
from dgym.metrics import NamespaceMode
from dgym_operator.defaults import DefaultResources, decode_resources
from dgym_operator.images import decode_mirrors
from dgym_operator.policies import NamespacePolicies, decode_policies
from dgym_operator.pools import AgentPools, decode_pools

PREFIX = "DGYM_OPERATOR_"

Names = Annotated[tuple[str, ...], NoDecode]


class Settings(BaseSettings):
    """One operator process."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="ignore", arbitrary_types_allowed=True)

    namespace: str = Field(default="dgym", description="The operator's own namespace: its Lease, Secrets and agents.")
    pod_name: str = Field(default="dgym-operator", description="Its pod: the identity of its claim to the Lease.")
    pod_uid: str = Field(default="", description="That pod's UID: `kubectl describe` finds its Events by it.")
    watch_namespaces: Names = Field(
        default=(), description="Comma-separated namespaces whose episodes it serves; empty: those of all namespaces."
    )
    sandbox_image: str = Field(default="", description="Image of tasks that name none. Empty: such tasks are invalid.")
    sidecar_image: str = Field(default="", description="Image of the sidecar and of the runner that is injected.")
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = Field(
        default="IfNotPresent", description="Of all containers of an episode's pod."
    )
    image_pull_secrets: Names = Field(
        default=(), description="Comma-separated Secrets in the episodes' namespaces that open the images' registry."
    )
    pod_templates_directory: Path | None = Field(
        default=None, description="Holds further pod manifests, `<name>.yaml.j2`; unset: the shipped ones alone."
    )
    default_pod_template: str = Field(default="restricted", description="Pod manifest of episodes that name none.")
    runtime_class_name: str = Field(
        default="", description="RuntimeClass of all sandbox pods whose template names none. Empty: the nodes' default."
    )
    user_namespaces: bool = Field(
        default=False,
        description="Whether every sandbox pod has a user namespace of its own (`hostUsers: false`); needs Kubernetes "
        "1.33 and a runtime and file systems that can.",
    )
    read_only_root_filesystem: bool = Field(
        default=True,
        description="Whether programs of the pod template `restricted` can write nothing of their image's, only the "
        "repository, `/tmp`, `/dev/shm` and their home.",
    )
    agent_selector: str = Field(
        default="app.kubernetes.io/name=dgym,app.kubernetes.io/component=agent",
        description="Labels of agent pods, in the operator's own namespace.",
    )
    agent_pools: Annotated[AgentPools, NoDecode] = Field(
        default=AgentPools(),
        description="Pools of agents and the namespaces that each serves alone, as JSON: "
        '`[{"name": "research", "namespaces": ["research"]}]`; the chart\'s value `agents.pools`. Empty: all agents '
        "serve all namespaces.",
    )
    agent_port: int = Field(default=8081, ge=1, le=65535, description="Where agents listen.")
    agent_report_seconds: float = Field(default=5.0, gt=0, description="How often every agent is polled.")
    agent_silence_seconds: float = Field(
        default=30.0, gt=0, description="An agent silent for so long is lost; its episodes go to others."
    )
    head_start: int = Field(
        default=4,
        ge=0,
        description="Sandboxes started ahead of free slots: more start sooner and idle longer.",
    )
    max_stuck_pods: int = Field(
        default=50,
        ge=1,
        description="Pods of a namespace that cannot start (unschedulable, without an image, gated) before it gets no "
        "new ones; they take no slot and no head start.",
    )
    max_concurrent_pulls: int | None = Field(
        default=20,
        ge=1,
        description="Images that may be pulled at a time over the whole cluster: sandboxes of further images that no "
        "node is known to have wait. `null`: no bound.",
    )
    image_mirrors: Annotated[Mapping[str, str], NoDecode] = Field(
        default={},
        description="Registries, with paths or without, and the mirrors that the images of tasks are pulled from "
        'instead, as JSON: `{"docker.io": "mirror.example/docker"}`; the chart\'s value `sandboxes.imageMirrors`.',
    )
    default_resources: Annotated[DefaultResources, NoDecode] = Field(
        default=DefaultResources(),
        description="Resources of `sandbox`, `verifier` and `sidecar` where neither task nor Episode gives any, as "
        "JSON; the chart's value `sandboxes.resources`.",
    )
    inherited_labels: Names = Field(
        default=(),
        description="Comma-separated keys of labels of an Episode that its pods get, such as `example.com/*`; the "
        "chart's value `sandboxes.inherit.labels`.",
    )
    inherited_annotations: Names = Field(
        default=(),
        description="Likewise of annotations of an Episode and of its set; `sandboxes.inherit.annotations`.",
    )
    namespace_policies: Annotated[NamespacePolicies, NoDecode] = Field(
        default=NamespacePolicies(),
        description="What each namespace may use, as JSON: `weight`, `maxActive`, `allowed` and `limits` as `defaults` "
        "and by namespace in `overrides`; the chart's value `namespaces`.",
    )
    network_policy: Literal["required", "enabled", "disabled"] = Field(
        default="required",
        description="Whether a namespace gets the sandboxes' NetworkPolicy before its first pod; `required` starts no "
        "pod where that fails.",
    )
    key_secret: str = Field(default="dgym-key", description="Secret of the cluster's key, from which all tokens come.")
    agent_keys_secret: str = Field(default="dgym-agent-keys", description="Secret from which agents know the operator.")
    lease_name: str = Field(default="dgym-operator", description="Lease that the leader holds.")
    lease_duration_seconds: float = Field(
        default=15.0, gt=0, description="After so long without renewal another replica takes over."
    )
    lease_renew_seconds: float = Field(
        default=10.0, gt=0, description="A leader that could not renew for so long stops writing."
    )
    lease_retry_seconds: float = Field(default=2.0, gt=0, description="Between two attempts to get or renew it.")
    namespace_lease_seconds: float = Field(
        default=120.0,
        gt=0,
        description="A namespace whose Lease `dgym-owner` was not renewed for so long may go to another installation.",
    )
    host: str = Field(default="0.0.0.0", description="Address of healthz, readyz and metrics.")  # noqa: S104
    port: int = Field(default=8080, ge=0, le=65535, description="Port of healthz, readyz and metrics; 0: a free one.")
    api_qps: float = Field(
        default=300.0,
        gt=0,
        description="Writes a second to the API server, Leases and Events apart. Verdicts come first, then deletions, "
        "updates and creations, and progress last. An episode takes five or six.",
    )
    api_burst: int = Field(default=600, ge=1, description="Writes that may be made at once after a pause.")
    progress_qps: float = Field(
        default=20.0, gt=0, description="Writes a second that only show progress; more of them wait or are merged."
    )
    workers: int = Field(default=32, ge=1, le=256, description="Objects reconciled at the same time.")
    shutdown_seconds: float = Field(
        default=20.0, gt=0, description="For writes in flight after SIGTERM; below the pod's grace period."
    )
    metrics_namespace_label: NamespaceMode = Field(
        default="auto",
        description="Namespaces that metrics of Episodes name at most: `auto` 50, `true` 1,000, `false` none.",
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(default="INFO", description="Least severe to log.")
    log_format: Literal["json", "text"] = Field(default="json", description="`text` is for terminals.")

    @field_validator(
        "watch_namespaces", "image_pull_secrets", "inherited_labels", "inherited_annotations", mode="before"
    )
    @classmethod
    def _split(cls, value: Any) -> Any:
        if isinstance(value, str):
            return tuple(part for part in (part.strip() for part in value.split(",")) if part)
        return value

    @field_validator("namespace_policies", mode="before")
    @classmethod
    def _decode_policies(cls, value: Any) -> Any:
        return decode_policies(value) if isinstance(value, str) else value

    @field_validator("default_resources", mode="before")
    @classmethod
    def _decode_resources(cls, value: Any) -> Any:
        return decode_resources(value) if isinstance(value, str) else value

    @field_validator("agent_pools", mode="before")
    @classmethod
    def _decode_pools(cls, value: Any) -> Any:
        return decode_pools(value) if isinstance(value, str) else value

    @field_validator("image_mirrors", mode="before")
    @classmethod
    def _decode_mirrors(cls, value: Any) -> Any:
        return decode_mirrors(value) if isinstance(value, str) else value

    @field_validator("max_concurrent_pulls", mode="before")
    @classmethod
    def _without_bound(cls, value: Any) -> Any:
        return None if value == "null" else value

    @model_validator(mode="after")
    def _lease_times_in_order(self) -> Self:
        # A leader must have stopped before another may begin, and must have tried more than once before it stops.
        if not self.lease_retry_seconds < self.lease_renew_seconds < self.lease_duration_seconds:
            raise ValueError("lease_retry_seconds < lease_renew_seconds < lease_duration_seconds must hold")
        return self

    @property
    def installation(self) -> str:
        """The identity of this installation in the cluster: namespace and name of its leader's Lease."""
        return f"{self.namespace}/{self.lease_name}"

    @property
    def namespaces(self) -> tuple[str | None, ...]:
        """The namespaces to watch, each by itself; a single None: the whole cluster."""
        return self.watch_namespaces or (None,)

    def start_logging(self) -> None:
        """Log to standard error: the operator from ``log_level`` on, libraries from warnings on."""
        formatter = JsonFormatter() if self.log_format == "json" else TextFormatter()
        log_to_stderr(formatter, self.log_level, package="dgym_operator")


def settings_table() -> str:
    """All settings as a table in Markdown."""
    return "\n".join(_rows()) + "\n"


def _rows() -> Iterator[str]:
    yield "| variable | default | meaning |"
    yield "|---|---|---|"
    for name, field in Settings.model_fields.items():
        yield f"| `{PREFIX}{name.upper()}` | {_shown(field.default)} | {field.description} |"


def _shown(value: Any) -> str:
    if value in (None, "", (), {}, NamespacePolicies(), AgentPools(), DefaultResources()):
        return ""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return f"`{value}`"
