import json
from typing import Any

import msgspec
import pytest

from dgym.kube import ConnectionLost, Expired
from dgym.kube._resources import EventDecoder, PageDecoder, UnreadableObject


class Meta(msgspec.Struct, rename="camel"):
    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class Widget(msgspec.Struct):
    metadata: Meta
    size: int


def widget(name: str, size: object = 1) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "ns", "resourceVersion": "5", "extra": {}}, "size": size}


def page(*items: object, **meta: str) -> bytes:
    return json.dumps({"kind": "WidgetList", "metadata": {"resourceVersion": "7"} | meta, "items": items}).encode()


def event(kind: str, item: object) -> bytes:
    return json.dumps({"type": kind, "object": item}).encode()


def test_a_page_of_objects() -> None:
    found = PageDecoder(Widget).decode(page(widget("a"), widget("b", 2), **{"continue": "more"}))
    assert [item.size for item in found.items] == [1, 2]
    assert (found.meta.resource_version, found.meta.next, found.unreadable) == ("7", "more", {})


def test_a_page_without_objects() -> None:
    assert PageDecoder(Widget).decode(b'{"metadata":{},"items":null}').items == []


def test_one_object_that_cannot_be_read_does_not_hide_the_others() -> None:
    found = PageDecoder(Widget).decode(page(widget("a"), widget("b", "large"), widget("c")))
    assert [item.metadata.name for item in found.items] == ["a", "c"]
    assert list(found.unreadable) == [("ns", "b")]
    assert "size" in found.unreadable["ns", "b"]


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"items": []}', b'{"metadata": {}, "items": [{}]}'])
def test_an_invalid_page_raises(body: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        PageDecoder(Widget).decode(body)


def test_events_of_objects() -> None:
    decoder = EventDecoder(Widget)
    for kind, gone in [("ADDED", False), ("MODIFIED", False), ("DELETED", True)]:
        seen = decoder.decode(event(kind, widget("a")))
        assert seen.item is not None
        assert (seen.item.metadata.name, seen.resource_version, seen.gone) == ("a", "5", gone)


def test_a_bookmark_and_an_unknown_type_have_a_version_alone() -> None:
    bookmark = {"kind": "Widget", "metadata": {"resourceVersion": "9", "creationTimestamp": None}}
    assert EventDecoder(Widget).decode(event("BOOKMARK", bookmark)).resource_version == "9"
    assert EventDecoder(Widget).decode(event("RENAMED", bookmark)).item is None


def test_an_error_event_is_raised() -> None:
    with pytest.raises(Expired, match="too old"):
        EventDecoder(Widget).decode(event("ERROR", {"kind": "Status", "code": 410, "message": "too old"}))


def test_an_object_that_cannot_be_read_is_named() -> None:
    for kind, gone in [("ADDED", False), ("DELETED", True)]:
        with pytest.raises(UnreadableObject) as caught:
            EventDecoder(Widget).decode(event(kind, widget("a", "large")))
        assert (caught.value.key, caught.value.resource_version, caught.value.gone) == (("ns", "a"), "5", gone)


def test_an_object_without_readable_metadata_asks_for_a_new_list() -> None:
    with pytest.raises(Expired, match="without a name"):
        EventDecoder(Widget).decode(event("DELETED", {"metadata": {"name": 5}}))


@pytest.mark.parametrize("line", [b"", b"{", b'{"type":"ADDED"', b"<html>", b'{"type": "ADDED", "object": {"metadata'])
def test_a_line_that_is_not_an_event_raises_connection_lost(line: bytes) -> None:
    with pytest.raises(ConnectionLost):
        EventDecoder(Widget).decode(line)
