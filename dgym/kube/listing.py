"""Answers to lists, decoded into narrow structs; one object that cannot be read does not hide the others."""

from typing import Any, Generic, TypeVar

import msgspec

from dgym.kube.objects import Key

V = TypeVar("V")


class ListMeta(msgspec.Struct, frozen=True, rename={"resource_version": "resourceVersion", "next": "continue"}):
    """Which version of the collection this is, and how to get its next page."""

    resource_version: str = ""
    next: str = ""


class Page(msgspec.Struct, Generic[V], frozen=True):
    """Some of the objects. ``unreadable`` maps those that do not fit the struct to why."""

    meta: ListMeta
    items: list[V]
    unreadable: dict[Key, str] = {}


class _Raw(msgspec.Struct, frozen=True):
    metadata: ListMeta
    items: list[msgspec.Raw] | None = None


class _Identity(msgspec.Struct, frozen=True):
    name: str = ""
    namespace: str = ""


class _Identified(msgspec.Struct, frozen=True):
    metadata: _Identity


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
                who = self._identified.decode(item).metadata
                page.unreadable[who.namespace, who.name] = str(error)
        return page


def _page_struct(kind: type) -> Any:
    return msgspec.defstruct("_Whole", [("metadata", ListMeta), ("items", list[kind] | None, None)])  # type: ignore[valid-type]
