"""Client for the pods of simulated kubelets and schedulers: a watch in protobuf, and writes with retries.

It decodes only the fields of an event that a simulated kubelet needs, so that the simulation uses little CPU.
"""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import msgspec

from tests.perf.scale.control_plane import NAMESPACE
from tests.support.apiserver import ApiServer

_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
_PROTOBUF = "application/vnd.kubernetes.protobuf"
_MERGE = "application/strategic-merge-patch+json"
_ENVELOPE = b"k8s\x00"
_WRITERS = 64
_TRIES = 8
_COMPONENT = b"app.kubernetes.io/component"


class PodEvent(msgspec.Struct, frozen=True):
    """An event of the watch."""

    kind: str
    name: str
    component: str
    is_deleted: bool
    version: str


class Pods:
    """The pods of the namespace."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url
        self._writers = asyncio.Semaphore(_WRITERS)

    @classmethod
    @contextlib.asynccontextmanager
    async def connect(cls, server: ApiServer) -> AsyncIterator["Pods"]:
        """A session with the API server."""
        connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=server.ca_file), limit=0)
        headers = {
            "Authorization": f"Bearer {server.token}",
            "Accept": _PROTOBUF,
            "Accept-Encoding": "identity",
            "User-Agent": "simulated-nodes",
        }
        async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
            yield cls(session, server.url)

    async def watch(self) -> AsyncIterator[PodEvent]:
        """Events of all existing and new pods.

        The API server ends the watch of a slow client. It is then continued from the last event.
        """
        version, limits = "", aiohttp.ClientTimeout(total=None)
        accept = {"Accept": f"{_PROTOBUF};stream=watch"}
        while True:
            url = f"{self._url}{_PODS}?watch=1&resourceVersion={version}"
            async with self._session.get(url, timeout=limits, headers=accept, read_bufsize=2**24) as answer:
                answer.raise_for_status()
                with contextlib.suppress(asyncio.IncompleteReadError):
                    while True:
                        size = int.from_bytes(await answer.content.readexactly(4), "big")
                        event = _read_event(await answer.content.readexactly(size))
                        yield event
                        version = event.version

    async def create(self, body: dict[str, Any]) -> None:
        """Create a pod."""
        await self._write("POST", _PODS, body)

    async def bind(self, name: str) -> None:
        """Bind the pod to a node."""
        target = {"apiVersion": "v1", "kind": "Node", "name": "node-1"}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
        await self._write("POST", f"{_PODS}/{name}/binding", body)

    async def patch_status(self, name: str, status: dict[str, Any]) -> None:
        """Change the pod's status."""
        await self._write("PATCH", f"{_PODS}/{name}/status", {"status": status})

    async def delete(self, name: str) -> None:
        """Delete a terminated pod immediately."""
        await self._write("DELETE", f"{_PODS}/{name}?gracePeriodSeconds=0")

    async def _write(self, method: str, path: str, body: Any = None) -> None:
        """Write. Retry if the server is overloaded or another writer was faster. Ignore a missing pod."""
        data = None if body is None else msgspec.json.encode(body)
        headers = {"Content-Type": _MERGE if method == "PATCH" else "application/json"}
        async with self._writers:
            for number in range(_TRIES):
                async with self._session.request(method, self._url + path, data=data, headers=headers) as answer:
                    text = await answer.read()
                    if answer.status < 300 or answer.status == 404:
                        return
                    if answer.status == 409 and path.endswith("/binding"):
                        return  # An earlier try has bound it.
                    if answer.status not in (409, 429, 500, 503, 504):
                        raise ValueError(f"{method} {path}: {answer.status} {text[-500:]!r}")
                await asyncio.sleep(0.1 * 2**number)
        raise TimeoutError(f"{method} {path}: not answered in {_TRIES} tries")


def _read_event(frame: bytes) -> PodEvent:
    kind, envelope = "", b""
    for field, value in _fields(frame):
        if field == 1:
            kind = value.decode()
        elif field == 2:
            envelope = _first(value, 1)
    if not envelope.startswith(_ENVELOPE):
        raise ValueError(f"not a pod's event: {frame[:200]!r}")
    name, version, component, is_deleted = "", "", "", False
    for field, value in _fields(_first(_first(envelope[len(_ENVELOPE) :], 2), 1)):
        if field == 1:
            name = value.decode()
        elif field == 6:
            version = value.decode()
        elif field == 9:
            is_deleted = True
        elif field == 11 and _first(value, 1) == _COMPONENT:
            component = _first(value, 2).decode()
    return PodEvent(kind, name, component, is_deleted, version)


def _first(message: bytes, wanted: int) -> bytes:
    return next((value for field, value in _fields(message) if field == wanted), b"")


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Number and bytes of each length-delimited field. Varint fields are skipped."""
    place = 0
    while place < len(message):
        tag, place = _varint(message, place)
        if tag & 7 == 0:
            _, place = _varint(message, place)
        elif tag & 7 == 2:
            size, place = _varint(message, place)
            yield tag >> 3, message[place : place + size]
            place += size
        else:
            raise ValueError(f"wire type {tag & 7} is not used by pods")


def _varint(message: bytes, place: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = message[place]
        number |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return number, place
