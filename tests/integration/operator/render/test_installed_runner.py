"""Tests of the installed runner: it is started by the command of the pod's manifest, as the users of the pod."""

import asyncio
import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import dgym.runner
from dgym.sandbox import RunnerClient, SandboxSpec
from dgym.session.scoring._protection import WorkspaceCopy
from dgym.sidecar.install import copy_names, install
from dgym_operator.render import Renderer

SOURCE = Path(dgym.runner.__file__).parent
SANDBOX, SIDECAR = 10001, 10002
DEADLINE = 90


def files(directory):
    found = [path for path in directory.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return {str(path.relative_to(directory)): path.read_bytes() for path in found}


# Installing


def test_the_runner_is_installed_whole_and_readable(installed):
    assert files(installed) == files(SOURCE)
    assert {path.stat().st_mode & 0o777 for path in installed.rglob("*") if path.is_file()} == {0o644}
    assert {path.stat().st_mode & 0o777 for path in installed.rglob("*") if path.is_dir()} == {0o755}


def test_installing_again_repairs(installed):
    (installed / "server.py").write_text("half")
    (installed / ".frames.py.new").write_text("left by one that was interrupted")
    install(installed)
    assert files(installed).items() >= files(SOURCE).items()
    assert (installed / "server.py").read_bytes() == (SOURCE / "server.py").read_bytes()


def test_the_start_file_is_copied_last(tmp_path):
    """``__main__.py`` is copied last, so an interrupted installation does not leave a runner that starts."""
    source = tmp_path / "source"
    shutil.copytree(SOURCE, source, ignore=shutil.ignore_patterns("__pycache__"))
    (source / "trees.py").unlink()
    (source / "trees.py").symlink_to("/proc/self/mem")
    target = tmp_path / "target"
    target.mkdir()
    with pytest.raises(OSError):
        install(target, source)
    assert (target / "server.py").exists()
    assert not (target / "__main__.py").exists()


@pytest.mark.parametrize("arguments", [[], ["--help"], ["a"], ["a", "b", "c"]])
def test_usage(arguments):
    command = [sys.executable, "-m", "dgym.sidecar.install", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90)
    assert done.returncode == 2
    assert "python -m dgym.sidecar.install RUNNER ETC" in done.stderr


def test_a_directory_that_is_not_writable_is_reported(tmp_path):
    (tmp_path / "file").write_text("")
    command = [sys.executable, "-m", "dgym.sidecar.install", str(tmp_path / "file"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90)
    assert done.returncode == 1
    assert "the runner could not be installed" in done.stderr


def test_files_with_host_names_are_copied_and_readable_for_all_users(tmp_path):
    source, target = tmp_path / "etc", tmp_path / "copies"
    source.mkdir()
    target.mkdir()
    (source / "hosts").write_text("10.0.0.7 dgym\n")
    (source / "hosts").chmod(0o600)
    (source / "resolv.conf").symlink_to("../elsewhere")
    for _ in range(2):
        copy_names(target, source)
    copies = {path.name: path.read_text() for path in target.iterdir()}
    # Each file must exist: a mount of a missing file would become a mount of a directory.
    assert copies == {"hosts": "10.0.0.7 dgym\n", "hostname": "", "resolv.conf": ""}
    assert {path.stat().st_mode & 0o777 for path in target.iterdir()} == {0o644}


def test_the_installer_imports_nothing_heavy():
    """An init container takes a second even without imports."""
    program = "import sys, dgym.sidecar.install; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=90)
    loaded = set(done.stdout.split())
    assert not {"msgspec", "aiohttp", "asyncio", "dgym.api", "dgym.wire", "dgym.runner"} & loaded


# Starting


@pytest.fixture
def started(installed, open_directory, make_context, as_user, python):
    """A runner, started by the sandbox's command with local directories in the place of the pod's directories."""
    directories = {
        "/run/dgym/runner": installed,
        "/run/dgym/sandbox": open_directory("socket"),
        "/run/dgym/tmp": open_directory("scratch"),
    }
    task = {"interpreter": python}
    spec = Renderer().render("restricted", make_context(task=task))["spec"]
    sandbox = next(each for each in spec["containers"] if each["name"] == "sandbox")

    def here(text):
        for inside, outside in directories.items():
            if text.startswith(inside):
                return text.replace(inside, str(outside), 1)
        return text

    user = sandbox["securityContext"]["runAsUser"]
    command = [*as_user(user), *map(here, sandbox["command"])]
    environment = {each["name"]: here(each["value"]) for each in sandbox["env"]}
    process = subprocess.Popen(command, cwd=sandbox["workingDir"], env={"PATH": os.defpath, **environment})
    yield process, directories["/run/dgym/sandbox"] / "runner.sock"
    process.kill()
    process.wait(DEADLINE)


async def comes_up(process, socket):
    async with asyncio.timeout(DEADLINE):
        while not socket.exists():
            assert process.poll() is None, "the runner ended"
            await asyncio.sleep(0.01)


async def test_the_sandbox_runs_as_its_user_and_the_sidecar_reaches_it(started, open_directory):
    process, socket = started
    workspace = open_directory("workspace")
    await comes_up(process, socket)
    status = socket.stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (SANDBOX, 10000, 0o660)
    os.setegid(10000)
    os.seteuid(SIDECAR)
    try:
        reader, writer = await asyncio.open_unix_connection(str(socket))
    finally:
        os.seteuid(0)
        os.setegid(0)
    client = Runner(reader, writer)
    async with asyncio.timeout(DEADLINE):
        await client.configure(SandboxSpec(workspace=str(workspace)), inherit_environment=True)
        result = await client.run("id -u; id -g; touch made; stat -c %u made; grep CapEff /proc/self/status")
        assert result.text.split() == ["10001", "10000", "10001", "CapEff:", "0000000000000000"]
        await client.stop()
    assert await asyncio.to_thread(process.wait, DEADLINE) == 0


async def test_the_workspace_of_another_owner_is_set_aside_and_restored(started, open_directory):
    """An emptyDir belongs to root: programs of the pod may create files in it, but not change its mode or its times."""
    process, socket = started
    workspace = open_directory("workspace")
    await comes_up(process, socket)
    client = Runner(*await asyncio.open_unix_connection(str(socket)))
    make = "mkdir src .git; echo 1 > src/a; ln src/a b; ln -s src/a ./-c; touch -d @1000000000 src/a src; chmod 500 src"
    show = "find . -mindepth 1 -type f -printf '%p %m %n %T@\n' -o -printf '%p %m %T@ %l\n' | sort; ls -A $TMPDIR"
    async with asyncio.timeout(DEADLINE):
        await client.configure(SandboxSpec(workspace=str(workspace)), inherit_environment=True)
        await client.run(make)
        before = await client.run(show)
        copy = await WorkspaceCopy.save(client)
        await client.run("chmod 700 src; rm -r src/a .git b; mkdir -m 0 litter; echo more > src/more")
        await copy.restore()
        after = await client.run(show)
        await client.stop()
    assert "./src/a 644 2 1000000000" in before.text
    assert after.text == before.text


async def test_another_group_does_not_reach_it(started):
    process, socket = started
    await comes_up(process, socket)
    os.seteuid(12345)
    try:
        with pytest.raises(PermissionError):
            await asyncio.open_unix_connection(str(socket))
    finally:
        os.seteuid(0)


class Runner(RunnerClient):
    """A client of a runner in a process of this test."""

    kind = "pod"

    async def stop(self):
        with contextlib.suppress(OSError):
            await self.close()


def test_the_copying_of_a_tree_is_installed_beside_it(installed):
    spec = importlib.util.spec_from_file_location("copy_tree", installed / "copy_tree.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (module.NO_INPUT, module.FAILED, module.NOT_READABLE) == (66, 74, 77)
