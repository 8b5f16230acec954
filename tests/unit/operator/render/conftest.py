"""Contexts of pods, and templates of administrators."""

import pytest

from dgym_operator.render import Renderer
from tests.support.pod_context import pod_context


@pytest.fixture(scope="session")
def make_context():
    return pod_context


@pytest.fixture(scope="session")
def renderer():
    """The shipped templates."""
    return Renderer()


@pytest.fixture
def templates(tmp_path):
    """An administrator's directory: ``templates(name, text)`` writes one and returns the directory."""
    directory = tmp_path / "templates"
    directory.mkdir()

    def write(name, text):
        (directory / f"{name}.yaml.j2").write_text(text)
        return directory

    return write


@pytest.fixture(scope="session")
def container():
    """One container of a pod by its name, init containers included."""

    def find(pod, name):
        spec = pod["spec"]
        return next(each for each in [*spec["containers"], *spec.get("initContainers", [])] if each["name"] == name)

    return find
