"""Fixtures: pods without a cluster."""

import pytest

from tests.fakes.pods import QUICK, REPAIR, eventually, pods_in
from tests.support.warm_programs import SIDECAR, open_warm_program


@pytest.fixture(scope="session")
def warm_sidecars():
    with open_warm_program(SIDECAR) as program:
        yield program


@pytest.fixture
async def new_pod(tmp_path, warm_sidecars):
    """``new_pod(answer_seconds=0.1)``: a new pod with these settings."""
    async with pods_in(tmp_path, warm=warm_sidecars) as make:
        yield make


@pytest.fixture
async def pod(new_pod):
    """A pod with a started sidecar."""
    return await new_pod().start()


@pytest.fixture
def helpers():
    """Functions and values shared by the tests here."""

    class Helpers:
        repair = REPAIR
        quick = QUICK
        wait = staticmethod(eventually)

    return Helpers
