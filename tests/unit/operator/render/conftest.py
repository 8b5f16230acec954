"""Fixtures for templates: renderers, templates of administrators, and containers of pods."""

import pytest

from dgym_operator.render import Renderer
from tests.support.pod_context import pod_context


@pytest.fixture(scope="session")
def make_context():
    return pod_context


@pytest.fixture(scope="session")
def renderer():
    """A renderer of the shipped templates."""
    return Renderer()


@pytest.fixture
def templates(tmp_path):
    """Writes a template into an administrator's directory: ``templates(name, text)`` returns the directory."""
    directory = tmp_path / "templates"
    directory.mkdir()

    def write(name, text):
        (directory / f"{name}.yaml.j2").write_text(text)
        return directory

    return write


@pytest.fixture(scope="session")
def container():
    """Returns a container or init container of a pod by its name."""

    def find(pod, name):
        spec = pod["spec"]
        return next(each for each in [*spec["containers"], *spec.get("initContainers", [])] if each["name"] == name)

    return find
