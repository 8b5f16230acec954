"""Contexts of pods, and templates of administrators."""

import msgspec
import pytest

from dgym.api import DebugTaskSpec
from dgym_operator.render import PodContext, Renderer
from dgym_operator.settings import Settings

DIGESTS = {"prepare": "a" * 64, "drive": "b" * 64, "operate": "c" * 64}


@pytest.fixture(scope="session")
def make_context():
    """A context: fields of the task by ``task=``, everything else by its own name."""

    def make(*, task=None, **fields):
        context = PodContext(
            name="fix-ledger-1",
            namespace="team",
            episode="fix-ledger",
            episode_uid="5e0c7f0e-0000-4000-8000-000000000001",
            attempt=1,
            task=DebugTaskSpec(**(task or {})),
            delivered=True,
            digests=DIGESTS,
            active_deadline_seconds=7200,
            settings=Settings(sandbox_image="sandbox-python:1", sidecar_image="sidecar:1"),
        )
        return msgspec.structs.replace(context, **fields)

    return make


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
