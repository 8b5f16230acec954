"""The cluster's network: a namespace of its own, tied to the machine by one pair of interfaces and two routes.

Nothing is forwarded or translated for it on the machine, so no rule of a packet filter is needed there: processes of
the machine reach nodes, pods and services, pods reach the machine, and neither reaches further.
"""

import socket
from collections.abc import Sequence

from hack.cluster.machine import run, wait_until

INTERFACE = "dgym-cluster"
HOST = "10.231.0.1"
NODE = "10.231.0.2"
LINK_PREFIX = 30
PODS = "10.231.1.0/24"
SERVICES = "10.231.2.0/24"
API_SERVICE = "10.231.2.1"


def inside_names() -> Sequence[str]:
    """The interfaces of this process's network namespace."""
    return [name for _, name in socket.if_nameindex()]


def connect(pid: int) -> None:
    """On the machine: tie the network namespace of a process to it."""
    run("ip", "link", "add", INTERFACE, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
    run("ip", "address", "add", f"{HOST}/{LINK_PREFIX}", "dev", INTERFACE)
    run("ip", "link", "set", INTERFACE, "up")
    for subnet in (PODS, SERVICES):
        run("ip", "route", "replace", subnet, "via", NODE, "dev", INTERFACE)


def connected() -> bool:
    """On the machine: whether the interface is there, as it is while a cluster runs."""
    return INTERFACE in inside_names()


def disconnect() -> None:
    """On the machine: remove the interface, and with it its routes; the kernel does so with the namespace."""
    if connected():
        run("ip", "link", "delete", INTERFACE, check=False)


def configure_node() -> None:
    """In the namespace: take the node's address and forward for pods."""
    wait_until(lambda: "eth0" in inside_names(), 20, "the interface from the machine")
    run("ip", "link", "set", "lo", "up")
    run("ip", "address", "add", f"{NODE}/{LINK_PREFIX}", "dev", "eth0")
    run("ip", "link", "set", "eth0", "up")
    # No default route: what is not of the cluster or the machine fails at once, not after a timeout. Processes of
    # the node itself need a route to services before their addresses are translated.
    run("ip", "route", "add", SERVICES, "dev", "lo", "src", NODE)
    run("sysctl", "-qw", "net.ipv4.ip_forward=1")
    # Without it, answers of a pod to its neighbour on the bridge bypass the translation of service addresses.
    run("sysctl", "-qw", "net.bridge.bridge-nf-call-iptables=1", check=False)
