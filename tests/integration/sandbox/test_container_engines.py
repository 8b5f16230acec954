"""Tests of docker and podman in dgym: the choice of the engine, its commands, and its failures."""

import asyncio
import json
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from dgym.errors import ManifestError, SandboxLost, SandboxStartFailed
from dgym.sandbox import SandboxSpec
from dgym.sandbox.container import (
    DEFAULT_IMAGE,
    ContainerProvider,
    Engine,
    choose_engine,
    ensure_image,
    find_engine,
)
from dgym.sandbox.container import _process as cleanup
from dgym.sandbox.container._engine import Image, call, lock_directory


class Machine:
    """A machine whose PATH has the installed fake engines and the programs that they need."""

    def __init__(self, directory):
        self.state = directory / "state"
        self.bin = directory / "bin"
        for path in (self.state / "images", self.state / "containers", self.bin):
            path.mkdir(parents=True)

    def install(self, *names):
        for name in names:
            program = self.bin / name
            program.write_text(f"#!{sys.executable} -IS\n{Path(__file__).with_name('fake_engine.py').read_text()}")
            program.chmod(0o755)

    def break_down(self, name):
        (self.state / f"{name}-is-down").touch()

    def add_image(self, name, user=""):
        (self.state / "images" / name.replace("/", "_")).write_text(user)

    def add_container(self, name, label):
        (self.state / "containers" / name).write_text(json.dumps({"pid": 0, "label": label}))

    def process_of(self, name):
        return json.loads((self.state / "containers" / name).read_text())["pid"]

    @property
    def containers(self):
        return sorted(path.name for path in (self.state / "containers").iterdir())

    def calls(self, command):
        made = [json.loads(line) for line in (self.state / "calls").read_text().splitlines()]
        return [words for words in made if words[1] == command]


@pytest.fixture
def computer(tmp_path, monkeypatch):
    made = Machine(tmp_path)
    monkeypatch.setenv("PATH", str(made.bin))
    monkeypatch.setenv("FAKE_ENGINE", str(made.state))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(cleanup, "_cleaned", set())
    monkeypatch.setattr("dgym.sandbox.container._engine._answered", {})
    return made


@pytest.fixture(params=["podman", pytest.param("docker", marks=pytest.mark.thorough)])
async def engine(computer, request):
    computer.install(request.param)
    return await find_engine(request.param)


@pytest.fixture
async def open_container(engine, tmp_path):
    opened = []

    async def open_one(*, delivered=True, name="workspace", **fields):
        (tmp_path / name).mkdir(exist_ok=True)
        provider = ContainerProvider(
            SandboxSpec(workspace=str(tmp_path / name), **fields),
            engine=engine,
            image=Image("some/image", "id", ""),
            delivered=delivered,
        )
        opened.append(await provider.sandbox())
        return opened[-1]

    yield open_one
    for sandbox in opened:
        await sandbox.stop()


# Choice of the engine


async def test_the_engine_that_was_asked_for_is_taken(computer):
    computer.install("podman", "docker")
    assert (await find_engine("docker")).flavor == "docker"
    assert (await find_engine("podman")).flavor == "podman"


@pytest.mark.parametrize(("down", "taken"), [((), "podman"), (("podman",), "docker"), (("docker",), "podman")])
async def test_auto_takes_the_first_that_answers(computer, down, taken):
    computer.install("podman", "docker")
    for name in down:
        computer.break_down(name)
    assert (await find_engine()).flavor == taken


async def test_an_engine_is_asked_until_it_answers(computer):
    computer.install("podman")
    computer.break_down("podman")
    for _ in range(2):
        with pytest.raises(SandboxStartFailed):
            await find_engine()
    (computer.state / "podman-is-down").unlink()
    assert await find_engine() is await find_engine()
    assert len(computer.calls("info")) == 3


async def test_every_engine_that_does_not_answer_is_named_with_the_reason(computer):
    computer.install("docker")
    computer.break_down("docker")
    with pytest.raises(SandboxStartFailed, match=r"podman is not installed; docker does not answer: Cannot connect"):
        await find_engine()
    computer.install("podman")
    computer.break_down("podman")
    with pytest.raises(SandboxStartFailed, match=r"^podman does not answer: podman: cannot connect$"):
        await find_engine("podman")


async def test_podman_installed_as_docker_is_recognised(computer):
    computer.install("podman")
    shutil.move(computer.bin / "podman", computer.bin / "elsewhere")
    program = computer.bin / "docker"
    program.write_text(
        (computer.bin / "elsewhere").read_text().replace("NAME = Path(sys.argv[0]).name", "NAME='podman'")
    )
    program.chmod(0o755)
    assert (await find_engine("docker")).flavor == "podman"


async def test_a_call_that_does_not_end_is_ended(computer):
    with pytest.raises(SandboxStartFailed, match=r"^sleep 1000 did not end within 0.2 s$"):
        await call("/bin/sleep", ["1000"], 0.2)
    with pytest.raises(SandboxStartFailed, match="cannot be run"):
        await call("/no/such/program", [], 1)


async def test_lines_of_any_length_are_passed_on():
    reported = []
    script = "print('a'); print('b' * 3_000_000); print(); print('c', end='')"
    answer = await call(sys.executable, ["-c", script], 60, reported.append)
    assert answer.status == 0
    assert len(answer.output) == 3_000_005
    assert (reported[0], reported[-1], "".join(reported[1:-1])) == ("a", "c", "b" * 3_000_000)


# Choice of the sandbox


class TestChoice:
    @pytest.fixture(autouse=True)
    def _bubblewrap(self, monkeypatch):
        self.bubblewrap = True
        monkeypatch.setattr("dgym.sandbox.container._provider.bubblewrap_works", lambda: self.bubblewrap)

    async def choose(self, sandbox="auto", *, image=None, delivered=True, python=None):
        chosen = await choose_engine(sandbox, "auto", image=image, delivered=delivered, python=python)
        return chosen and chosen.flavor

    async def test_a_task_with_an_image_runs_in_a_container(self, computer):
        computer.install("docker")
        assert await self.choose(image="some/image") == "docker"
        assert await self.choose() is None

    async def test_without_bubblewrap_every_task_runs_in_a_container(self, computer):
        self.bubblewrap = False
        computer.install("docker")
        assert await self.choose() == "docker"

    async def test_without_an_engine_a_delivered_repository_needs_no_image(self, computer):
        assert await self.choose(image="some/image") is None
        self.bubblewrap = False
        assert await self.choose() is None

    async def test_a_repository_in_the_image_needs_a_container(self, computer):
        with pytest.raises(SandboxStartFailed, match="no container engine answers"):
            await self.choose(image="some/image", delivered=False)
        for sandbox in ("bubblewrap", "none"):
            with pytest.raises(ManifestError, match="is in the image 'some/image'"):
                await self.choose(sandbox, image="some/image", delivered=False)

    async def test_a_task_with_an_interpreter_of_this_machine_does_not_run_in_a_container(self, computer):
        computer.install("podman")
        assert await self.choose(image="some/image", python="/usr/bin/python3") is None
        with pytest.raises(ManifestError, match="which is not available in a container"):
            await self.choose("container", python="/usr/bin/python3")

    @pytest.mark.parametrize("sandbox", ["bubblewrap", "none"])
    async def test_the_requested_kind_of_sandbox_is_chosen(self, computer, sandbox):
        computer.install("podman")
        assert await self.choose(sandbox, image="some/image") is None
        assert await self.choose("container") == "podman"


# Images


async def test_an_existing_image_is_not_pulled(computer, engine):
    computer.add_image("some/image:1", user="1000:1000")
    image = await ensure_image(engine, "some/image:1")
    assert image == Image("some/image:1", "id-of-some/image:1", "1000:1000", digest="id-of-some/image:1")
    assert not computer.calls("pull")


async def test_the_digest_of_an_image_is_that_of_its_registry(computer, engine):
    computer.add_image("registry.example/task:1")
    assert (await ensure_image(engine, "registry.example/task:1")).digest == "sha256:1f3a"


async def test_concurrent_requests_pull_a_missing_image_once(computer, engine):
    reported = []
    images = await asyncio.gather(*(ensure_image(engine, "some/image:2", reported.append) for _ in range(4)))
    assert len(set(images)) == len(computer.calls("pull")) == 1
    assert {f"pulling some/image:2: layer {number}: done" for number in ("one", "two")} < set(reported)
    assert "waiting for another process that pulls some/image:2" in reported


async def test_a_failed_pull_is_reported_with_the_reason(computer, engine):
    with pytest.raises(SandboxStartFailed, match=r"(?s)'absent:1' cannot be pulled: .*manifest unknown"):
        await ensure_image(engine, "absent:1")
    with pytest.raises(SandboxStartFailed, match="was pulled, but"):
        await ensure_image(engine, "forgotten:1")


async def test_images_of_this_machine_are_never_pulled(computer, engine):
    with pytest.raises(SandboxStartFailed, match="make images"):
        await ensure_image(engine, DEFAULT_IMAGE)
    with pytest.raises(SandboxStartFailed, match="build it first"):
        await ensure_image(engine, "localhost/mine")
    assert not computer.calls("pull")


async def test_an_engine_that_fails_is_not_reported_as_missing_the_image(computer, tmp_path):
    program = tmp_path / "docker"
    program.write_text("#!/bin/sh\necho 'Cannot connect to the daemon' >&2\nexit 1\n")
    program.chmod(0o755)
    with pytest.raises(SandboxStartFailed, match=r"docker did not report whether it has image .*: Cannot connect"):
        await ensure_image(Engine(program=str(program), flavor="docker"), DEFAULT_IMAGE)


async def test_an_invalid_answer_of_the_engine_is_in_the_message(tmp_path):
    program = tmp_path / "podman"
    program.write_text("#!/bin/sh\necho '[]'\n")
    program.chmod(0o755)
    with pytest.raises(SandboxStartFailed, match=r"is invalid: \[\]"):
        await ensure_image(Engine(program=str(program), flavor="podman"), "some/image")


# Containers


async def test_a_container_is_a_sandbox(computer, open_container):
    sandbox = await open_container(environment={"COLOUR": "green"})
    assert sandbox.kind == "container"
    assert computer.containers == [sandbox.name]
    result = await sandbox.run("echo $FLAVOUR $COLOUR $TMPDIR; pwd")
    assert result.text == f"vanilla green /tmp\n{sandbox.workspace}\n"
    await sandbox.stop()
    await sandbox.stop()
    assert computer.containers == []
    with pytest.raises(SandboxLost):
        await sandbox.run("true")


async def test_sandbox_and_verifier_are_two_containers_of_one_image(computer, open_container):
    first, second = await open_container(name="a"), await open_container(name="b")
    assert first.name != second.name
    assert all("id" in words for words in computer.calls("run"))


async def test_a_container_that_does_not_go_at_once_is_waited_for(computer, open_container):
    sandbox = await open_container()
    # A stopped runner does not notice the end of its input.
    os.kill(computer.process_of(sandbox.name), signal.SIGSTOP)
    (computer.state / "removing-fails").touch()
    await sandbox.stop()
    assert computer.containers == []
    assert len(computer.calls("rm")) == 2


async def test_a_container_that_is_gone_already_is_stopped(computer, engine, open_container):
    sandbox = await open_container()
    await engine.call("rm", "--force", sandbox.name)
    await sandbox.stop()
    assert not list(lock_directory().glob("dgym-*"))


async def test_an_image_without_the_interpreter_is_named(computer, open_container):
    with pytest.raises(SandboxStartFailed, match=r"python9.*executable file not found.*the task's 'interpreter'"):
        await open_container(interpreter="python9")
    assert computer.containers == []
    assert not list(lock_directory().glob("dgym-*"))
    with pytest.raises(ManifestError, match="not the name or path of a program"):
        await open_container(interpreter="--privileged")


async def test_a_runner_that_the_engine_does_not_see_is_explained(computer, open_container, monkeypatch, tmp_path):
    monkeypatch.setattr("dgym.sandbox.container._provider.shared_runner", lambda: tmp_path / "nowhere")
    with pytest.raises(SandboxStartFailed, match="must share your home directory"):
        await open_container()


async def test_an_image_without_the_repository_is_refused(computer, open_container, tmp_path):
    with pytest.raises(ManifestError, match="contains no files at"):
        await open_container(delivered=False)
    (tmp_path / "workspace" / "code.py").touch()
    assert await (await open_container(delivered=False)).read_file("code.py") == b""


async def test_a_missing_engine_raises_sandbox_start_failed(computer, open_container, engine):
    Path(engine.program).unlink()
    with pytest.raises(SandboxStartFailed, match="cannot be run"):
        await open_container()
    assert not list(lock_directory().glob("dgym-*"))


# Leftovers


async def test_abandoned_containers_are_removed(computer, open_container, engine):
    label = f"dev.dgym.sandbox={cleanup.scope()}"
    sandbox = await open_container()
    computer.add_container("dgym-abandoned", label)
    computer.add_container("dgym-foreign", "dev.dgym.sandbox=elsewhere")
    computer.add_container("not-ours", label)
    assert await cleanup.remove_abandoned_containers(engine) == ["dgym-abandoned"]
    assert computer.containers == sorted(["dgym-foreign", sandbox.name, "not-ours"])


async def test_the_first_container_of_a_process_removes_them(computer, open_container):
    computer.add_container("dgym-abandoned", f"dev.dgym.sandbox={cleanup.scope()}")
    await open_container()
    assert "dgym-abandoned" not in computer.containers
    computer.add_container("dgym-abandoned", f"dev.dgym.sandbox={cleanup.scope()}")
    await open_container(name="other")
    assert "dgym-abandoned" in computer.containers


async def test_a_failed_removal_of_abandoned_containers_is_only_logged(computer, engine, caplog):
    Path(engine.program).unlink()
    await cleanup.remove_abandoned_once(engine)
    assert "abandoned containers could not be removed" in caplog.text
