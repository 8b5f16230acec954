"""Fixture for faults: a local cluster and a release, which ``python -m tests.e2e.cluster.faults`` prepares."""

import json
import os

import pytest

from tests.e2e.cluster.faults.kinds import Stage
from tests.e2e.cluster.faults.moments import Gate
from tests.e2e.cluster.faults.node import inside, local_cluster, volume_of
from tests.e2e.cluster.release import Release, values_for_tests
from tests.e2e.cluster.support import Kubectl
from tests.support.required import absent


def pytest_collection_modifyitems(items):
    for item in items:
        item.add_marker(pytest.mark.timeout(1500))


@pytest.fixture(scope="session")
def stage():
    cluster = local_cluster()
    if cluster is None:
        absent("local-cluster", "faults need a cluster of this machine's own processes (E2E_CLUSTER=local)")
    name, namespace, watched = json.loads(os.environ["DGYM_E2E_FAULT_STAGE"])
    release = Release(name, namespace, values_for_tests(watch=watched, agents=0))
    return Stage(cluster, release, Kubectl(watched), Gate(inside(cluster, volume_of(release.kubectl))))
