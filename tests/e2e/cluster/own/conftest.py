"""A release for each module that requests one. It watches one namespace, so that modules do not affect each other."""

import pytest

from tests.e2e.cluster.release import installed
from tests.e2e.cluster.support import new_namespace, unique


@pytest.fixture(scope="module")
def watched():
    """The only namespace that the module's release watches."""
    with new_namespace("e2e-watched") as kubectl:
        yield kubectl


@pytest.fixture(scope="module")
def release(watched):
    """A release with two agent pods, so that the second can take over from the first."""
    with installed(unique("faults"), watch=watched.namespace, agents=2) as release:
        yield release
