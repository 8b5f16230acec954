"""Tests of `dgym image` and `dgym submit --registry` with a builder that only records its calls."""

import hashlib
import json
import os

import pytest
import yaml
from click.testing import CliRunner

from dgym.cli.app import cli
from dgym.sandbox import cache_directory
from tests.support.wheels import write_wheel

BUILDER = """#!/bin/sh
printf '%s\\n' "$*" >>"$BUILDER_STATE/calls"
for last; do :; done
name=$(printf %s "$last" | tr /: __)
case "$1 $2" in
  "info "*) [ ! -e "$BUILDER_STATE/is-down" ] || { echo 'cannot connect' >&2; exit 1; } ;;
  "image inspect") [ -e "$BUILDER_STATE/$name" ] && echo '[{"Id": "sha256:base"}]' ;;
  "build --network") cp "$last/Dockerfile" "$last/requirements.txt" "$BUILDER_STATE"; ls "$last/repository" \
    >"$BUILDER_STATE/repository"; : >"$BUILDER_STATE/$(printf %s "$5" | tr /: __)" ;;
  "pull "*) exit 1 ;;
esac
"""
TASK = {
    "apiVersion": "dgym.dev/v1alpha1",
    "kind": "DebugTask",
    "metadata": {"name": "sums"},
    "spec": {"source": {"files": [{"path": "calc.py", "content": "TOTAL = 1\n"}]}},
}
EPISODE = {
    "apiVersion": "dgym.dev/v1alpha1",
    "kind": "Episode",
    "metadata": {"name": "sums"},
    "spec": {"taskRef": {"name": "sums"}, "agent": {"name": "solution"}},
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A shared cache with a link to the user's environments: to create the environment for downloads takes seconds."""
    cache, environments = tmp_path_factory.mktemp("cache"), cache_directory() / "environments"
    environments.mkdir(exist_ok=True)
    (cache / "dgym").mkdir()
    (cache / "dgym" / "environments").symlink_to(environments)
    return cache


@pytest.fixture
def dgym(tmp_path, monkeypatch, cache):
    """The command with an index of two wheels, and a ``podman`` that records its calls."""
    index, programs, state = (tmp_path / name for name in ("index", "bin", "state"))
    for directory in (index, programs, state):
        directory.mkdir()
    for name in ("pytest", "helper"):
        write_wheel(index, name)
    (programs / "podman").write_text(BUILDER)
    (programs / "podman").chmod(0o755)
    (state / "base_1").touch()
    for name in os.environ:
        if name.startswith(("PIP_", "UV_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setenv("BUILDER_STATE", str(state))
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(cli, list(map(str, arguments)))


@pytest.fixture
def manifest(tmp_path):
    path = tmp_path / "task.yaml"
    path.write_text(yaml.safe_dump_all([TASK, EPISODE]))
    return path


def test_an_image_is_built_once_and_named_in_the_manifest(dgym, manifest, tmp_path):
    options = ("--base", "base:1", "--builder", "podman")
    built = dgym("image", "build", manifest, *options, "--output", "json")
    assert built.exit_code == 0, built.stderr
    (first,) = json.loads(built.stdout)
    assert (first["kind"], first["name"], first["built"]) == ("DebugTask", "sums", True)
    assert (tmp_path / "state" / "repository").read_text() == "calc.py\n"
    assert (tmp_path / "state" / "requirements.txt").read_text().startswith("pytest==1 --hash=sha256:")
    again = dgym("image", "build", manifest, *options)
    assert again.stdout == f"sums {first['image']} (was there already)\n"

    submitted = dgym("submit", manifest, *options, "--registry", "registry.example/team", "--output", "yaml")
    assert submitted.exit_code == 0, submitted.stderr
    task, episode = yaml.safe_load_all(submitted.stdout)
    tag = first["image"].rpartition(":")[2]
    assert task["spec"] == {"image": f"registry.example/team/sums:{tag}"}
    assert episode["spec"]["taskRef"] == {"name": "sums"}
    calls = (tmp_path / "state" / "calls").read_text().splitlines()
    assert calls[-1] == f"push registry.example/team/sums:{tag}"
    assert sum(call.startswith("build") for call in calls) == 2


def test_an_image_has_only_wheels_with_the_hashes_of_the_manifest(dgym, manifest, tmp_path):
    digest = hashlib.sha256((tmp_path / "index" / "pytest-1-py3-none-any.whl").read_bytes()).hexdigest()
    options = ("--base", "base:1", "--builder", "podman")
    for given, status in ((digest, 0), ("0" * 64, 1)):
        pinned = {"environment": {"requirements": [f"pytest==1 --hash=sha256:{given}"]}}
        manifest.write_text(yaml.safe_dump({**TASK, "spec": {**TASK["spec"], **pinned}}))
        built = dgym("image", "build", manifest, *options)
        assert built.exit_code == status, built.stderr
        assert ("whose hash is not in the manifest" in built.stderr) == bool(status)
    assert (tmp_path / "state" / "requirements.txt").read_text() == f"pytest==1 --hash=sha256:{digest}\n"


def test_the_image_of_a_directory_has_the_environment_that_init_proposes(dgym, tmp_path):
    repository = tmp_path / "sums"
    repository.mkdir()
    (repository / "test_calc.py").write_text("import helper\n\n\ndef test_it():\n    assert helper\n")
    (repository / "requirements.txt").write_text("helper\n")
    options = ("--base", "base:1", "--builder", "podman")
    built = dgym("image", "build", repository, *options)
    assert built.exit_code == 0, built.stderr
    assert "sums: Python" in built.stderr
    locked = (tmp_path / "state" / "requirements.txt").read_text()
    assert [line.partition(" ")[0] for line in locked.splitlines()] == ["helper==1", "pytest==1"]
    submitted = dgym("submit", repository, *options, "--agent", "human", "--registry", "r.example", "--output", "yaml")
    assert submitted.exit_code == 0, submitted.stderr
    assert f"image: r.example/{built.stdout.split()[1].rpartition('/')[2]}" in submitted.stdout


def test_a_dry_run_names_the_image_and_builds_nothing(dgym, manifest, tmp_path):
    options = ("--base", "base:1", "--builder", "podman", "--registry", "registry.example:5000/team")
    named = dgym("submit", manifest, *options, "--dry-run", "--output", "json")
    assert named.exit_code == 0, named.stderr
    assert json.loads(named.stdout)["items"][0]["spec"]["image"].startswith("registry.example:5000/team/sums:")
    calls = (tmp_path / "state" / "calls").read_text().splitlines()
    assert not [call for call in calls if call.startswith(("build", "push"))]


def test_the_dockerfile_is_printed_without_a_builder(dgym, manifest, tmp_path):
    (tmp_path / "state" / "is-down").touch()
    printed = dgym("image", "dockerfile", manifest, "--base", "base:1")
    assert printed.exit_code == 0, printed.stderr
    assert printed.stdout.splitlines()[1] == "ARG BASE=base:1"
    refused = dgym("image", "build", manifest, "--builder", "podman")
    assert refused.exit_code == 1
    assert "podman does not answer: cannot connect" in refused.stderr


def test_a_task_with_requirements_is_not_submitted_without_an_image(dgym, manifest):
    needing = {**TASK, "spec": {**TASK["spec"], "environment": {"requirements": ["numpy"]}}}
    manifest.write_text(yaml.safe_dump(needing))
    refused = dgym("submit", manifest, "--output", "yaml")
    assert refused.exit_code == 2
    assert "document 1 (DebugTask sums): spec.environment: the task has requirements (numpy)" in refused.stderr
    assert "dgym submit --registry" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("image", "build", "task.yaml", "--push", "https://registry"), "'https://registry' is not a registry"),
        (("image", "build", "task.yaml", "--builder", "buildctl"), "give --push"),
        (("submit", "task.yaml", "--base", "a:1"), "--base requires --registry"),
        (("submit", "task.yaml", "--output", "yaml", "--wait"), "--wait cannot be combined with --output"),
    ],
)
def test_options_that_do_not_go_together_are_usage_errors(dgym, manifest, arguments, message):
    refused = dgym(*arguments)
    assert refused.exit_code == 2
    assert message in refused.stderr
