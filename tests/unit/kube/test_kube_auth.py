import json
import ssl
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dgym.kube import AccessError, load_access
from dgym.kube._transport import RefreshedCredentials, TokenFile
from tests.fakes.kube_clocks import ManualClock

WriteConfig = Callable[..., Path]


@pytest.fixture
def write_config(tmp_path: Path) -> WriteConfig:
    def write(user: dict[str, Any], cluster: dict[str, Any] | None = None) -> Path:
        path = tmp_path / "kubeconfig"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "one",
            "contexts": [
                {"name": "one", "context": {"cluster": "c", "user": "u", "namespace": "mine"}},
                {"name": "two", "context": {"cluster": "c", "user": "nobody"}},
            ],
            "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1/", **(cluster or {})}}],
            "users": [{"name": "u", "user": user}, {"name": "nobody", "user": {}}],
        }
        path.write_text(json.dumps(config))
        return path

    return write


async def test_a_kubeconfig_with_a_token(write_config: WriteConfig) -> None:
    access = await load_access(write_config({"token": "secret"}))
    assert (access.server, access.namespace, access.tls) == ("http://127.0.0.1:1", "mine", None)
    assert await access.credentials.header() == "Bearer secret"


async def test_another_context(write_config: WriteConfig) -> None:
    access = await load_access(write_config({"token": "secret"}), "two")
    assert access.namespace == "default"
    assert await access.credentials.header() is None


async def test_a_name_and_password(write_config: WriteConfig) -> None:
    access = await load_access(write_config({"username": "a", "password": "b"}))
    assert await access.credentials.header() == "Basic YTpi"


async def test_tls_settings_follow_the_kubeconfig(write_config: WriteConfig, tmp_path: Path) -> None:
    cluster = {"server": "https://127.0.0.1:1", "insecure-skip-tls-verify": True, "tls-server-name": "api"}
    access = await load_access(write_config({"token": "x"}, cluster))
    assert access.tls is not None
    assert access.tls.verify_mode is ssl.CERT_NONE
    assert access.server_hostname == "api"
    cluster["insecure-skip-tls-verify"] = False
    access = await load_access(write_config({"token": "x"}, cluster))
    assert access.tls is not None
    assert access.tls.verify_mode is ssl.CERT_REQUIRED
    assert access.tls.check_hostname


async def test_a_plugin_supplies_the_token(write_config: WriteConfig, tmp_path: Path) -> None:
    answer = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "made"}}
    plugin = tmp_path / "plugin"
    plugin.write_text(f"#!{sys.executable}\nprint({json.dumps(answer)!r})\n")
    plugin.chmod(0o755)
    user = {
        "exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin), "interactiveMode": "Never"}
    }
    access = await load_access(write_config(user))
    assert await access.credentials.header() == "Bearer made"
    plugin.write_text(plugin.read_text().replace("made", "newer"))
    access.credentials.expire()
    assert await access.credentials.header() == "Bearer newer"


@pytest.mark.parametrize("text", ["", "[]", "{", "contexts: []", "current-context: x\ncontexts: []\nclusters: []"])
async def test_an_invalid_kubeconfig_is_reported_with_its_path(tmp_path: Path, text: str) -> None:
    path = tmp_path / "broken"
    path.write_text(text)
    with pytest.raises(AccessError, match="broken"):
        await load_access(path)


async def test_an_absent_kubeconfig_and_an_absent_context_are_named(tmp_path: Path, write_config: WriteConfig) -> None:
    with pytest.raises(AccessError, match="absent"):
        await load_access(tmp_path / "absent")
    with pytest.raises(AccessError, match="nowhere"):
        await load_access(write_config({}), "nowhere")


# Token files


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("first\n")
    return path


def rotate(path: Path, text: str) -> None:
    """Replace the token file by renaming another file, as the kubelet does."""
    successor = path.with_name("successor")
    successor.write_text(text)
    successor.replace(path)


async def test_a_rotated_token_is_read_within_seconds(token: Path, clock: ManualClock) -> None:
    credentials = TokenFile(token, clock.monotonic)
    assert await credentials.header() == "Bearer first"
    rotate(token, "second\n")
    assert await credentials.header() == "Bearer first"
    clock.jump(10)
    assert await credentials.header() == "Bearer second"


async def test_a_token_that_was_refused_is_read_again_at_once(token: Path, clock: ManualClock) -> None:
    credentials = TokenFile(token, clock.monotonic)
    await credentials.header()
    rotate(token, "second")
    credentials.expire()
    assert await credentials.header() == "Bearer second"


async def test_the_last_token_is_used_while_the_file_cannot_be_read(token: Path, clock: ManualClock) -> None:
    credentials = TokenFile(token, clock.monotonic)
    await credentials.header()
    token.unlink()
    clock.jump(10)
    assert await credentials.header() == "Bearer first"
    with pytest.raises(AccessError, match="token"):
        await TokenFile(token, clock.monotonic).header()


async def test_a_kubeconfig_may_name_a_token_file(write_config: WriteConfig, token: Path) -> None:
    access = await load_access(write_config({"tokenFile": token.name}))
    assert await access.credentials.header() == "Bearer first"
    rotate(token, "second")
    access.credentials.expire()
    assert await access.credentials.header() == "Bearer second"


async def test_fetched_credentials_are_fetched_when_old_or_refused(clock: ManualClock) -> None:
    made = iter(["two", "three"])

    async def fetch() -> str:
        return next(made)

    credentials = RefreshedCredentials("one", fetch, clock.monotonic)
    assert await credentials.header() == "one"
    clock.jump(100)
    assert [await credentials.header(), await credentials.header()] == ["two", "two"]
    credentials.expire()
    assert await credentials.header() == "three"
