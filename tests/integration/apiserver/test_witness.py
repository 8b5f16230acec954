"""Tests of the record of a cluster's objects during tests, and of the search for leaked secrets in it."""

import base64
import os
from pathlib import Path

import pytest

from tests.e2e.cluster.support import until
from tests.e2e.cluster.witness import SECRETS, seen, witnessed
from tests.security.leaks import Secrets, leaks
from tests.support.apiserver import ApiServer
from tests.support.required import built

PASSWORD = "correct horse battery"


@pytest.fixture
def kubectl(api_server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put kubectl for this server on PATH."""
    program = built("kubectl")
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("KUBECONFIG", str(api_server.kubeconfig))


@pytest.mark.usefixtures("kubectl")
def test_a_secret_in_an_object_that_is_gone_is_found(
    api_server: ApiServer, api_namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = f"/api/v1/namespaces/{api_namespace}"
    data = {"value": base64.b64encode(PASSWORD.encode()).decode()}
    monkeypatch.setenv("DGYM_E2E_WITNESS", "")
    with witnessed():
        api_server.request("POST", f"{core}/secrets", {"metadata": {"name": "password"}, "data": data})
        for name, value in (("harmless", "nothing"), ("leaking", f"the word is {PASSWORD}")):
            api_server.request("POST", f"{core}/configmaps", {"metadata": {"name": name}, "data": {"text": value}})

        def recorded(kind: str, name: str) -> bool:
            places = ((each["metadata"]["namespace"], each["metadata"]["name"]) for each in seen(kind))
            return (api_namespace, name) in places

        until(lambda: recorded("configmaps", "leaking"), what="the record of the object")
        until(lambda: recorded(SECRETS, "password"), what="the record of the Secret")
        api_server.request("DELETE", f"{core}/configmaps/leaking")
        secrets = Secrets()
        for secret in seen(SECRETS):
            secrets.add(secret)
        found = leaks(secrets, seen("configmaps"))
        directory = Path(os.environ["DGYM_E2E_WITNESS"])
        assert {file.stat().st_mode & 0o77 for file in directory.iterdir()} == {0}
    assert f"ConfigMap {api_namespace}/leaking: {api_namespace}/password value" in found
    assert not any("harmless" in place for place in found)
    assert not directory.exists()
