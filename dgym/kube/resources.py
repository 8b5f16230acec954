"""Kinds as the API server serves them, and their lists and watch events, decoded into the narrow struct of the caller.

This layer reads identity and version of an object alone. One object that cannot be decoded does not hide the others.
"""

from typing import Any, Generic, NoReturn, Protocol, TypeVar
from urllib.parse import quote

import msgspec

from dgym.api import GROUP
from dgym.kube.errors import ConnectionLost, Expired, error_from_event


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
RESOURCE_QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota")
NETWORK_POLICIES = Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
TOKEN_REVIEWS = Resource("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", namespaced=False)
SUBJECT_ACCESS_REVIEWS = Resource(
    "authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", namespaced=False
)
DEBUG_TASKS = Resource(GROUP, "v1alpha1", "debugtasks", "DebugTask")
EPISODES = Resource(GROUP, "v1alpha1", "episodes", "Episode")
EPISODE_SETS = Resource(GROUP, "v1alpha1", "episodesets", "EpisodeSet")
SANDBOX_POOLS = Resource(GROUP, "v1alpha1", "sandboxpools", "SandboxPool")

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


V = TypeVar("V")


class UnreadableObject(Exception):
    """The object of an event does not fit the struct; ``gone``: it was deleted."""

    def __init__(self, message: str, *, key: Key, uid: str, resource_version: str, gone: bool) -> None:
        super().__init__(message)
        self.key = key
        self.uid = uid
        self.resource_version = resource_version
        self.gone = gone


class Event(msgspec.Struct, Generic[T], frozen=True):
    """A change of an object. A bookmark, or a type that is not known yet, has a version and no object."""

    resource_version: str
    item: T | None = None
    gone: bool = False


_CHANGES = ("ADDED", "MODIFIED", "DELETED")


class _Line(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


class _Metadata(msgspec.Struct, frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = msgspec.field(name="resourceVersion", default="")


class _Identified(msgspec.Struct, frozen=True):
    metadata: _Metadata


class EventDecoder(Generic[T]):
    """Decodes the lines of one kind's watch; made once."""

    def __init__(self, kind: type[T]) -> None:
        self._lines = msgspec.json.Decoder(_Line)
        self._whole: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_line_struct(kind))
        self._items = msgspec.json.Decoder(kind)
        self._identified = msgspec.json.Decoder(_Identified)

    def decode(self, line: bytes) -> Event[T]:
        """The event.

        Raises:
            ApiError: The server reports one instead, ``Expired`` mostly; or this is no line of a watch, or its object
                has no metadata that can be read (``Expired``: a new list shows what there is).
            UnreadableObject: The object does not fit.
        """
        try:
            whole = self._whole.decode(line)
        except msgspec.DecodeError:
            pass  # A bookmark, an error, or an object that does not fit.
        else:
            if whole.type in _CHANGES:
                return Event(whole.object.metadata.resource_version, whole.object, whole.type == "DELETED")
        try:
            event = self._lines.decode(line)
        except msgspec.DecodeError as error:
            raise ConnectionLost(f"not a watch event: {error}") from error
        if event.type in _CHANGES:
            try:
                item = self._items.decode(event.object)
            except msgspec.DecodeError as error:
                self._unreadable(event.object, str(error), gone=event.type == "DELETED")
            return Event(item.metadata.resource_version, item, event.type == "DELETED")
        if event.type == "ERROR":
            raise error_from_event(bytes(event.object))
        return Event(self._identify(event.object).resource_version)

    def _unreadable(self, raw: msgspec.Raw, why: str, *, gone: bool) -> NoReturn:
        found = self._identify(raw)
        raise UnreadableObject(
            why, key=(found.namespace, found.name), uid=found.uid, resource_version=found.resource_version, gone=gone
        ) from None

    def _identify(self, raw: msgspec.Raw) -> _Metadata:
        try:
            return self._identified.decode(raw).metadata
        except msgspec.DecodeError as error:
            raise Expired(f"an event of an object without a name: {error}") from error


class ListMeta(msgspec.Struct, frozen=True, rename={"resource_version": "resourceVersion", "next": "continue"}):
    """Which version of the collection this is, and how to get its next page."""

    resource_version: str = ""
    next: str = ""


class Page(msgspec.Struct, Generic[V], frozen=True):
    """Some of the objects. ``unreadable`` maps the objects that do not fit the struct to the reason."""

    meta: ListMeta
    items: list[V]
    unreadable: dict[Key, str] = {}


class _Raw(msgspec.Struct, frozen=True):
    metadata: ListMeta
    items: list[msgspec.Raw] | None = None


class PageDecoder(Generic[V]):
    """Decodes pages of one kind; made once, used for every page."""

    def __init__(self, kind: type[V]) -> None:
        self._whole: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_page_struct(kind))
        self._raw = msgspec.json.Decoder(_Raw)
        self._item: msgspec.json.Decoder[V] = msgspec.json.Decoder(kind)
        self._identified = msgspec.json.Decoder(_Identified)

    def decode(self, body: bytes) -> Page[V]:
        """The page; object by object only if one of them does not fit."""
        try:
            whole = self._whole.decode(body)
        except msgspec.DecodeError:
            return self._one_by_one(body)
        return Page(whole.metadata, whole.items or [])

    def _one_by_one(self, body: bytes) -> Page[V]:
        raw = self._raw.decode(body)
        page: Page[V] = Page(raw.metadata, [], {})
        for item in raw.items or []:
            try:
                page.items.append(self._item.decode(item))
            except msgspec.DecodeError as error:
                identity = self._identified.decode(item).metadata
                page.unreadable[identity.namespace, identity.name] = str(error)
        return page


def _line_struct(kind: type) -> Any:
    return msgspec.defstruct("_Line", [("type", str), ("object", kind)])


def _page_struct(kind: type) -> Any:
    return msgspec.defstruct("_Whole", [("metadata", ListMeta), ("items", list[kind] | None, None)])  # type: ignore[valid-type]
