"""A DNS server for pods. It only resolves names of services, with requests to the API server.

It replaces CoreDNS, whose image is missing if nodes cannot reach a registry. Names have the form
`SERVICE.NAMESPACE.svc.cluster.local`, or `POD.SERVICE.NAMESPACE.svc.cluster.local` for a pod of a headless service.
"""

import socket
import socketserver
import struct
import sys
import urllib.error
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hack.cluster import machine
from hack.cluster.components import CLUSTER_DOMAIN, Files
from hack.cluster.controlplane import Client

TYPE_A = 1
NO_ERROR, SERVER_FAILURE, NO_SUCH_NAME = 0, 2, 3
TIME_TO_LIVE = 5


def parse_question(query: bytes) -> tuple[str, int, int]:
    """Return name and type of the first question, and the offset of its end."""
    labels, at = [], 12
    while length := query[at]:
        labels.append(query[at + 1 : at + 1 + length].decode("ascii").lower())
        at += 1 + length
    return ".".join(labels), struct.unpack_from("!H", query, at + 1)[0], at + 5


def answer(query: bytes, resolve: Callable[[str], list[str] | None]) -> bytes:
    """Return the response to a query. A name without addresses of the requested type is not NXDOMAIN."""
    name, kind, end = parse_question(query)
    try:
        addresses = resolve(name)
        code = NO_SUCH_NAME if addresses is None else NO_ERROR
    except OSError:
        addresses, code = None, SERVER_FAILURE
    found = (addresses or []) if kind == TYPE_A else []
    identifier, flags = struct.unpack_from("!HH", query)
    # 0x8400: an authoritative response. 0x0100: the flag RD is copied from the query.
    header = struct.pack("!HHHHHH", identifier, 0x8400 | (flags & 0x0100) | code, 1, len(found), 0, 0)
    records = b"".join(
        struct.pack("!HHHIH", 0xC00C, TYPE_A, 1, TIME_TO_LIVE, 4) + socket.inet_aton(address) for address in found
    )
    return header + query[12:end] + records


def resolve(client: Client, name: str) -> list[str] | None:
    """Return the addresses of a service, of the pods of a headless service, or of one such pod. None if unknown."""
    labels = name.removesuffix(f".svc.{CLUSTER_DOMAIN}").split(".")
    if not name.endswith(f".svc.{CLUSTER_DOMAIN}") or len(labels) not in {2, 3}:
        return None
    host, (service, namespace) = labels[0] if len(labels) == 3 else None, labels[-2:]
    try:
        spec = client.request("GET", f"/api/v1/namespaces/{namespace}/services/{service}")["spec"]
    except urllib.error.HTTPError as error:
        error.close()
        return None
    if host is None and spec.get("clusterIP") != "None":
        return [spec["clusterIP"]] if spec.get("clusterIP") else []
    selector = f"labelSelector=kubernetes.io%2Fservice-name%3D{service}"
    slices = client.request("GET", f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices?{selector}")
    return _addresses(slices, host)


def _addresses(slices: dict[str, Any], host: str | None) -> list[str] | None:
    endpoints = [endpoint for item in slices["items"] for endpoint in item["endpoints"] or ()]
    ready = [endpoint for endpoint in endpoints if endpoint.get("conditions", {}).get("ready", True)]
    if host is not None:
        ready = [endpoint for endpoint in ready if endpoint.get("hostname") == host]
    addresses = [address for endpoint in ready for address in endpoint["addresses"]]
    return addresses if addresses or host is None else None


def serve(address: str, port: int, lookup: Callable[[str], list[str] | None]) -> socketserver.ThreadingUDPServer:
    """Return a UDP server. TCP is not necessary, because the responses are short."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            query, reply = self.request
            try:
                reply.sendto(answer(query, lookup), self.client_address)
            except (IndexError, UnicodeDecodeError, struct.error):
                return  # not a question

    server = socketserver.ThreadingUDPServer((address, port), Handler)
    server.daemon_threads = True
    return server


def main() -> None:
    """Serve on the node's address until killed."""
    client = Files(Path(sys.argv[1])).client()
    with serve(machine.NODE, 53, lambda name: resolve(client, name)) as server:
        server.serve_forever()


if __name__ == "__main__":
    main()
