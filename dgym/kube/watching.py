"""Events of a watch, decoded from the bytes of a line straight into a narrow struct."""

from typing import Generic, NoReturn

import msgspec

from dgym.kube.errors import ConnectionLost, Expired, error_from_event
from dgym.kube.objects import Key, T


class UnreadableObject(Exception):
    """The object of an event does not fit the struct; ``gone``: it was deleted."""

    def __init__(self, message: str, *, key: Key, uid: str, resource_version: str, gone: bool) -> None:
        super().__init__(message)
        self.key = key
        self.uid = uid
        self.resource_version = resource_version
        self.gone = gone


class Event(msgspec.Struct, Generic[T], frozen=True):
    """What happened. A bookmark, or a type that is not known yet, has a version and no object."""

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
    metadata: _Metadata = _Metadata()


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
        who = self._identify(raw)
        raise UnreadableObject(
            why, key=(who.namespace, who.name), uid=who.uid, resource_version=who.resource_version, gone=gone
        ) from None

    def _identify(self, raw: msgspec.Raw) -> _Metadata:
        try:
            return self._identified.decode(raw).metadata
        except msgspec.DecodeError as error:
            raise Expired(f"an event of an object without a name: {error}") from error
