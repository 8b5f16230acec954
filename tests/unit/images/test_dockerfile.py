"""Tests of the Dockerfile of a task's image: tasks of the same repository differ only in the last layers."""

import shlex
import subprocess

import pytest

from dgym.errors import ManifestError
from dgym.images import Recipe, render

BASE = "python:3.12-slim@sha256:" + "0" * 64


def recipe(**fields):
    return Recipe(
        **{"base": BASE, "base_identity": "id", "python": "3.12.1", "working_directory": "/workspace", **fields}
    )


def test_an_image_without_a_build_system_gets_the_repository_and_no_installation():
    lines = render(recipe()).splitlines()
    assert lines[1:3] == [f"ARG BASE={BASE}", "FROM ${BASE}"]
    assert "COPY --chown=1000:1000 repository/ /workspace/" in lines
    assert not any("--editable" in line or "apt-get" in line for line in lines)
    assert lines[-2:] == ["USER 1000:1000", 'CMD ["python"]']


def test_the_tasks_of_one_repository_share_the_layers_before_the_repository():
    first = render(recipe(install=True, variables={"SETUPTOOLS_SCM_PRETEND_VERSION": "1.0"}))
    second = render(recipe(install=True, variables={"SETUPTOOLS_SCM_PRETEND_VERSION": "1.1"}))
    before, _, _ = first.partition("COPY --chown")
    assert second.startswith(before)
    assert first != second
    assert "requirements.txt" in before


def test_values_of_variables_are_data_for_the_shell():
    text = render(recipe(install=True, variables={"A": "1; touch /x", "B": "$(id)"}))
    (line,) = [line for line in text.splitlines() if "--editable" in line]
    words = shlex.split(line.removeprefix("RUN ").rstrip("\\ "))
    assert words[:2] == ["A=1; touch /x", "B=$(id)"]


def test_files_that_the_installation_needs_are_written_before_it(tmp_path):
    files = {"PKG-INFO": "Name: a\\b 100%s\nVersion: 1.0\n"}
    text = render(recipe(install=True, files=files))
    (line,) = [line for line in text.splitlines() if "PKG-INFO" in line]
    subprocess.run(["sh", "-c", line.removeprefix("RUN ")], cwd=tmp_path, check=True)
    assert (tmp_path / "PKG-INFO").read_text() == files["PKG-INFO"]
    assert text.index("PKG-INFO") < text.index("--editable")


def test_system_packages_are_installed_before_the_requirements():
    text = render(recipe(system_packages=["gcc", "libc6-dev"]))
    assert text.index("gcc libc6-dev") < text.index("requirements.txt")


@pytest.mark.parametrize("path", ["/work space", "/a$HOME", "/a'b", "/a\nRUN id", "/"])
def test_a_working_directory_that_a_dockerfile_would_interpret_is_refused(path):
    with pytest.raises(ManifestError, match=r"workingDirectory: .*such as /workspace"):
        render(recipe(working_directory=path))
