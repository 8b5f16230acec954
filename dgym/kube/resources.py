"""Kinds as the API server serves them, and what this layer reads of their objects: identity and version."""

from typing import Any, Protocol, TypeVar
from urllib.parse import quote

import msgspec

from dgym.api import GROUP


class Resource(msgspec.Struct, frozen=True):
    """A kind as the API server serves it. The core group is the empty string."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """As manifests say it."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def url(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """The path of the collection (all namespaces if none is given), of an object, or of a part of it."""
        if name is not None and self.namespaced and not namespace:
            raise ValueError(f"{self.kind} {name}: a namespace is needed")
        path = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        if self.namespaced and namespace:
            path += f"/namespaces/{quote(namespace, safe='')}"
        path += f"/{self.plural}"
        if name is not None:
            path += f"/{quote(name, safe='')}"
        return f"{path}/{subresource}" if subresource else path

    def manifest(self, **fields: Any) -> dict[str, Any]:
        """``apiVersion`` and ``kind``, and the fields."""
        return {"apiVersion": self.api_version, "kind": self.kind, **fields}


PODS = Resource("", "v1", "pods", "Pod")
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
SECRETS = Resource("", "v1", "secrets", "Secret")
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
EVENTS = Resource("events.k8s.io", "v1", "events", "Event")
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
NETWORK_POLICIES = Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
DEBUG_TASKS = Resource(GROUP, "v1alpha1", "debugtasks", "DebugTask")
EPISODES = Resource(GROUP, "v1alpha1", "episodes", "Episode")
EPISODE_SETS = Resource(GROUP, "v1alpha1", "episodesets", "EpisodeSet")

Key = tuple[str, str]
"""Namespace and name; the namespace is empty for kinds that have none."""


class Metadata(Protocol):
    """The part of the metadata that identifies an object and its version."""

    @property
    def name(self) -> str:
        """Unique in its namespace."""

    @property
    def namespace(self) -> str:
        """Empty if the kind has none."""

    @property
    def uid(self) -> str:
        """Never used again, unlike the name."""

    @property
    def resource_version(self) -> str:
        """Changes with every write."""


class Object(Protocol):
    """Anything with metadata: the structs that callers decode into."""

    @property
    def metadata(self) -> Metadata:
        """Its identity and version."""


T = TypeVar("T", bound=Object)


def key_of(item: Object) -> Key:
    """Namespace and name."""
    return (item.metadata.namespace, item.metadata.name)


def older(version: str, than: str) -> bool:
    """Whether a resourceVersion is certainly older than another of the same kind.

    Kubernetes promises since 1.35 that decimal ones compare as numbers; of others nothing is known.
    """
    return _decimal(version) and _decimal(than) and int(version) < int(than)


def _decimal(version: str) -> bool:
    return version.isascii() and version.isdigit()
