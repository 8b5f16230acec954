"""NetworkPolicies as rules of iptables: what a network plugin does that this cluster does not have.

Pods of the one node are ports of one bridge, and the kernel shows what crosses it to iptables. A pod that policies
isolate has a chain for each direction, in which a packet is marked as refused until a rule allows it. The table is
`mangle`, which kube-proxy does not use for its own rules; packets are seen there after services were translated.

The node's own processes, and the machine around it, reach every pod, as in every cluster. IPv6 is not there.
"""

import ipaddress
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from hack.cluster import network

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
    """A pod with an address of its own."""

    namespace: str
    address: str
    labels: Mapping[str, str]
    ports: Mapping[str, int]


class Direction(NamedTuple):
    """One of the two directions of a policy: the names of its fields, and how iptables names the peer."""

    type: str
    rules: str
    peers: str
    peer: str
    own: str


INGRESS = Direction("Ingress", "ingress", "from", "-s", "-d")
EGRESS = Direction("Egress", "egress", "to", "-d", "-s")


def isolated_pods(items: Iterable[Object]) -> list[Pod]:
    """The pods that policies may isolate: those that run, in a network of their own."""
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
    """Whether a selector of labels chooses an object; an empty one chooses all."""
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
    """The rules of each chain, the main one first; ``namespaces`` are their labels by name."""
    made: Chains = {MAIN: ["-m conntrack --ctstate ESTABLISHED,RELATED -j RETURN"]}
    for direction in (EGRESS, INGRESS):
        if direction is INGRESS:
            made[MAIN].append(f"-s {network.HOST} -j RETURN")
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
    """Add what one rule of a policy allows to the chain of the pod."""
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
    """The matches of the ports of a rule: of a rule without ports one that matches all."""
    if not ports:
        yield ""
    for each in ports:
        protocol = each.get("protocol", "TCP").lower()
        number = each.get("port")
        if isinstance(number, str):
            number = target.ports.get(number) if target is not None else None
            if number is None:
                continue  # Of another pod.
        last = f":{each['endPort']}" if each.get("endPort") else ""
        yield f"-p {protocol} " + (f"--dport {number}{last} " if number is not None else "")


def restore_text(wanted: Chains, present: Iterable[str]) -> str:
    """The input of ``iptables-restore --noflush`` that replaces the chains that are there by others, at once."""
    stale = sorted(set(present) - wanted.keys())
    lines = ["*mangle", *(f":{name} - [0:0]" for name in [*wanted, *stale])]
    lines += [f"-A {name} {rule}" for name, rules in wanted.items() for rule in rules]
    return "\n".join([*lines, *(f"-X {name}" for name in stale), "COMMIT", ""])
