"""Tests of requests to a real API server."""

import shutil
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

import pytest

from dgym.kube import (
    CONFIG_MAPS,
    NAMESPACES,
    PODS,
    AccessError,
    AlreadyExists,
    BadRequest,
    Client,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    Resource,
    SystemClock,
    Unauthorized,
    load_access,
)
from tests.support.apiserver import ApiServer

QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota")


def config_map(name: str, **data: str) -> dict[str, Any]:
    return CONFIG_MAPS.manifest(metadata={"name": name}, data=data)


def pod(name: str) -> dict[str, Any]:
    return PODS.manifest(metadata={"name": name}, spec={"containers": [{"name": "c", "image": "i"}]})


async def test_the_life_of_an_object(
    client: Client, api_namespace: str, thing: Any, requests: list[tuple[str, str, int]]
) -> None:
    where = {"namespace": api_namespace, "decode": thing}
    made = await client.create(CONFIG_MAPS, config_map("a", x="1"), **where)
    assert (made.metadata.namespace, made.metadata.name, made.data) == (api_namespace, "a", {"x": "1"})
    merged = await client.patch(CONFIG_MAPS, "a", {"data": {"y": "2"}}, **where)
    assert merged.data == {"x": "1", "y": "2"}
    apply = {"namespace": api_namespace, "field_manager": "test", "decode": bytes}
    assert not (await client.apply(CONFIG_MAPS, "a", config_map("a", x="3"), **apply))[1]
    assert (await client.get(CONFIG_MAPS, "a", **where)).data == {"x": "3", "y": "2"}
    assert (await client.apply(CONFIG_MAPS, "b", config_map("b"), dry_run=True, **apply))[1]
    with pytest.raises(NotFound):
        await client.get(CONFIG_MAPS, "b", **where)
    assert await client.delete(CONFIG_MAPS, "a", uid=made.metadata.uid, **where) is None
    with pytest.raises(NotFound):
        await client.delete(CONFIG_MAPS, "a", **where)
    assert [verb for verb, _, _ in requests] == [
        "create", "patch", "patch", "get", "patch", "get", "delete", "delete"
    ]  # fmt: skip
    assert [status for _, _, status in requests] == [201, 200, 200, 200, 201, 404, 200, 404]


async def test_an_existing_name_and_a_missing_namespace(client: Client, api_namespace: str) -> None:
    await client.create(CONFIG_MAPS, config_map("a"), namespace=api_namespace, decode=bytes)
    with pytest.raises(AlreadyExists):
        await client.create(CONFIG_MAPS, config_map("a"), namespace=api_namespace, decode=bytes)
    with pytest.raises(NotFound):
        await client.create(CONFIG_MAPS, config_map("a"), namespace="nowhere", decode=bytes)


async def test_the_second_write_of_the_same_version_raises_conflict(
    client: Client, api_namespace: str, thing: Any
) -> None:
    where = {"namespace": api_namespace, "decode": thing}
    read = await client.create(CONFIG_MAPS, config_map("a", writer="none"), **where)
    version = {"resourceVersion": read.metadata.resource_version}
    await client.patch(CONFIG_MAPS, "a", {"metadata": version, "data": {"writer": "first"}}, **where)
    with pytest.raises(Conflict):
        await client.patch(CONFIG_MAPS, "a", {"metadata": version, "data": {"writer": "second"}}, **where)
    assert (await client.get(CONFIG_MAPS, "a", **where)).data == {"writer": "first"}


async def test_deleting_with_another_uid_deletes_nothing(client: Client, api_namespace: str, thing: Any) -> None:
    where = {"namespace": api_namespace, "decode": thing}
    made = await client.create(CONFIG_MAPS, config_map("a"), **where)
    with pytest.raises(Conflict):
        await client.delete(CONFIG_MAPS, "a", uid="00000000-0000-0000-0000-000000000000", **where)
    assert await client.get(CONFIG_MAPS, "a", **where) == made


async def test_delete_returns_an_object_whose_finalizers_delay_the_deletion(
    client: Client, api_namespace: str, thing: Any
) -> None:
    body = config_map("a")
    body["metadata"]["finalizers"] = ["dgym.dev/test"]
    await client.create(CONFIG_MAPS, body, namespace=api_namespace, decode=bytes)
    left = await client.delete(CONFIG_MAPS, "a", namespace=api_namespace, decode=thing)
    assert left is not None
    assert left.metadata.deletion_timestamp


async def test_a_schema_violation_reports_the_fields(client: Client, api_namespace: str) -> None:
    with pytest.raises(Invalid) as caught:
        await client.create(PODS, PODS.manifest(metadata={"name": "a"}), namespace=api_namespace, decode=bytes)
    assert [cause.field for cause in caught.value.causes] == ["spec.containers"]


async def test_a_misspelt_field_is_refused_and_not_dropped(client: Client, api_namespace: str) -> None:
    manifest = pod("a")
    manifest["spec"]["enableServiceLink"] = False
    with pytest.raises(BadRequest, match=r"spec\.enableServiceLink"):
        await client.create(PODS, manifest, namespace=api_namespace, decode=bytes)


async def test_a_quota_that_is_used_up(client: Client, api_namespace: str) -> None:
    quota = QUOTAS.manifest(metadata={"name": "none"}, spec={"hard": {"pods": "0"}})
    await client.create(QUOTAS, quota, namespace=api_namespace, decode=bytes)
    status = {"status": {"hard": {"pods": "0"}, "used": {"pods": "0"}}}
    await client.patch(QUOTAS, "none", status, namespace=api_namespace, decode=bytes, subresource="status")
    with pytest.raises(Forbidden) as caught:
        await client.create(PODS, pod("a"), namespace=api_namespace, decode=bytes)
    assert caught.value.quota


async def test_a_pod_that_pod_security_does_not_admit(client: Client, api_namespace: str) -> None:
    labels = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    await client.patch(NAMESPACES, api_namespace, labels, decode=bytes)
    with pytest.raises(Forbidden) as caught:
        await client.create(PODS, pod("a"), namespace=api_namespace, decode=bytes)
    assert "violates PodSecurity" in caught.value.message
    assert not caught.value.quota


async def test_a_namespace_that_is_being_deleted(client: Client, api_namespace: str) -> None:
    await client.delete(NAMESPACES, api_namespace, decode=bytes)
    with pytest.raises(Forbidden) as caught:
        await client.create(CONFIG_MAPS, config_map("a"), namespace=api_namespace, decode=bytes)
    assert caught.value.namespace_terminating


async def test_all_pages_are_of_one_moment(
    client: Client, api_server: ApiServer, api_namespace: str, thing: Any
) -> None:
    for number in range(12):
        await client.create(CONFIG_MAPS, config_map(f"n{number:02}"), namespace=api_namespace, decode=bytes)
    pages = []
    async for page in client.pages(CONFIG_MAPS, namespace=api_namespace, decode=thing, limit=5):
        pages.append(page)
        await client.create(CONFIG_MAPS, config_map(f"later{len(pages)}"), namespace=api_namespace, decode=bytes)
    assert [len(page.items) for page in pages] == [5, 5, 2]
    assert len({page.meta.resource_version for page in pages}) == 1
    assert len(await client.list(CONFIG_MAPS, namespace=api_namespace, decode=thing)) == 15


async def test_selectors_choose(client: Client, api_namespace: str, thing: Any) -> None:
    for name in ("a", "b"):
        body = config_map(name)
        body["metadata"]["labels"] = {"app.kubernetes.io/name": name}
        await client.create(CONFIG_MAPS, body, namespace=api_namespace, decode=bytes)
    where = {"namespace": api_namespace, "decode": thing}
    found = await client.list(CONFIG_MAPS, label_selector="app.kubernetes.io/name=b,app.kubernetes.io/name!=x", **where)
    assert [item.metadata.name for item in found] == ["b"]
    found = await client.list(CONFIG_MAPS, field_selector="metadata.name=a", **where)
    assert [item.metadata.name for item in found] == ["a"]


async def test_in_a_pod_the_service_account_is_used(
    api_server: ApiServer, api_namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = urlsplit(api_server.url)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", str(url.hostname))
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(url.port))
    shutil.copy(api_server.ca_file, tmp_path / "ca.crt")
    (tmp_path / "token").write_text("not this one")
    (tmp_path / "namespace").write_text(api_namespace)
    access = await load_access(service_account=tmp_path)
    async with Client(access, clock=SystemClock(), random=Random(1)) as client:
        assert client.namespace == api_namespace
        with pytest.raises(Unauthorized):
            await client.get(NAMESPACES, api_namespace, decode=bytes)
        # The kubelet replaces the token. The client reads it and repeats the refused request.
        (tmp_path / "token").write_text(api_server.token)
        await client.get(NAMESPACES, api_namespace, decode=bytes)
    # In a pod, the client does not import the library that reads kubeconfigs.
    code = (
        "import asyncio, pathlib, sys; from dgym.kube import load_access;"
        " asyncio.run(load_access(service_account=pathlib.Path(sys.argv[1]))); sys.exit('kubernetes' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == 0


async def test_a_pod_without_the_address_of_the_server_raises_access_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    (tmp_path / "token").write_text("x")
    with pytest.raises(AccessError, match="service account"):
        await load_access(service_account=tmp_path)
