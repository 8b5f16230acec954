"""Tests of the builders of images: the commands that are run, and the errors if a builder fails."""

import asyncio
import json

import pytest

from dgym.errors import SetupFailed
from dgym.images import BUILDERS, find_builder

PROGRAM = """#!/bin/sh
printf '%s\\n' "$(basename "$0") $*" >>"{log}"
case "$*" in
  info|images|"debug workers") exit {answers} ;;
  *"inspect"*"known"*) echo '{facts}' ;;
  *inspect*) exit 1 ;;
  *"push"*"refusing"*) echo 'denied: access forbidden' >&2; exit 1 ;;
  pull*absent*) echo 'manifest unknown' >&2; exit 1 ;;
esac
"""
FACTS = [{"Id": "sha256:1", "RepoDigests": ["registry.example/known@sha256:2"]}]


@pytest.fixture
def install(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    (tmp_path / "bin").mkdir()
    monkeypatch.setattr("shutil.which", lambda name: next(map(str, (tmp_path / "bin").glob(name)), None))

    def add(*names, answers=0):
        for name in names:
            program = tmp_path / "bin" / name
            program.write_text(PROGRAM.format(log=tmp_path / "log", answers=answers, facts=json.dumps(FACTS)))
            program.chmod(0o755)

    return add


@pytest.fixture
def log(tmp_path):
    return lambda: (tmp_path / "log").read_text().splitlines()


def quiet(_line):
    pass


def test_the_first_that_answers_builds(install):
    install("docker", answers=1)
    install("buildah", "buildctl")
    assert asyncio.run(find_builder()).name == "buildah"


def test_without_a_builder_the_message_has_the_cause_for_each_and_a_remedy(install):
    install("podman", answers=1)
    with pytest.raises(SetupFailed, match=r"docker is not installed; podman does not answer.*dgym image dockerfile"):
        asyncio.run(find_builder())


@pytest.mark.parametrize("name", BUILDERS)
def test_an_image_is_built_without_a_network_and_pushed(install, log, tmp_path, name):
    install(name)
    builder = asyncio.run(find_builder(name))
    asyncio.run(builder.build(tmp_path, "registry.example/a:1", network=False, push=True, progress=quiet))
    calls = log()[1:]
    if name == "buildctl":
        assert calls[0].endswith("--output type=image,name=registry.example/a:1,push=true")
        assert len(calls) == 1
    else:
        assert calls == [
            f"{name} build --network none --tag registry.example/a:1 {tmp_path}",
            f"{name} push registry.example/a:1",
        ]


def test_a_base_is_named_by_its_digest(install, log):
    install("podman")
    builder = asyncio.run(find_builder())
    assert asyncio.run(builder.resolve_base("known:3", quiet)) == ("registry.example/known@sha256:2", "sha256:1")
    assert not any(" pull" in line for line in log())


def test_a_base_that_cannot_be_pulled_names_the_option(install):
    install("podman")
    builder = asyncio.run(find_builder())
    with pytest.raises(SetupFailed, match=r"base image absent:3 cannot be pulled.*--base: manifest unknown"):
        asyncio.run(builder.resolve_base("absent:3", quiet))


def test_a_push_that_is_refused_names_the_registry_and_the_login(install, tmp_path):
    install("docker")
    builder = asyncio.run(find_builder())
    with pytest.raises(SetupFailed, match=r"is refusing\.example right, and have you logged in with docker login"):
        asyncio.run(builder.push("refusing.example/a:1", quiet))
