"""Translates NetworkPolicies to iptables rules and enforces them, because this cluster does not have a network plugin.

The policies of a pod are in force some milliseconds after its address is in its status. All rules are removed at the
end.

All pods are on one bridge, and iptables sees the packets that cross it. An isolated pod has a chain for each direction.
The chain first marks a packet as refused, and a matching rule removes the mark. The rules are in the table `mangle`,
which kube-proxy does not use for its own rules. There, addresses of services are already translated.

Processes of the node and of the machine can reach every pod, as in other clusters. IPv6 is not supported."""

import ipaddress
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hack.cluster import machine
from hack.cluster.components import Files
from hack.cluster.controlplane import Client
from hack.cluster.machine import ClusterError, run

PREFIX = "DGYM-"
MAIN = f"{PREFIX}POLICY"
HOOKS = ("FORWARD", "INPUT")
_MARK = "0x10000000"
_REFUSE = f"-j MARK --set-xmark {_MARK}/{_MARK}"
_ALLOW = f"-j MARK --set-xmark 0x0/{_MARK}"
_DROP_REFUSED = f"-m mark --mark {_MARK}/{_MARK} -j DROP"

Object = Mapping[str, Any]
Chains = dict[str, list[str]]


class Pod(NamedTuple):
    """A pod with its own address."""

    namespace: str
    address: str
    labels: Mapping[str, str]
    ports: Mapping[str, int]


class Direction(NamedTuple):
    """A direction of a policy: names of its fields, and the iptables options for the addresses of peer and pod."""

    type: str
    rules: str
    peers: str
    peer: str
    own: str


INGRESS = Direction("Ingress", "ingress", "from", "-s", "-d")
EGRESS = Direction("Egress", "egress", "to", "-d", "-s")


def isolated_pods(items: Iterable[Object]) -> list[Pod]:
    """Return the pods that policies may isolate: running pods that do not use the network of the node."""
    return [_pod(item) for item in items if _has_address(item)]


def _has_address(item: Object) -> bool:
    status = item.get("status", {})
    over = status.get("phase") in ("Succeeded", "Failed")
    return bool(status.get("podIP")) and not over and not item["spec"].get("hostNetwork")


def _pod(item: Object) -> Pod:
    ports = [port for container in item["spec"]["containers"] for port in container.get("ports", ())]
    return Pod(
        item["metadata"]["namespace"],
        item["status"]["podIP"],
        item["metadata"].get("labels") or {},
        {port["name"]: port["containerPort"] for port in ports if port.get("name")},
    )


def selects(selector: Object | None, labels: Mapping[str, str]) -> bool:
    """Return True if a label selector matches. An empty selector matches everything."""
    selector = selector or {}
    expressions = selector.get("matchExpressions") or ()
    wanted = selector.get("matchLabels") or {}
    return all(labels.get(key) == value for key, value in wanted.items()) and all(
        _holds(expression, labels) for expression in expressions
    )


def _holds(expression: Object, labels: Mapping[str, str]) -> bool:
    key, values = expression["key"], expression.get("values") or ()
    holds: Mapping[str, Callable[[], bool]] = {
        "In": lambda: labels.get(key) in values,
        "NotIn": lambda: labels.get(key) not in values,
        "Exists": lambda: key in labels,
        "DoesNotExist": lambda: key not in labels,
    }
    return holds[expression["operator"]]()


def chains(policies: Sequence[Object], pods: Sequence[Pod], namespaces: Mapping[str, Mapping[str, str]]) -> Chains:
    """Return the rules of each chain, the main chain first. ``namespaces`` maps names of namespaces to their labels."""
    made: Chains = {MAIN: ["-m conntrack --ctstate ESTABLISHED,RELATED -j RETURN"]}
    for direction in (EGRESS, INGRESS):
        if direction is INGRESS:
            made[MAIN].append(f"-s {machine.HOST} -j RETURN")
        for pod in pods:
            chosen = [policy for policy in policies if _isolates(policy, pod, direction)]
            if not chosen:
                continue
            name = f"{PREFIX}{direction.type[0]}-{pod.address}"
            made[MAIN].append(f"{direction.own} {pod.address} -j {name}")
            made[name] = [_REFUSE]
            for policy in chosen:
                for rule in policy["spec"].get(direction.rules) or ():
                    _allow(made, name, pod, policy, rule, direction, pods, namespaces)
            made[name].append(_DROP_REFUSED)
    return made


def _isolates(policy: Object, pod: Pod, direction: Direction) -> bool:
    spec = policy["spec"]
    types = spec.get("policyTypes") or ["Ingress", *(["Egress"] if spec.get("egress") else [])]
    chosen = policy["metadata"]["namespace"] == pod.namespace and selects(spec.get("podSelector"), pod.labels)
    return chosen and direction.type in types


def _allow(
    made: Chains,
    name: str,
    pod: Pod,
    policy: Object,
    rule: Object,
    direction: Direction,
    pods: Sequence[Pod],
    namespaces: Mapping[str, Mapping[str, str]],
) -> None:
    """Add the iptables rules for one rule of a policy to the chain of the pod."""
    peers, ports = rule.get(direction.peers) or (), rule.get("ports") or ()
    if not peers:
        target = pod if direction is INGRESS else None
        made[name] += [f"{port}{_ALLOW}" for port in _ports(ports, target)]
    for peer in peers:
        if block := peer.get("ipBlock"):
            _allow_block(made, name, block, ports, pod, direction)
            continue
        for other in pods:
            if _is_peer(other, peer, policy["metadata"]["namespace"], namespaces):
                target = pod if direction is INGRESS else other
                match = f"{direction.peer} {other.address} "
                made[name] += [f"{match}{port}{_ALLOW}" for port in _ports(ports, target)]


def _allow_block(
    made: Chains, name: str, block: Object, ports: Sequence[Object], pod: Pod, direction: Direction
) -> None:
    if ipaddress.ip_network(block["cidr"]).version != 4:
        return
    own = f"{PREFIX}B-{len(made)}"
    target = pod if direction is INGRESS else None
    made[name].append(f"{direction.peer} {block['cidr']} -j {own}")
    made[own] = [f"{direction.peer} {cidr} -j RETURN" for cidr in block.get("except") or ()]
    made[own] += [f"{port}{_ALLOW}" for port in _ports(ports, target)]


def _is_peer(pod: Pod, peer: Object, namespace: str, namespaces: Mapping[str, Mapping[str, str]]) -> bool:
    if "namespaceSelector" in peer:
        if not selects(peer["namespaceSelector"], namespaces.get(pod.namespace, {})):
            return False
    elif pod.namespace != namespace:
        return False
    return selects(peer.get("podSelector"), pod.labels)


def _ports(ports: Sequence[Object], target: Pod | None) -> Iterator[str]:
    """Yield the matches for the ports of a rule. Without ports, yield one that matches all."""
    if not ports:
        yield ""
    for each in ports:
        protocol = each.get("protocol", "TCP").lower()
        number = each.get("port")
        if isinstance(number, str):
            number = target.ports.get(number) if target is not None else None
            if number is None:
                continue  # This pod does not have a port of that name.
        last = f":{each['endPort']}" if each.get("endPort") else ""
        yield f"-p {protocol} " + (f"--dport {number}{last} " if number is not None else "")


def restore_text(wanted: Chains, present: Iterable[str]) -> str:
    """Return the input for ``iptables-restore --noflush`` that atomically replaces the present chains."""
    stale = sorted(set(present) - wanted.keys())
    lines = ["*mangle", *(f":{name} - [0:0]" for name in [*wanted, *stale])]
    lines += [f"-A {name} {rule}" for name, rules in wanted.items() for rule in rules]
    return "\n".join([*lines, *(f"-X {name}" for name in stale), "COMMIT", ""])


KINDS = {
    "policies": "/apis/networking.k8s.io/v1/networkpolicies",
    "pods": "/api/v1/pods",
    "namespaces": "/api/v1/namespaces",
}
_PAUSE_SECONDS = 0.2
_PATIENCE_SECONDS = 30


class Mirror:
    """A cache of the objects of one kind, which a watch updates."""

    def __init__(self, client: Client, path: str, changed: threading.Event) -> None:
        self._client = client
        self._path = path
        self._changed = changed
        self._objects: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()
        self.listed = threading.Event()

    def objects(self) -> list[dict[str, Any]]:
        """Return all objects, sorted by UID."""
        with self._lock:
            return [self._objects[key] for key in sorted(self._objects)]

    def follow(self) -> None:
        """List and watch forever."""
        while True:
            try:
                self._watch(self._list())
            except (OSError, ValueError, KeyError):
                # The API server does not answer, or the watch has missed events. All objects are listed again.
                time.sleep(_PAUSE_SECONDS)

    def _list(self) -> str:
        answer = self._client.request("GET", self._path)
        with self._lock:
            self._objects = {item["metadata"]["uid"]: item for item in answer["items"]}
        self.listed.set()
        self._changed.set()
        version: str = answer["metadata"]["resourceVersion"]
        return version

    def _watch(self, version: str) -> None:
        for event in self._client.watch(f"{self._path}?watch=true&resourceVersion={version}&timeoutSeconds=240"):
            item = event["object"]
            if event["type"] == "ERROR":
                raise ValueError(item)
            with self._lock:
                if event["type"] == "DELETED":
                    self._objects.pop(item["metadata"]["uid"], None)
                else:
                    self._objects[item["metadata"]["uid"]] = item
            self._changed.set()


def present_chains() -> list[str]:
    """Return the names of this program's chains in the table."""
    lines = run("iptables-save", "-t", "mangle").splitlines()
    names = (line[1:].split()[0] for line in lines if line.startswith(":"))
    return [name for name in names if name.startswith(PREFIX)]


def hooked(hook: str) -> bool:
    """Return True if the chain ``hook`` jumps to this program's main chain."""
    rule = f"-A {hook} -j {MAIN}"
    return rule in run("iptables-save", "-t", "mangle").splitlines()


def apply(wanted: Chains) -> None:
    """Replace this program's chains."""
    run("iptables-restore", "--noflush", stdin=restore_text(wanted, present_chains()))
    for hook in HOOKS:
        if not hooked(hook):
            run("iptables", "-t", "mangle", "-I", hook, "-j", MAIN)


def remove() -> None:
    """Remove all rules and chains of this program."""
    for hook in HOOKS:
        if hooked(hook):
            run("iptables", "-t", "mangle", "-D", hook, "-j", MAIN)
    run("iptables-restore", "--noflush", stdin=restore_text({}, present_chains()))


class Enforcer:
    """Applies the policies after every change, until ``end`` is called."""

    def __init__(self, client: Client) -> None:
        self._changed = threading.Event()
        self._ending = False
        self._mirrors = {name: Mirror(client, path, self._changed) for name, path in KINDS.items()}

    def end(self) -> None:
        """Request the end of ``serve``."""
        self._ending = True
        self._changed.set()

    def serve(self) -> None:
        """Enforce the policies until ``end`` is called, and then remove every rule."""
        for mirror in self._mirrors.values():
            threading.Thread(target=mirror.follow, daemon=True).start()
        applied: Chains = {}
        while not self._ending:
            self._changed.wait()
            self._changed.clear()
            if self._ending or not all(mirror.listed.is_set() for mirror in self._mirrors.values()):
                continue
            wanted = self._wanted()
            if wanted != applied:
                self._apply(wanted)
                applied = wanted
        remove()

    def _wanted(self) -> Chains:
        namespaces = {
            each["metadata"]["name"]: each["metadata"].get("labels", {})
            for each in self._mirrors["namespaces"].objects()
        }
        pods = isolated_pods(self._mirrors["pods"].objects())
        return chains(self._mirrors["policies"].objects(), pods, namespaces)

    def _apply(self, wanted: Chains) -> None:
        """Apply the chains, with retries for 30 seconds, because kube-proxy may hold the lock of iptables."""
        end = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                return apply(wanted)
            except ClusterError as error:
                if time.monotonic() > end:
                    raise
                print(f"once more after: {error}", file=sys.stderr, flush=True)
                time.sleep(_PAUSE_SECONDS)


def main() -> None:
    """Enforce the policies of a cluster until SIGTERM."""
    enforcer = Enforcer(Files(Path(sys.argv[1])).client())
    signal.signal(signal.SIGTERM, lambda *_: enforcer.end())
    enforcer.serve()


if __name__ == "__main__":
    main()
