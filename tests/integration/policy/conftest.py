"""Fixtures: environments in local sandboxes, closed at the end of the test."""

import shutil

import pytest

from tests.fakes.attacks import policy


@pytest.fixture(params=["bubblewrap", pytest.param("none", marks=pytest.mark.thorough)])
def kind(request):
    if request.param == "bubblewrap" and shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    return request.param


@pytest.fixture
async def open_environment():
    """``await open_environment(kind)``: an environment after its reset, closed at the end of the test."""
    opened = []

    async def open_one(kind="bubblewrap"):
        if kind == "bubblewrap" and shutil.which("bwrap") is None:
            kind = "none"
        environment = policy.open_environment(kind)
        opened.append(environment)
        await environment.reset()
        return environment

    yield open_one
    for environment in opened:
        await environment.close()
