"""Lists and watch events, decoded from bytes straight into the narrow struct of the caller.

One object that cannot be decoded does not hide the others.
"""

from typing import Any, Generic, NoReturn, TypeVar

import msgspec

from dgym.kube.errors import ConnectionLost, Expired, error_from_event
from dgym.kube.resources import Key, T

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
            event = self._lines.decode(line)
        except msgspec.DecodeError as error:
            raise ConnectionLost(f"not a watch event: {error}") from error
        if event.type in ("ADDED", "MODIFIED", "DELETED"):
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


def _page_struct(kind: type) -> Any:
    return msgspec.defstruct("_Whole", [("metadata", ListMeta), ("items", list[kind] | None, None)])  # type: ignore[valid-type]
