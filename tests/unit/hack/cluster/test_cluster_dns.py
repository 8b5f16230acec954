"""Tests of the DNS server: names of services, as a resolver in a pod requests them."""

import socket
import struct
import threading
import urllib.error
from email.message import Message
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hack.cluster.dns import answer, parse_question, resolve, serve

A, AAAA = 1, 28


def question(name: str, kind: int = A) -> bytes:
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return struct.pack("!HHHHHH", 7, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!HH", kind, 1)


SERVICES = {"web": {"clusterIP": "10.0.0.9"}, "peers": {"clusterIP": "None"}}
ENDPOINTS = [
    {"addresses": ["10.1.0.1"], "hostname": "peers-0", "conditions": {"ready": True}},
    {"addresses": ["10.1.0.2"], "hostname": "peers-1", "conditions": {"ready": False}},
]


class Cluster:
    """Fake API server with Services and EndpointSlices, from which names are resolved."""

    def request(self, method: str, path: str) -> Any:
        if "endpointslices" in path:
            return {"items": [{"endpoints": ENDPOINTS}]}
        namespace, _, name = path.removeprefix("/api/v1/namespaces/").partition("/services/")
        if namespace != "ns" or name not in SERVICES:
            raise urllib.error.HTTPError(path, 404, "not found", Message(), None)
        return {"spec": SERVICES[name]}


@pytest.mark.parametrize(
    ("name", "addresses"),
    [
        ("web.ns.svc.cluster.local", ["10.0.0.9"]),
        ("peers.ns.svc.cluster.local", ["10.1.0.1"]),
        ("peers-0.peers.ns.svc.cluster.local", ["10.1.0.1"]),
        ("peers-1.peers.ns.svc.cluster.local", None),
        ("web.other.svc.cluster.local", None),
        ("web.ns", None),
        ("example.org", None),
    ],
)
def test_services_have_addresses_and_nothing_else_has(name: str, addresses: list[str] | None) -> None:
    assert resolve(Cluster(), name) == addresses  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "addresses", "code", "count"), [(A, ["10.0.0.9"], 0, 1), (AAAA, ["10.0.0.9"], 0, 0), (A, None, 3, 0)]
)
def test_a_name_without_addresses_of_a_type_exists(kind: int, addresses: Any, code: int, count: int) -> None:
    reply = answer(question("web.ns.svc.cluster.local", kind), lambda name: addresses)
    identifier, flags, questions, answers = struct.unpack_from("!HHHH", reply)
    assert (identifier, flags & 0xF, questions, answers) == (7, code, 1, count)
    assert flags & 0x8000
    assert not count or reply.endswith(socket.inet_aton("10.0.0.9"))


def test_an_api_server_that_does_not_answer_is_not_a_missing_name() -> None:
    def fails(name: str) -> list[str]:
        raise ConnectionRefusedError

    assert struct.unpack_from("!HH", answer(question("a.b"), fails))[1] & 0xF == 2


@given(st.binary(max_size=80))
def test_invalid_questions_raise_only_handled_exceptions(data: bytes) -> None:
    try:
        parse_question(data)
    except (IndexError, UnicodeDecodeError, struct.error):
        return


def test_the_server_answers_after_an_invalid_question() -> None:
    with serve("127.0.0.1", 0, lambda name: ["10.0.0.9"]) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.settimeout(20)
            client.sendto(b"?", server.server_address)
            client.sendto(question("web.ns.svc.cluster.local"), server.server_address)
            assert client.recv(512).endswith(socket.inet_aton("10.0.0.9"))
        server.shutdown()
        thread.join(20)
