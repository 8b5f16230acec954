"""Pods without a cluster for every test here."""

import shutil
from pathlib import Path

import pytest

from dgym.sandbox.environments import ensure_environment
from tests.fakes.pods import QUICK, REPAIR, Pod, eventually


@pytest.fixture
async def new_pod(tmp_path):
    """Makes the pod of a test: ``new_pod(answer_seconds=0.1)``."""
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    environment = Path(await ensure_environment(()))
    pods = []

    def make(**settings):
        pods.append(Pod(tmp_path, environment, **settings))
        return pods[-1]

    yield make
    for pod in pods:
        await pod.close()


@pytest.fixture
async def pod(new_pod):
    """A pod whose sidecar answers."""
    return await new_pod().start()


@pytest.fixture
def helpers():
    """Functions and values shared by the tests here."""

    class Helpers:
        repair = REPAIR
        quick = QUICK
        wait = staticmethod(eventually)

    return Helpers
