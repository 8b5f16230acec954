"""Tests of the chart's NetworkPolicies: the ports that the operator and the agent pods can reach."""

import pytest


def test_agents_reach_the_ports_that_addresses_name(render):
    assert _ports(_outside(render("production"))) == [80, 443, 8443, 8000, 8001, 9000, 4318, 3128]


@pytest.mark.parametrize(
    ("proxy", "ports"),
    [
        ("http://proxy.example:3128", [80, 443, 3128]),
        ("http://user:1234@proxy.example:3128/", [80, 443, 3128]),
        ("http://user:1234@proxy.example", [80, 443]),
        ("http://[fd00::1]:3128", [80, 443, 3128]),
        ("http://proxy.example", [80, 443]),
    ],
)
def test_the_port_of_a_proxy_is_not_read_from_its_password(render, proxy, ports):
    assert _ports(_outside(render("default", f"proxy.https={proxy}"))) == ports


def test_a_missing_port_adds_no_egress_rule(render):
    egress = _egress(render("namespaced"), "agents")
    assert len(egress) == 2
    assert {port for rule in egress for port in _ports(rule)} == {53, 8080}


def test_agents_reach_pods_where_no_address_block_names_them(render):
    assert {"namespaceSelector": {}} in _outside(render("default"))["to"]


def test_the_operator_reaches_the_usual_ports_of_api_servers(render):
    (rule,) = (rule for rule in _egress(render("default"), "operator") if 6443 in _ports(rule))
    assert _ports(rule) == [443, 6443, 8443, 16443]


@pytest.mark.parametrize(
    ("endpoint", "port"),
    [
        ("http://collector.monitoring:4318", 4318),
        ("https://traces.example/v1:80", 443),
        ("http://user:123@traces.example", 80),
    ],
)
def test_the_operator_reaches_the_collector_of_traces(render, endpoint, port):
    release = render("default", f"tracing.endpoint={endpoint}")
    assert [port] in [_ports(rule) for rule in _egress(release, "operator")]
    assert port in _ports(_outside(release))


def _outside(release):
    """The egress rule of the agent pods for models, sources and stores."""
    (rule,) = (rule for rule in _egress(release, "agents") if any("ipBlock" in to for to in rule.get("to", ())))
    return rule


def _egress(release, component):
    return release.one("NetworkPolicy", f"dgym-{component}")["spec"]["egress"]


def _ports(rule):
    return [port["port"] for port in rule["ports"]]
