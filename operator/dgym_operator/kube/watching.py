"""Events of a watch, decoded from the bytes of a line straight into a narrow struct."""

from typing import Generic, NoReturn

import msgspec

from dgym_operator.kube.errors import ConnectionLost, error_from_event
from dgym_operator.kube.objects import T


class UnreadableObject(Exception):
    """The object of an event does not fit the struct."""

    def __init__(self, message: str, *, name: str, resource_version: str) -> None:
        super().__init__(message)
        self.name = name
        self.resource_version = resource_version


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
            ApiError: The server reports one instead, ``Expired`` mostly; or this is no line of a watch.
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
                self._unreadable(event.object, str(error))
            return Event(item.metadata.resource_version, item, event.type == "DELETED")
        if event.type == "ERROR":
            raise error_from_event(bytes(event.object))
        return Event(self._identify(event.object).resource_version)

    def _unreadable(self, raw: msgspec.Raw, why: str) -> NoReturn:
        who = self._identify(raw)
        raise UnreadableObject(why, name=f"{who.namespace}/{who.name}", resource_version=who.resource_version) from None

    def _identify(self, raw: msgspec.Raw) -> _Metadata:
        return self._identified.decode(raw).metadata
