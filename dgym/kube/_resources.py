"""Kinds of the Kubernetes API, decoders for its lists and watch events, and the exceptions of requests.

Objects are decoded into a struct of the caller, which declares only the fields that the caller reads. The package
itself reads only their identity and version. An object that cannot be decoded is reported separately and does not
prevent decoding the others.

The exceptions are built from the ``Status`` object in the response of the API server. A caller must not simply repeat a
request that may have taken effect. It has to read the object first.
"""

from collections.abc import Mapping
from typing import Any, Generic, NoReturn, Protocol, TypeVar
from urllib.parse import quote

import msgspec

from dgym.api import GROUP
from dgym.decoding import DECODE_ERRORS


class StatusCause(msgspec.Struct, frozen=True):
    """One cause of an error, such as an invalid field or a terminating namespace."""

    reason: str = ""
    message: str = ""
    field: str = ""


class StatusDetails(msgspec.Struct, frozen=True, rename="camel"):
    """The object of the request, and the causes of the error."""

    name: str = ""
    kind: str = ""
    uid: str = ""
    causes: tuple[StatusCause, ...] = ()
    retry_after_seconds: int = 0


class Status(msgspec.Struct, frozen=True):
    """A ``Status`` object of the Kubernetes API (``meta/v1``)."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: StatusDetails | None = None


class ApiError(Exception):
    """A request failed.

    Attributes:
        message: The server's message, or the reason why it did not respond.
        status: HTTP status; 0 without a response.
        reason: The reason in the ``Status`` object, such as ``NotFound``.
        details: The details in the ``Status`` object.
        retry_after: Seconds that the server asks to wait before the next try; None if it does not.
        method: HTTP method of the request; empty until the transport sets it.
        path: Path of the request; empty until the transport sets it.
    """

    def __init__(
        self,
        message: str = "",
        *,
        status: int = 0,
        reason: str = "",
        details: StatusDetails | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.reason = reason
        self.details = details or StatusDetails()
        self.retry_after = retry_after
        self.method = ""
        self.path = ""

    def __str__(self) -> str:
        label = f"{self.status} {self.reason}".strip() if self.status else type(self).__name__
        return f"{label}: {self.message}" if self.message else label

    @property
    def causes(self) -> tuple[StatusCause, ...]:
        """The causes that the server lists; empty if it lists none."""
        return self.details.causes


class BadRequest(ApiError):
    """400: the server cannot interpret the request."""


class Unauthorized(ApiError):
    """401: the credentials are invalid or have expired."""


class Forbidden(ApiError):
    """403: RBAC or an admission plugin refused the request. Only the message shows which."""

    @property
    def quota(self) -> bool:
        """True if a ResourceQuota of the namespace is exhausted. The request may succeed when other pods have ended."""
        return "exceeded quota:" in self.message or "failed quota:" in self.message

    @property
    def namespace_terminating(self) -> bool:
        """True if the namespace is being deleted. No more objects can be created in it."""
        return any(cause.reason == "NamespaceTerminating" for cause in self.causes)


class NotFound(ApiError):
    """404: the object does not exist; on create, its namespace does not exist."""


class AlreadyExists(ApiError):
    """409 on create: the name is taken."""


class Conflict(ApiError):
    """409: the resourceVersion or UID in the request does not match. Nothing was changed. Read the object again."""


class Expired(ApiError):
    """410: the server does not have the resourceVersion or continue token any more. List again."""


class Invalid(ApiError):
    """422: the object violates its schema or a validation rule. ``causes`` lists the fields."""


class TooManyRequests(ApiError):
    """429: the request had no effect. It may be repeated after ``retry_after``."""


class ServerUnavailable(ApiError):
    """5xx: the server, or a webhook that it calls, is unavailable. The request may have taken effect."""


class ConnectionLost(ApiError):
    """The connection failed, or the response was not complete in time. The request may have taken effect."""


class UnreadableAnswer(ApiError):
    """2xx, but the body cannot be decoded. The request took effect.

    Possible causes are a CRD of another version, or a proxy that answered in place of the API server.
    """


class PortUnreachable(ApiError):
    """The kubelet cannot connect to the port of a pod."""


_BY_STATUS: Mapping[int, type[ApiError]] = {
    400: BadRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Expired,
    422: Invalid,
    429: TooManyRequests,
}
_TEXT_LIMIT = 4096
"""Maximum length of a message from a body that is not a ``Status``. Proxies send whole HTML pages."""


def error_from_answer(status: int, body: bytes, headers: Mapping[str, str]) -> ApiError:
    """Return the exception for a response. If the body is not a ``Status``, its text becomes the message."""
    answer = _decode_status(body)
    message = answer.message or body[:_TEXT_LIMIT].decode(errors="replace").strip()
    return _make(status, answer, message, _seconds(headers.get("Retry-After")))


def error_from_event(raw: bytes) -> ApiError:
    """Return the exception for the object of a watch event of type ERROR."""
    answer = _decode_status(raw)
    return _make(answer.code or 500, answer, answer.message, None)


def _make(status: int, answer: Status, message: str, retry_after: float | None) -> ApiError:
    kind = _BY_STATUS.get(status, ServerUnavailable if status >= 500 else ApiError)
    if answer.reason == "AlreadyExists":
        kind = AlreadyExists
    if retry_after is None and answer.details is not None and answer.details.retry_after_seconds:
        retry_after = float(answer.details.retry_after_seconds)
    return kind(message, status=status, reason=answer.reason, details=answer.details, retry_after=retry_after)


def _decode_status(body: bytes) -> Status:
    try:
        return msgspec.json.decode(body, type=Status)
    except DECODE_ERRORS:
        return Status()


def _seconds(value: Any) -> float | None:
    try:
        return max(0.0, float(value))
    except (TypeError, ValueError):
        return None


class Resource(msgspec.Struct, frozen=True):
    """A kind and where the API server serves it. ``group`` is empty for the core group."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """The ``apiVersion`` of manifests, such as ``v1`` or ``events.k8s.io/v1``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def url(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """Return the path of a collection, an object or a subresource. Without ``namespace``: all namespaces.

        Raises:
            ValueError: ``name`` is given without a namespace, and the kind is namespaced.
        """
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
        """Return a manifest of this kind with ``apiVersion``, ``kind`` and the given fields."""
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
"""Namespace and name. The namespace is empty for cluster-scoped kinds."""


class Metadata(Protocol):
    """The fields of an object's metadata that identify the object and its version."""

    @property
    def name(self) -> str:
        """Unique in its namespace."""

    @property
    def namespace(self) -> str:
        """Empty for cluster-scoped kinds."""

    @property
    def uid(self) -> str:
        """Never used again for another object, unlike the name."""

    @property
    def resource_version(self) -> str:
        """Changes with every write."""


class Object(Protocol):
    """An object of any kind. Callers decode into structs that implement this protocol."""

    @property
    def metadata(self) -> Metadata:
        """Identity and version of the object."""


T = TypeVar("T", bound=Object)


def key_of(item: Object) -> Key:
    """Return the namespace and name of the object."""
    return (item.metadata.namespace, item.metadata.name)


def older(version: str, than: str) -> bool:
    """Return True if a resourceVersion is known to be older than another one of the same kind.

    Since version 1.35, Kubernetes guarantees that decimal resourceVersions can be compared as numbers. Others cannot be
    compared; the result is False for them.
    """
    return _decimal(version) and _decimal(than) and int(version) < int(than)


def _decimal(version: str) -> bool:
    return version.isascii() and version.isdigit()


V = TypeVar("V")


class UnreadableObject(Exception):
    """The object of a watch event cannot be decoded into the struct. ``gone`` is True if the object was deleted."""

    def __init__(self, message: str, *, key: Key, uid: str, resource_version: str, gone: bool) -> None:
        super().__init__(message)
        self.key = key
        self.uid = uid
        self.resource_version = resource_version
        self.gone = gone


class Event(msgspec.Struct, Generic[T], frozen=True):
    """A watch event. ``item`` is None for bookmarks and for unknown event types. ``gone`` is True for deletions."""

    resource_version: str
    item: T | None = None
    gone: bool = False


_CHANGES = ("ADDED", "MODIFIED", "DELETED")


class _WatchLine(msgspec.Struct, frozen=True):
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
    """Decodes the lines of a watch of one kind."""

    def __init__(self, kind: type[T]) -> None:
        self._lines = msgspec.json.Decoder(_WatchLine)
        self._whole: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_line_struct(kind))
        self._items = msgspec.json.Decoder(kind)
        self._identified = msgspec.json.Decoder(_Identified)

    def decode(self, line: bytes) -> Event[T]:
        """Return the event of a line.

        Raises:
            ApiError: The event has the type ERROR. The error is usually ``Expired``.
            ConnectionLost: The line is not a watch event.
            Expired: The metadata of the object cannot be read, so that a new list is necessary.
            UnreadableObject: The object cannot be decoded into the struct.
        """
        try:
            whole = self._whole.decode(line)
        except msgspec.DecodeError:
            pass  # A bookmark, an error, or an object that cannot be decoded.
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
    """The version of the collection, and the ``continue`` token of the next page (empty on the last page)."""

    resource_version: str = ""
    next: str = ""


class Page(msgspec.Struct, Generic[V], frozen=True):
    """A page of a list. ``unreadable`` maps each object that could not be decoded to the reason."""

    meta: ListMeta
    items: list[V]
    unreadable: dict[Key, str] = {}


class _Raw(msgspec.Struct, frozen=True):
    metadata: ListMeta
    items: list[msgspec.Raw] | None = None


class PageDecoder(Generic[V]):
    """Decodes pages of a list of one kind."""

    def __init__(self, kind: type[V]) -> None:
        self._whole: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_page_struct(kind))
        self._raw = msgspec.json.Decoder(_Raw)
        self._item: msgspec.json.Decoder[V] = msgspec.json.Decoder(kind)
        self._identified = msgspec.json.Decoder(_Identified)

    def decode(self, body: bytes) -> Page[V]:
        """Return the page. If decoding it at once fails, its objects are decoded one by one."""
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
