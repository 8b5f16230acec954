"""Fixtures for a cluster that KUBECONFIG selects, with dgym installed by Helm. hack/e2e prepares both."""

import os
from types import SimpleNamespace

import pytest

from tests.e2e.cluster.services import REPOSITORIES, address, make_archives
from tests.e2e.cluster.support import Kubectl, new_namespace
from tests.support.required import absent

# This directory is the repository of an image. Its test imports the modules beside it.
collect_ignore = ["baked"]
_LOG_LINES = 200


def pytest_collection_modifyitems(items):
    for item in items:
        item.add_marker(pytest.mark.timeout(600))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Add the operators' log lines about a failed test's namespace to its report. The release is deleted later."""
    report = yield
    kubectl = item.funcargs.get("namespace")
    system = os.environ.get("DGYM_E2E_SYSTEM_NAMESPACE")
    if call.when == "call" and report.failed and kubectl is not None and system:
        operators = ("-l", "app.kubernetes.io/component=operator", "--prefix", "--tail=-1")
        lines = Kubectl(system)("logs", *operators, check=False).splitlines()
        about = [line for line in lines if kubectl.namespace in line or '"level": "ERROR"' in line]
        report.sections.append((f"operators about {kubectl.namespace}", "\n".join(about[-_LOG_LINES:])))
    return report


@pytest.fixture(scope="session", autouse=True)
def _cluster():
    if not os.environ.get("DGYM_E2E_SERVICES"):
        absent("cluster", "no cluster was prepared: run make e2e-cluster")


@pytest.fixture
def namespace():
    """A new namespace for the test, with Pod Security restricted."""
    with new_namespace("e2e") as kubectl:
        yield kubectl


@pytest.fixture
def baseline_namespace():
    """A new namespace for the test, with Pod Security baseline."""
    with new_namespace("e2e-baseline", "baseline") as kubectl:
        yield kubectl


@pytest.fixture(scope="session")
def system():
    """The namespace of the release that all tests share."""
    return Kubectl(os.environ["DGYM_E2E_SYSTEM_NAMESPACE"])


@pytest.fixture(scope="session")
def sources():
    """The buggy repository in git and in an archive, on a host from which the agents may fetch it."""
    place = address(REPOSITORIES)
    archives = make_archives()
    git = {"url": f"http://{place}/sums.git", "revision": "main"}
    return SimpleNamespace(git=git, archive={"url": f"http://{place}/sums.tar", "sha256": archives.sha256})


@pytest.fixture(scope="session")
def baked_image():
    """An image that holds the buggy repository."""
    return os.environ["DGYM_E2E_BAKED_IMAGE"]
