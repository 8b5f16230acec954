"""Tests of the arguments for docker's command line. podman's service, which has docker's API, replaces the daemon."""

import asyncio
import shutil
import subprocess
import time

import pytest

from dgym.errors import SandboxLost, SandboxStartFailed
from dgym.sandbox import SandboxLimits, SandboxSpec
from dgym.sandbox.container import (
    DEFAULT_IMAGE,
    LABEL,
    ContainerProvider,
    ensure_image,
    find_engine,
    remove_abandoned_containers,
)
from dgym.sandbox.container._process import scope

DEADLINE = 60.0


@pytest.fixture
def docker(engine, tmp_path, monkeypatch):
    if engine.flavor != "podman" or shutil.which("docker") is None:
        pytest.skip("needs podman and docker's command line")
    socket = tmp_path / "podman.sock"
    monkeypatch.setattr("dgym.sandbox.container._engine._answered", {})
    monkeypatch.setenv("DOCKER_HOST", f"unix://{socket}")
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with subprocess.Popen(
        [engine.program, "system", "service", "--time", "0", f"unix://{socket}"], stderr=subprocess.DEVNULL
    ) as service:
        try:
            yield _answering()
        finally:
            service.terminate()
            service.wait(DEADLINE)


def _answering():
    end = time.monotonic() + DEADLINE
    while True:
        try:
            return asyncio.run(find_engine("docker"))
        except SandboxStartFailed:
            assert time.monotonic() < end, "podman's service does not answer"
            time.sleep(0.1)


@pytest.fixture
async def dockers_sandbox(docker):
    provider = ContainerProvider(
        SandboxSpec(limits=SandboxLimits(memory_bytes=512 * 1024**2)),
        engine=docker,
        image=await ensure_image(docker, DEFAULT_IMAGE),
        cpus=1.5,
    )
    sandbox = await provider.sandbox()
    yield sandbox
    await sandbox.stop()


async def test_a_container_of_docker_is_a_sandbox(docker, dockers_sandbox, ours):
    assert docker.flavor == "docker"
    assert docker.memory
    assert docker.processes
    assert (await dockers_sandbox.run("id -u; pwd; ls /sys/class/net")).text == "1000\n/workspace\nlo\n"
    data = bytes(range(256)) * 40_000
    await dockers_sandbox.write_file("binary", data)
    assert await dockers_sandbox.read_file("binary") == data
    assert dockers_sandbox.name in ours()
    await dockers_sandbox.stop()
    assert dockers_sandbox.name not in ours()
    with pytest.raises(SandboxLost):
        await dockers_sandbox.run("true")


async def test_docker_removes_abandoned_containers(docker, podman, dockers_sandbox, ours):
    abandoned = "dgym-0000000000000003"
    arguments = ("--name", abandoned, "--label", f"{LABEL}={scope()}", "--network", "none", "--entrypoint", "sleep")
    podman("run", "--rm", "--detach", *arguments, DEFAULT_IMAGE, "1000")
    assert await remove_abandoned_containers(docker) == [abandoned]
    assert abandoned not in ours()
    assert dockers_sandbox.name in ours()


async def test_an_image_that_docker_lacks_cannot_be_pulled_here(docker):
    with pytest.raises(SandboxStartFailed, match="cannot be pulled"):
        await ensure_image(docker, "127.0.0.1:1/some/image:1")
