"""Tests of the iptables rules for NetworkPolicies, evaluated as the kernel evaluates them."""

import ipaddress
import shlex

import pytest

from hack.cluster import machine
from hack.cluster.policies import MAIN, Pod, chains, isolated_pods, restore_text, selects

NAMESPACES = {"team": {"kubernetes.io/metadata.name": "team", "kind": "users"}, "system": {"kind": "ours"}}
SANDBOX = Pod("team", "10.231.1.5", {"app": "sandbox"}, {})
OTHER = Pod("team", "10.231.1.6", {"app": "other"}, {"http": 8000})
AGENT = Pod("system", "10.231.1.7", {"app": "agent"}, {"http": 8081})
PODS = [SANDBOX, OTHER, AGENT]


def passes(policies, source, target, port=80, protocol="tcp"):
    """Return whether the rules let the first packet of a connection pass."""
    made = chains(policies, PODS, NAMESPACES)
    packet = {"-s": source, "-d": target, "-p": protocol, "--dport": port}
    return _walk(made, MAIN, packet, {"refused": False})


def _walk(made, name, packet, state):
    """Follow a chain. Return False if the packet is dropped."""
    for rule in made[name]:
        words = shlex.split(rule)
        action = words.index("-j")
        if not _matches(words[:action], packet, state):
            continue
        target = words[action + 1]
        if target == "MARK":
            state["refused"] = not words[action + 3].startswith("0x0/")
        elif target == "RETURN":
            return True
        elif target == "DROP" or not _walk(made, target, packet, state):
            return False
    return True


def _matches(words, packet, state):
    pairs = dict(zip(words[::2], words[1::2], strict=True))
    if pairs.pop("-m", "") == "conntrack":
        return False  # The rule matches established connections, not the first packet.
    if "--mark" in pairs and not state["refused"]:
        return False
    for option in ("-s", "-d"):
        if option in pairs and ipaddress.ip_address(packet[option]) not in ipaddress.ip_network(pairs[option]):
            return False
    if pairs.get("-p", packet["-p"]) != packet["-p"]:
        return False
    first, _, last = pairs.get("--dport", str(packet["--dport"])).partition(":")
    return int(first) <= packet["--dport"] <= int(last or first)


def policy(selector, *, namespace="team", **spec):
    """Return a NetworkPolicy."""
    return {"metadata": {"namespace": namespace}, "spec": {"podSelector": {"matchLabels": selector}, **spec}}


CLOSED = policy({"app": "sandbox"}, policyTypes=["Ingress", "Egress"])


def test_without_policies_all_connections_are_allowed():
    assert passes([], SANDBOX.address, OTHER.address)
    assert passes([], SANDBOX.address, "1.1.1.1")


def test_an_isolated_pod_without_rules_accepts_only_the_node():
    for target in (OTHER.address, AGENT.address, machine.NODE, machine.HOST, "1.1.1.1"):
        assert not passes([CLOSED], SANDBOX.address, target)
        assert not passes([CLOSED], SANDBOX.address, target, 53, "udp")
    assert not passes([CLOSED], OTHER.address, SANDBOX.address)
    assert passes([CLOSED], machine.HOST, SANDBOX.address)
    assert passes([CLOSED], OTHER.address, AGENT.address)


def test_a_policy_applies_only_to_its_namespace():
    assert passes([policy({}, namespace="system", policyTypes=["Egress"])], SANDBOX.address, OTHER.address)


def test_a_policy_without_types_isolates_what_it_has_rules_for():
    assert not passes([policy({"app": "sandbox"})], OTHER.address, SANDBOX.address)
    assert passes([policy({"app": "sandbox"})], SANDBOX.address, OTHER.address)
    with_egress = policy({"app": "sandbox"}, egress=[{"ports": [{"port": 443}]}])
    assert passes([with_egress], SANDBOX.address, OTHER.address, 443)
    assert not passes([with_egress], SANDBOX.address, OTHER.address, 80)


@pytest.mark.parametrize(
    ("peer", "reached"),
    [
        ({"podSelector": {}}, [OTHER]),
        ({"podSelector": {"matchLabels": {"app": "agent"}}}, []),
        ({"namespaceSelector": {}}, [OTHER, AGENT]),
        ({"namespaceSelector": {"matchLabels": {"kind": "ours"}}}, [AGENT]),
        ({"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "agent"}}}, [AGENT]),
        ({"ipBlock": {"cidr": "10.231.1.0/24", "except": ["10.231.1.7/32"]}}, [OTHER]),
        ({"ipBlock": {"cidr": "fd00::/8"}}, []),
    ],
)
def test_peers(peer, reached):
    rule = policy({"app": "sandbox"}, policyTypes=["Egress"], egress=[{"to": [peer], "ports": [{"port": 80}]}])
    assert [pod for pod in (OTHER, AGENT) if passes([rule], SANDBOX.address, pod.address)] == reached
    assert not passes([rule], SANDBOX.address, "1.1.1.1")


def test_exceptions_of_one_block_do_not_close_another():
    blocks = [{"ipBlock": {"cidr": "0.0.0.0/0", "except": ["10.231.1.7/32"]}}, {"ipBlock": {"cidr": "10.231.1.7/32"}}]
    rule = policy({"app": "sandbox"}, policyTypes=["Egress"], egress=[{"to": blocks}])
    assert passes([rule], SANDBOX.address, AGENT.address)


@pytest.mark.parametrize(
    ("port", "passing"),
    [
        ({"port": 80}, {("tcp", 80)}),
        ({"port": 53, "protocol": "UDP"}, {("udp", 53)}),
        ({"port": 8000, "endPort": 8081}, {("tcp", 8000), ("tcp", 8081)}),
        ({"protocol": "UDP"}, {("udp", 53)}),
        ({"port": "http"}, {("tcp", 8081)}),
        ({"port": "unknown"}, set()),
    ],
)
def test_ports(port, passing):
    rule = policy({"app": "agent"}, namespace="system", policyTypes=["Ingress"], ingress=[{"ports": [port]}])
    tried = {("tcp", 80), ("tcp", 8000), ("tcp", 8081), ("udp", 53)}
    assert {each for each in tried if passes([rule], OTHER.address, AGENT.address, each[1], each[0])} == passing


def test_a_named_port_of_a_peer_is_that_peers():
    peer = {"namespaceSelector": {}}
    rule = policy({"app": "sandbox"}, policyTypes=["Egress"], egress=[{"to": [peer], "ports": [{"port": "http"}]}])
    assert passes([rule], SANDBOX.address, OTHER.address, 8000)
    assert passes([rule], SANDBOX.address, AGENT.address, 8081)
    assert not passes([rule], SANDBOX.address, AGENT.address, 8000)


def test_policies_are_additive():
    open_one = policy({"app": "sandbox"}, policyTypes=["Egress"], egress=[{"to": [{"podSelector": {}}]}])
    for order in ([CLOSED, open_one], [open_one, CLOSED]):
        assert passes(order, SANDBOX.address, OTHER.address)
        assert not passes(order, SANDBOX.address, AGENT.address)


def test_egress_and_ingress_policies_both_apply():
    way_out = policy({"app": "sandbox"}, policyTypes=["Egress"], egress=[{}])
    closed = policy({"app": "other"}, policyTypes=["Ingress"])
    assert passes([way_out], SANDBOX.address, OTHER.address)
    assert not passes([way_out, closed], SANDBOX.address, OTHER.address)


@pytest.mark.parametrize(
    ("expression", "chosen"),
    [
        ({"key": "app", "operator": "In", "values": ["sandbox"]}, True),
        ({"key": "app", "operator": "NotIn", "values": ["sandbox"]}, False),
        ({"key": "app", "operator": "Exists"}, True),
        ({"key": "dgym.dev/driver", "operator": "DoesNotExist"}, True),
    ],
)
def test_expressions(expression, chosen):
    assert selects({"matchExpressions": [expression]}, SANDBOX.labels) is chosen


def test_only_running_pods_with_their_own_network_are_isolated():
    def item(name, *, address="10.231.1.9", phase="Running", **spec):
        ports = [{"name": "http", "containerPort": 80}]
        spec = {"containers": [{"ports": ports}], **spec}
        return {
            "metadata": {"namespace": "team", "name": name},
            "spec": spec,
            "status": {"podIP": address, "phase": phase},
        }

    items = [item("a"), item("b", phase="Succeeded"), item("c", address=""), item("d", hostNetwork=True)]
    assert isolated_pods(items) == [Pod("team", "10.231.1.9", {}, {"http": 80})]


def test_the_rules_replace_existing_rules():
    text = restore_text({MAIN: ["-j RETURN"]}, [MAIN, "DGYM-E-10.231.1.5"])
    assert text.splitlines() == [
        "*mangle",
        ":DGYM-POLICY - [0:0]",
        ":DGYM-E-10.231.1.5 - [0:0]",
        "-A DGYM-POLICY -j RETURN",
        "-X DGYM-E-10.231.1.5",
        "COMMIT",
    ]
