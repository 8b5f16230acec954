"""What this layer must know of an object: who it is and which version of it this is."""

from typing import Protocol, TypeVar

Key = tuple[str, str]
"""Namespace and name; the namespace of what has none is empty."""


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
        """Who it is."""


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
