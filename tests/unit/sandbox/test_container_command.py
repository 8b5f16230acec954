"""Tests of the command line of a container, and of the capabilities that an engine reports."""

import re
from itertools import pairwise
from pathlib import Path

import pytest

import dgym
from dgym.errors import ManifestError, SandboxStartFailed
from dgym.sandbox import SandboxLimits
from dgym.sandbox.container import DEFAULT_IMAGE, Engine
from dgym.sandbox.container._engine import Image, engine_from_facts
from dgym.sandbox.container._process import Container, command_line

ROOT, ORDINARY = Image("some/image", "id", ""), Image("some/image", "id", "tester:staff")
PODMAN, DOCKER = Engine(program="/bin/podman", flavor="podman"), Engine(program="/bin/docker", flavor="docker")


def container(image=ROOT, **fields):
    fields.setdefault("runner", "/home/me/.cache/dgym/runner/1-shared")
    return Container(name="dgym-1", scope="here", image=image, workspace="/workspace", **fields)


def options(words):
    """Return the values of each option, as written."""
    found = {}
    for name, value in pairwise(words):
        if name.startswith("--"):
            found.setdefault(name, []).append(value)
    return found


@pytest.mark.parametrize("engine", [PODMAN, DOCKER])
def test_the_command_line_has_all_options_for_isolation(engine):
    words = command_line(engine, container())
    given = options(words)
    assert words[0] == "run"
    assert given["--network"] == ["none"]
    assert given["--cap-drop"] == ["ALL"]
    assert given["--security-opt"] == ["no-new-privileges"]
    assert given["--pull"] == ["never"]
    assert given["--log-driver"] == ["none"]
    assert given["--mount"][0].endswith("target=/opt/dgym/runner,readonly")
    assert given["--label"] == ["dev.dgym.sandbox=here"]
    assert {"--rm", "--interactive", "--no-healthcheck"} <= set(words)
    assert "--privileged" not in words
    assert words[words.index("id") + 1 :][-2:] == ["/opt/dgym/runner/__main__.py", "--stdio"]


def test_no_proxy_of_the_user_gets_in():
    assert "--http-proxy=false" in command_line(PODMAN, container())
    given = options(command_line(DOCKER, container()))["--env"]
    assert {"HTTP_PROXY=", "https_proxy=", "no_proxy="} <= set(given)


@pytest.mark.parametrize(
    ("image", "fields", "user"),
    [
        (ROOT, {}, "1000:1000"),
        (Image("x", "id", "0:0"), {}, "1000:1000"),
        (ORDINARY, {}, "tester:staff"),
        (ROOT, {"delivered": False}, None),
        (ORDINARY, {"delivered": False}, None),
        (ROOT, {"in_place": True}, None),
    ],
)
def test_the_user_of_programs(image, fields, user):
    described = container(image, **fields)
    assert described.user == user
    given = options(command_line(PODMAN, described))
    # Only a container that starts as root, to create the workspace, gets capabilities.
    assert given.get("--user") == (None if user is None else ["0:0"])
    assert given.get("--cap-add") == (None if user is None else ["CHOWN", "DAC_OVERRIDE", "SETGID", "SETUID"])


def test_bounds_are_those_of_the_task_with_room_for_the_runner():
    described = container(limits=SandboxLimits(memory_bytes=2**30, processes=100), cpus=1.5)
    given = options(command_line(DOCKER, described))
    assert given["--memory"] == given["--memory-swap"] == [str(2**30 + 64 * 2**20)]
    assert given["--pids-limit"] == ["164"]
    assert given["--cpus"] == ["1.5"]


def test_bounds_that_an_engine_cannot_enforce_are_left_to_the_runner():
    weak = Engine(program="/bin/podman", flavor="podman", memory=False, processes=False, cpus=False)
    given = options(command_line(weak, container(cpus=1.0)))
    assert not {"--memory", "--memory-swap", "--pids-limit", "--cpus"} & set(given)
    unbounded = container(limits=SandboxLimits(memory_bytes=None, processes=None))
    assert not {"--memory", "--memory-swap", "--pids-limit", "--cpus"} & set(options(command_line(DOCKER, unbounded)))


def test_files_are_labelled_where_podman_needs_it():
    labelled = Engine(program="/bin/podman", flavor="podman", selinux=True)
    assert options(command_line(labelled, container()))["--mount"][0].endswith(",readonly,relabel=shared")


def test_a_path_with_a_comma_stays_one_field():
    mount = options(command_line(PODMAN, container(runner='/home/a,b"c/runner')))["--mount"][0]
    assert '"source=/home/a,b""c/runner"' in mount


@pytest.mark.parametrize("interpreter", ["--privileged", '["sh"]'])
def test_an_interpreter_is_not_an_option(interpreter):
    with pytest.raises(ManifestError, match="not the name or path of a program"):
        command_line(PODMAN, container(interpreter=interpreter))


def test_the_user_of_an_image_is_not_parsed_as_an_option():
    words = command_line(PODMAN, container(image=Image("x", "id", "--privileged")))
    assert "--privileged" not in words[: words.index("id")]


def test_the_default_image_is_this_releases():
    name, _, tag = DEFAULT_IMAGE.rpartition(":")
    assert name.startswith("localhost/")
    assert tag == dgym.__version__


def test_the_dockerfile_needs_no_network_and_ends_as_an_ordinary_user():
    text = Path(__file__).parents[3].joinpath("images/sandbox-python/Dockerfile").read_text()
    assert "ARG BASE=python:3.12-slim@sha256:" in text
    assert "--no-index" in text
    assert re.findall(r"^USER (.*)$", text, re.MULTILINE) == ["1000:1000"]
    assert not re.search(r"apt|curl|wget|git clone", text)


PODMAN_HOST = {"cgroupVersion": "v2", "cgroupControllers": ["memory", "pids"], "security": {"rootless": True}}


def test_limits_that_podman_supports():
    engine = engine_from_facts("/bin/docker", {"host": PODMAN_HOST})
    assert (engine.flavor, engine.memory, engine.processes, engine.cpus) == ("podman", True, True, False)
    old = {**PODMAN_HOST, "cgroupVersion": "v1"}
    engine = engine_from_facts("/bin/podman", {"host": old})
    assert (engine.memory, engine.processes, engine.cpus) == (False, False, False)
    engine = engine_from_facts("/bin/podman", {"host": {"security": {"selinuxEnabled": True}}})
    assert engine.selinux


def test_limits_that_docker_supports():
    facts = {"OSType": "linux", "MemoryLimit": True, "PidsLimit": False, "CpuCfsQuota": True}
    engine = engine_from_facts("/bin/docker", facts)
    assert (engine.flavor, engine.memory, engine.processes, engine.cpus) == ("docker", True, False, True)
    assert engine_from_facts("/bin/docker", {"SecurityOptions": ["name=selinux"]}).selinux


def test_windows_containers_are_refused():
    with pytest.raises(SandboxStartFailed, match="switch it to Linux containers"):
        engine_from_facts("/bin/docker", {"OSType": "windows"})
