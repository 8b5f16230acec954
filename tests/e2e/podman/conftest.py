"""Fixtures for real containers: the engine, test images based on dgym's image, and a check for remaining containers."""

import asyncio
import os
import subprocess
import textwrap
import time
from contextlib import suppress

import pytest

from dgym.errors import SandboxStartFailed
from dgym.sandbox import SandboxSpec
from dgym.sandbox.container import DEFAULT_IMAGE, LABEL, ContainerProvider, ensure_image, find_engine
from dgym.sandbox.container._process import scope
from tests.support.required import absent

DEADLINE = 60.0


@pytest.fixture(scope="session", autouse=True)
def _containers_of_our_own(tmp_path_factory):
    """Use a separate cache directory. Its locks identify containers, so other dgym processes ignore ours."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def engine(_containers_of_our_own):
    """The container engine. If there is none, tests fail on CI and are skipped on a laptop."""
    try:
        found = asyncio.run(_ready())
    except SandboxStartFailed as error:
        absent("container", str(error))
    return found


async def _ready():
    found = await find_engine(os.environ.get("DGYM_E2E_ENGINE") or "auto")
    await ensure_image(found, DEFAULT_IMAGE)
    return found


@pytest.fixture(scope="session")
def podman(engine):
    """Runs the engine's program and returns its output."""

    def run(*arguments, text=None):
        done = subprocess.run(
            [engine.program, *arguments], input=text, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


@pytest.fixture(scope="session")
def build(podman, tmp_path_factory):
    """Builds an image from dgym's default image (or another) with these lines. It is removed at the end."""
    built = []

    def build_one(name, lines, base=DEFAULT_IMAGE):
        directory = tmp_path_factory.mktemp("context")
        (directory / "Dockerfile").write_text(f"FROM {base}\n{textwrap.dedent(lines)}")
        image = f"localhost/dgym-test/{name}:{os.getpid()}"
        podman("build", "--quiet", "--network", "none", "--tag", image, str(directory))
        built.append(image)
        return image

    yield build_one
    for image in built:
        podman("rmi", "--force", image)


@pytest.fixture
def ours(podman):
    """Lists the names of this test process's containers."""

    def names():
        return podman("ps", "--all", "--filter", f"label={LABEL}={scope()}", "--format", "{{.Names}}").split()

    return names


@pytest.fixture(autouse=True)
def _nothing_remains(ours):
    before = set(ours())
    yield
    end = time.monotonic() + DEADLINE
    while left := set(ours()) - before:
        assert time.monotonic() < end, f"containers {sorted(left)} remain"
        time.sleep(0.05)


@pytest.fixture
async def open_sandbox(engine):
    opened = []

    async def open_one(image=DEFAULT_IMAGE, *, delivered=True, in_place=False, cpus=None, **fields):
        provider = ContainerProvider(
            SandboxSpec(**fields),
            engine=engine,
            image=await ensure_image(engine, image),
            delivered=delivered,
            in_place=in_place,
            cpus=cpus,
        )
        opened.append(await provider.sandbox())
        return opened[-1]

    yield open_one
    for sandbox in opened:
        with suppress(SandboxStartFailed):
            await sandbox.stop()


@pytest.fixture
async def sandbox(open_sandbox):
    return await open_sandbox()
