"""The operator's settings. They are read from the environment once at the start, into one frozen object.

Every field is the variable ``DGYM_OPERATOR_<NAME>``. Its description contains the unit and a reason to change it.
``dgym-operator settings`` and the settings page of the site print the fields.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from dgym.logs import JsonFormatter, TextFormatter, log_to_stderr
from dgym.metric_types import NamespaceMode
from dgym_operator.chart_values import (
    AgentPodPools,
    DefaultResources,
    NamespacePolicies,
    decode_mirrors,
    decode_policies,
    decode_pools,
    decode_resources,
)

PREFIX = "DGYM_OPERATOR_"
LEADER_LEASE = "dgym-operator"
"""The Lease of the leader, in the operator's own namespace."""
KEY_SECRET = "dgym-key"  # noqa: S105 - a name
"""The Secret of the cluster's key, in the operator's own namespace."""
AGENT_POD_KEYS_SECRET = "dgym-agent-keys"  # noqa: S105 - a name
"""The Secret with which agent pods authenticate the operator. A prefix of its name if there are pools."""


def _decoded(decode: Callable[[str], Any]) -> BeforeValidator:
    return BeforeValidator(lambda value: decode(value) if isinstance(value, str) else value)


def _split(text: str) -> tuple[str, ...]:
    return tuple(part for part in (part.strip() for part in text.split(",")) if part)


Names = Annotated[tuple[str, ...], NoDecode, _decoded(_split)]


class Settings(BaseSettings):
    """The settings of one operator process."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="ignore", arbitrary_types_allowed=True)

    namespace: str = Field(default="dgym", description="Namespace of the operator, its Secrets and the agent pods.")
    pod_name: str = Field(
        default="dgym-operator", description="Name of the operator's pod, which identifies it in the Lease."
    )
    pod_uid: str = Field(
        default="", description="UID of the operator's pod, for `kubectl describe` to find its Events."
    )
    watch_namespaces: Names = Field(
        default=(), description="Comma-separated namespaces whose episodes are served. Empty: all namespaces."
    )
    sandbox_image: str = Field(
        default="", description="Image of tasks without an image. Empty: such tasks are invalid."
    )
    sidecar_image: str = Field(default="", description="Image of the sidecar. It also contains the runner.")
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = Field(
        default="IfNotPresent", description="Pull policy of all containers of an episode's pod."
    )
    image_pull_secrets: Names = Field(
        default=(), description="Comma-separated pull secrets of sandbox pods. They exist in the episodes' namespaces."
    )
    pod_templates_directory: Path | None = Field(
        default=None, description="Directory of additional pod templates, `<name>.yaml.j2`. Unset: none."
    )
    default_pod_template: str = Field(default="restricted", description="Pod template of episodes without a template.")
    runtime_class_name: str = Field(
        default="", description="RuntimeClass of sandbox pods whose template has none. Empty: the default of the nodes."
    )
    user_namespaces: bool = Field(
        default=False,
        description="Run every sandbox pod in a separate user namespace (`hostUsers: false`). Needs Kubernetes 1.33, "
        "and a container runtime and file systems that support it.",
    )
    read_only_root_filesystem: bool = Field(
        default=True,
        description="Mount the root file system read-only in pods of the template `restricted`. Programs can write "
        "only the repository, `/tmp`, `/dev/shm` and their home directory.",
    )
    agent_selector: str = Field(
        default="app.kubernetes.io/name=dgym,app.kubernetes.io/component=agent",
        description="Labels of agent pods, in the operator's own namespace.",
    )
    agent_pools: Annotated[AgentPodPools, NoDecode, _decoded(decode_pools)] = Field(
        default=AgentPodPools(),
        description="Pools of agent pods, and the namespaces that only this pool serves, as JSON: "
        '`[{"name": "research", "namespaces": ["research"]}]`. The chart\'s value `agents.pools`. Empty: all agent '
        "pods serve all namespaces.",
    )
    agent_port: int = Field(default=8081, ge=1, le=65535, description="Port of the agent pods.")
    head_start: int = Field(
        default=4,
        ge=0,
        description="Number of sandboxes that are started before slots are free. With more, episodes start sooner, but "
        "sandboxes are idle for longer.",
    )
    max_stuck_pods: int = Field(
        default=50,
        ge=1,
        description="Number of pods in a namespace that cannot start (unschedulable, without an image, gated). At this "
        "number the namespace does not get new pods. These pods do not use slots or the head start.",
    )
    max_concurrent_pulls: int | None = Field(
        default=20,
        ge=1,
        description="Number of images that may be pulled at the same time in the whole cluster. Sandboxes of further "
        "images that are not known to be on a node wait. `null`: no limit.",
    )
    image_mirrors: Annotated[Mapping[str, str], NoDecode, _decoded(decode_mirrors)] = Field(
        default={},
        description="Mirrors of registries, with or without a path, from which the images of tasks are pulled instead, "
        'as JSON: `{"docker.io": "mirror.example/docker"}`. The chart\'s value `sandboxes.imageMirrors`.',
    )
    default_resources: Annotated[DefaultResources, NoDecode, _decoded(decode_resources)] = Field(
        default=DefaultResources(),
        description="Resources of `sandbox`, `verifier` and `sidecar` if neither the task nor the Episode sets "
        "resources, as JSON. The chart's value `sandboxes.resources`.",
    )
    inherited_labels: Names = Field(
        default=(),
        description="Comma-separated keys of labels that pods inherit from their Episode, such as `example.com/*`. The "
        "chart's value `sandboxes.inherit.labels`.",
    )
    inherited_annotations: Names = Field(
        default=(),
        description="Comma-separated keys of annotations that pods inherit from their Episode, and so from its set. "
        "The chart's value `sandboxes.inherit.annotations`.",
    )
    namespace_policies: Annotated[NamespacePolicies, NoDecode, _decoded(decode_policies)] = Field(
        default=NamespacePolicies(),
        description="Policy of each namespace, as JSON: `weight`, `maxActive`, `allowed` and `limits`, in "
        "`defaults` and for single namespaces in `overrides`. The chart's value `namespaces`.",
    )
    network_policy: Literal["required", "enabled", "disabled"] = Field(
        default="required",
        description="Whether the operator creates the sandboxes' NetworkPolicy in a namespace before its first pod: "
        "`required` (without the policy, pods do not start), `enabled` or `disabled`.",
    )
    host: str = Field(default="0.0.0.0", description="Address of healthz, readyz and metrics.")  # noqa: S104
    port: int = Field(default=8080, ge=0, le=65535, description="Port of healthz, readyz and metrics. 0: a free port.")
    api_qps: float = Field(
        default=300.0,
        gt=0,
        description="Writes per second to the API server, without Leases and Events. Outcomes are written first, then "
        "deletions, updates and creations, and progress last. An episode needs five or six writes.",
    )
    api_burst: int = Field(default=600, ge=1, description="Writes that may be made at once after a pause.")
    metrics_namespace_label: NamespaceMode = Field(
        default="auto",
        description="Maximum number of namespaces in the labels of the metrics of Episodes: `auto` 50, `true` 1,000, "
        "`false` none.",
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(default="INFO", description="Lowest level to log.")
    log_format: Literal["json", "text"] = Field(default="json", description="`json`, or `text` for terminals.")

    @field_validator("max_concurrent_pulls", mode="before")
    @classmethod
    def _without_bound(cls, value: Any) -> Any:
        return None if value == "null" else value

    @property
    def installation(self) -> str:
        """Identity of this installation in the cluster: namespace and name of its leader's Lease."""
        return f"{self.namespace}/{LEADER_LEASE}"

    @property
    def namespaces(self) -> tuple[str | None, ...]:
        """The namespaces to watch, each with its own watches. A single None stands for the whole cluster."""
        return self.watch_namespaces or (None,)

    def start_logging(self) -> None:
        """Start logging to standard error: the operator from ``log_level`` on, libraries from WARNING on."""
        formatter = JsonFormatter() if self.log_format == "json" else TextFormatter()
        log_to_stderr(formatter, self.log_level, package="dgym_operator")


def settings_table(settings: type[BaseSettings] = Settings) -> str:
    """Return all fields of ``settings`` as a table in Markdown."""
    return "\n".join(_rows(settings)) + "\n"


def _rows(settings: type[BaseSettings]) -> Iterator[str]:
    yield "| variable | default | meaning |"
    yield "|---|---|---|"
    prefix = settings.model_config["env_prefix"]
    for name, field in settings.model_fields.items():
        yield f"| `{prefix}{name.upper()}` | {_shown(field.default)} | {field.description} |"


def _shown(value: Any) -> str:
    if value in (None, "", (), {}, NamespacePolicies(), AgentPodPools(), DefaultResources()):
        return ""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return f"`{value}`"
