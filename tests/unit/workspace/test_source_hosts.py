"""Tests of the hosts from which sources may be downloaded."""

import pytest

from dgym.errors import ManifestError, SourceFailed
from dgym.workspace.sources import SourceHosts
from dgym.workspace.sources._fetch import ANY_HOST, check_public

pytestmark = pytest.mark.attack("internal-sources")


@pytest.mark.parametrize(
    ("listed", "url", "may_be_private"),
    [
        ("example.org", "https://example.org/x", True),
        ("Example.org.", "https://EXAMPLE.org/x", True),
        ("example.org:8443", "https://example.org:8443/x", True),
        ("example.org:443", "https://user:word@example.org/x", True),
        ("a.org, b.org", "ssh://git@b.org/x", True),
        ("*.example.org", "https://code.example.org/x", False),
        ("*", "https://anything/x", False),
        ("*, anything", "https://anything/x", True),
        ("[::1]:80", "http://[::1]/x", True),
    ],
)
def test_listed_hosts(listed, url, may_be_private):
    assert SourceHosts.parse(listed).check(url, "source") is may_be_private


@pytest.mark.parametrize(
    ("listed", "url"),
    [
        ("", "https://example.org/x"),
        ("example.org", "https://example.org.evil.org/x"),
        ("example.org", "https://sub.example.org/x"),
        ("*.example.org", "https://example.org/x"),
        ("*.example.org", "https://evilexample.org/x"),
        ("example.org:8443", "https://example.org/x"),
        ("example.org", "https://example.org@evil.org/x"),
        ("example.org", "https:///x"),
        ("example.org", "https://example.org:99999/x"),
    ],
)
def test_other_hosts(listed, url):
    with pytest.raises(SourceFailed, match=r"^source: "):
        SourceHosts.parse(listed).check(url, "source")


@pytest.mark.parametrize("host", ["a..b", "a" * 64])
def test_a_host_that_cannot_have_an_address(host):
    with pytest.raises(SourceFailed, match="is not the name of a host"):
        SourceHosts.parse("*").resolve(f"https://{host}/x", "source")


def test_a_pattern_does_not_lead_into_the_cluster():
    with pytest.raises(SourceFailed, match="private address"):
        SourceHosts.parse("*").resolve("http://127.0.0.1/x", "source")
    assert SourceHosts.parse("127.0.0.1").resolve("http://127.0.0.1/x", "source") is None
    assert ANY_HOST.resolve("http://127.0.0.1/x", "source") is None


@pytest.mark.attack("internal-sources")
@pytest.mark.parametrize(
    "address",
    [
        *["10.0.0.1", "127.0.0.1", "169.254.169.254", "::1", "fe80::1%eth0", "::ffff:10.1.2.3", "0.0.0.0", "224.0.0.1"],
        # NAT64, its local form, 6to4, Teredo's client, compatible, translated, site-local, unique local
        *["64:ff9b::10.0.0.1", "64:ff9b:1::8.8.8.8", "2002:a00:1::1", "2001:0:4136:e378:8000:63bf:f5ff:fffe"],
        *["::10.0.0.1", "::ffff:0:169.254.169.254", "fec0::1", "fd00::1", "64:ff9b::169.254.169.254"],
    ],
)
def test_private_addresses(address):
    with pytest.raises(SourceFailed, match="private"):
        check_public(address, "source")


def test_public_addresses():
    check_public("93.184.215.14", "source")
    check_public("2606:2800:21f:cb07:6820:80da:af6b:8b2c", "source")
    check_public("64:ff9b::93.184.215.14", "source")


@pytest.mark.parametrize("entry", ["http://x", "a b", "*x.org", "host:port", "-x"])
def test_invalid_entries(entry):
    with pytest.raises(ManifestError, match="is not a host"):
        SourceHosts.parse(entry)
