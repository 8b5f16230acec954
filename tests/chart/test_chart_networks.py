"""Whom the NetworkPolicies of the chart let operator and agents reach."""

import pytest


def test_agents_reach_the_ports_that_addresses_name(render):
    assert _ports(_outside(render("production"))) == [80, 443, 8443, 8000, 8001, 9000, 3128]


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
def test_the_port_of_a_proxy_is_no_part_of_its_password(render, proxy, ports):
    assert _ports(_outside(render("default", f"proxy.https={proxy}"))) == ports


def _outside(release):
    """The agents' rule for models, sources and stores."""
    (rule,) = (rule for rule in _egress(release, "agents") if any("ipBlock" in to for to in rule.get("to", ())))
    return rule


def _egress(release, component):
    return release.one("NetworkPolicy", f"dgym-{component}")["spec"]["egress"]


def _ports(rule):
    return [port["port"] for port in rule["ports"]]
