"""Tests of episodes driven from outside the cluster: a real API server forwards requests to a real sidecar process."""

import asyncio
import base64
import os
import runpy
import shutil
import socket
import sys
from pathlib import Path

import pytest

import dgym as library
from dgym.api import driver_secret_name
from dgym.env import RemoteEpisode, RetryLimits
from dgym.env._cluster import find_sidecar
from dgym.errors import AccessRefused, ArgumentError, ConflictError, EpisodeOver, SandboxStartFailed
from dgym.wire.http import Role
from tests.fakes.pods import REPAIR, pods_in

ROOT = Path(__file__).parents[4]
MERGE = "application/merge-patch+json"
TASK = {"source": {"files": [{"path": "calc.py", "content": ""}]}, "entrypoint": "python check.py"}
SUBMIT = {"tool": "submit", "arguments": {}}


def own_address():
    """An address of this machine that is not a loopback address, because the API server's proxy refuses those."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        return probe.getsockname()[0]


class Driven:
    """An Episode without agent, its pod and the Secret of its driver, as the operator and the kubelet leave them."""

    def __init__(self, server, namespace):
        self.server = server
        self.namespace = namespace
        self.name = f"{namespace.name}/fix"
        self.uid = ""

    def create(self, pod):
        self.uid = self.namespace.create("Episode", "fix", {"task": TASK})["metadata"]["uid"]
        self.namespace.status("episode", "fix", {"state": "Running", "attempt": 1, "podName": "fix-1"})
        host, port = pod.url.removeprefix("http://").split(":")
        path = f"/api/v1/namespaces/{self.namespace.name}/pods"
        spec = {"containers": [{"name": "sidecar", "image": "sidecar"}], "automountServiceAccountToken": False}
        self.server.request("POST", path, {"metadata": {"name": "fix-1"}, "spec": {**spec, "nodeName": "node"}})
        status = {"status": {"phase": "Running", "podIP": host, "podIPs": [{"ip": host}]}}
        self.server.request("PATCH", f"{path}/fix-1/status", status, content_type=MERGE)
        return f"http://{host}:{port}"

    def give_secret(self, url, token):
        data = {"url": url, "token": token}
        encoded = {name: base64.b64encode(value.encode()).decode() for name, value in data.items()}
        name = driver_secret_name("fix-1", self.uid)
        path = f"/api/v1/namespaces/{self.namespace.name}/secrets"
        self.server.request("POST", path, {"metadata": {"name": name}, "data": encoded})

    def finish(self, reason="Resolved"):
        self.namespace.status("episode", "fix", {"state": "Finished", "reason": reason})


@pytest.fixture
def driven(kinds, namespace, monkeypatch):
    """The Episode before its pod exists."""
    monkeypatch.setenv("KUBECONFIG", str(kinds.kubeconfig))
    # A controller creates the default account of every namespace. It does not run here.
    path = f"/api/v1/namespaces/{namespace.name}/serviceaccounts"
    kinds.request("POST", path, {"metadata": {"name": "default"}})
    return Driven(kinds, namespace)


@pytest.fixture
async def pod(tmp_path):
    """A prepared pod. The API server can reach its sidecar."""
    async with pods_in(tmp_path) as make:
        made = make(host=own_address())
        made.start_runners()
        made.start_process()
        await made.listening()
        await made.ready()
        made.operate()
        await made.prepare()
        yield made


@pytest.fixture
def ready(driven, pod):
    """An Episode with a pod and a Secret, which can be driven."""
    url = driven.create(pod)
    driven.give_secret(url, pod.tokens[Role.DRIVE])
    return driven


async def test_an_episode_is_driven_through_the_api_server(ready):
    async with library.AsyncRepoEnv.connect(ready.name) as env:
        observation, info = await env.reset()
        assert "pdb" in {tool["name"] for tool in info["tools"]}
        observation, *_ = await env.step("view calc.py")
        assert "return a - b" in observation["text"]
        await env.step(REPAIR)
        *_, terminated, _, info = await env.step(SUBMIT)
        assert (terminated, info["resolved"], info["steps"]) == (True, True, 3)


async def test_the_example_program_drives_an_episode_and_matches_the_page(ready):
    path = ROOT / "examples" / "driving" / "drive.py"
    example = runpy.run_path(str(path))
    assert await example["drive"](ready.name) == (True, 4)
    manifest = library.load(path.with_name("episodes.yaml"))
    assert [each.metadata.name for each in manifest if each.kind == "Episode"] == example["EPISODES"]
    shown = (ROOT / "docs" / "driving-from-outside.md").read_text().partition("```text\n")[2].partition("```")[0]
    assert shown.startswith("async def drive(")
    assert shown in path.read_text()


def test_the_blocking_environment_connects_by_name_too(ready):
    with library.connect(ready.name) as env:
        env.reset()
        assert "return a - b" in env.step("view calc.py")[0]["text"]


async def test_two_drivers_resume_an_episode_without_repeating_a_step(ready):
    async with library.AsyncRepoEnv.connect(ready.name) as first, library.AsyncRepoEnv.connect(ready.name) as second:
        await first.reset()
        await first.step({"tool": "bash", "arguments": {"command": "echo 1 >> count"}})
        observation, info = await second.reset()
        assert info["steps"] == 1
        await first.step({"tool": "bash", "arguments": {"command": "echo 2 >> count"}})
        with pytest.raises(ConflictError):
            await second.step({"tool": "bash", "arguments": {"command": "echo 3 >> count"}})
        observation, *_ = await first.step({"tool": "bash", "arguments": {"command": "cat count"}})
        assert observation["text"].split() == ["1", "2"]


async def test_episodes_that_cannot_be_driven_are_refused_immediately(driven):
    def connect(name):
        return library.AsyncRepoEnv.connect(name, wait_seconds=1.0)

    with pytest.raises(ArgumentError, match=r'episodes\.dgym\.dev "none" not found'):
        await connect(f"{driven.namespace.name}/none").reset()
    with pytest.raises(ArgumentError, match="NAMESPACE/NAME"):
        await connect("a/b/c").reset()
    with pytest.raises(ArgumentError, match="requires a token"):
        connect("http://10.0.0.7:8080")
    driven.namespace.create("Episode", "played", {"task": TASK, "agent": {"name": "solution"}})
    with pytest.raises(ArgumentError, match=r"has an agent \(solution\)"):
        await connect(f"{driven.namespace.name}/played").reset()
    driven.namespace.create("Episode", "fix", {"task": TASK})
    driven.namespace.status("episode", "fix", {"state": "Waiting", "reason": "WaitingForSlot", "message": "no agent"})
    with pytest.raises(SandboxStartFailed, match="WaitingForSlot: no agent"):
        await connect(driven.name).reset()
    driven.finish("Cancelled")
    with pytest.raises(EpisodeOver, match=r"has finished \(Cancelled\)"):
        await connect(driven.name).reset()


async def test_the_end_of_the_episode_ends_a_driver_whose_pod_is_gone(ready):
    retry_limits = RetryLimits(silence_seconds=60, first_pause_seconds=0.1, longest_pause_seconds=0.5)
    async with library.AsyncRepoEnv.connect(ready.name, retry_limits=retry_limits) as env:
        await env.reset()
        path = f"/api/v1/namespaces/{ready.namespace.name}/pods/fix-1?gracePeriodSeconds=0"
        ready.server.request("DELETE", path)
        ready.finish("DeadlineExceeded")
        with pytest.raises(EpisodeOver, match="DeadlineExceeded"):
            await env.step("view calc.py")


async def test_an_outcome_whose_pod_is_gone_is_read_from_the_episode(ready):
    """The agent pod that stores the outcome releases the pod, perhaps before a slow driver requests the outcome."""
    found = await find_sidecar(ready.name, wait_seconds=5.0)
    retry_limits = RetryLimits(silence_seconds=60, first_pause_seconds=0.1, longest_pause_seconds=0.5)
    driver = RemoteEpisode(found.route, found.token, reset_key=found.reset_key, retry_limits=retry_limits)
    try:
        await driver.reset()
        path = f"/api/v1/namespaces/{ready.namespace.name}/pods/fix-1?gracePeriodSeconds=0"
        ready.server.request("DELETE", path)
        outcome = {"resolved": True, "score": 1, "maxScore": 1, "steps": 3}
        ready.namespace.status("episode", "fix", {"state": "Finished", "reason": "Resolved", "outcome": outcome})
        result = await driver.finish()
        assert (result.reason, result.resolved, result.score, result.steps) == ("Resolved", True, 1, 3)
        assert "stored result" in result.notes[0]
    finally:
        await driver.close()


async def test_a_driver_in_the_cluster_connects_directly_to_the_sidecar(ready, tmp_path, monkeypatch):
    server, namespace = ready.server, ready.namespace.name
    directory = tmp_path / "service-account"
    directory.mkdir()
    (directory / "token").write_text(service_account_token(server, namespace))
    (directory / "namespace").write_text(namespace)
    shutil.copy(server.directory / "pki" / "ca.crt", directory)
    rules = [
        {"apiGroups": ["dgym.dev"], "resources": ["episodes"], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]},
    ]
    grant(server, namespace, "driver", rules)
    host, port = server.url.removeprefix("https://").split(":")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    async with asyncio.timeout(60):
        while True:
            try:
                found = await find_sidecar("fix", wait_seconds=5.0, service_account=directory)
                break
            except AccessRefused:
                await asyncio.sleep(0.1)
    assert found.route.url == f"http://{own_address()}:{found.route.url.rpartition(':')[2]}"
    driver = RemoteEpisode(found.route, found.token, reset_key=found.reset_key)
    try:
        assert (await driver.reset()).text
        ready.finish("Cancelled")
        with pytest.raises(EpisodeOver, match="Cancelled"):
            await found.route.check()
    finally:
        await driver.close()


def service_account_token(server, namespace):
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/default/token"
    return server.request("POST", path, {"spec": {"expirationSeconds": 3600}})["status"]["token"]


async def test_missing_rights_are_named(ready, kubeconfig):
    server, namespace = ready.server, ready.namespace.name
    token = service_account_token(server, namespace)
    kubeconfig(server.url, ca_file=server.directory / "pki" / "ca.crt", token=token)
    env = library.AsyncRepoEnv.connect(ready.name)
    with pytest.raises(AccessRefused, match='cannot get resource "episodes"'):
        await env.reset()
    rules = [{"apiGroups": ["dgym.dev"], "resources": ["episodes"], "verbs": ["get"]}]
    grant(server, namespace, "reader", rules)
    await refused_until(env, '"secrets" in API group')
    grant(server, namespace, "secrets", [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}])
    await refused_until(env, "pods/proxy")
    rules = [{"apiGroups": [""], "resources": ["pods/proxy"], "verbs": ["get", "create"]}]
    grant(server, namespace, "proxy", rules)
    async with asyncio.timeout(60):
        while True:
            try:
                await env.reset()
                break
            except AccessRefused:
                await asyncio.sleep(0.1)
    await env.close()


def grant(server, namespace, name, rules):
    path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    server.request("POST", f"{path}/roles", {"metadata": {"name": name}, "rules": rules})
    subject = {"kind": "ServiceAccount", "name": "default", "namespace": namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    server.request("POST", f"{path}/rolebindings", {"metadata": {"name": name}, "subjects": [subject], "roleRef": role})


async def refused_until(env, text):
    """Reset until the refusal contains ``text``. The authorizer receives grants through a watch."""
    async with asyncio.timeout(60):
        while True:
            with pytest.raises(AccessRefused) as refused:
                await env.reset()
            if text in str(refused.value):
                return
            await asyncio.sleep(0.1)


async def attach(driven, name, typed):
    command = [sys.executable, "-c", "from dgym.cli import main; main()", "attach", name, "-n", driven.namespace.name]
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "KUBECONFIG": str(driven.server.kubeconfig)},
    )  # fmt: skip
    out, err = await asyncio.wait_for(process.communicate(typed.encode()), 90)
    return process.returncode, out.decode(), err.decode()


async def test_attach_can_be_left_and_repeated(ready):
    status, out, err = await attach(ready, "fix", "help\nview calc.py\n")
    assert status == 0
    assert "return a - b" in out
    assert "leave; the episode continues" in out
    assert "fix continues: dgym attach fix returns to it" in err
    status, out, err = await attach(ready, "fix", "rewrite calc.py 2:2 <c>    return a + b</c>\nsubmit\n")
    assert (status, err) == (0, "")
    assert "Resolved: 1 of 1 after 3 steps." in out


async def test_attaching_to_a_missing_episode_fails_as_kubectl_does(driven):
    status, out, err = await attach(driven, "none", "")
    assert (status, out) == (1, "")
    assert 'episodes.dgym.dev "none" not found' in err
    done = driven.server.kubectl("get", "episodes", "none", "-n", driven.namespace.name)
    assert (done.returncode, 'episodes.dgym.dev "none" not found' in done.stderr) == (1, True)
