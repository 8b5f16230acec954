"""What integration tests share."""

import os
import uuid
from collections.abc import Iterator

import pytest

from tests.apiserver import ApiServer, missing_binaries, shared_api_server


@pytest.fixture(scope="session")
def api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """A real API server, one for the whole run: tests keep to namespaces of their own."""
    if missing := missing_binaries():
        reason = f"no API server: {' and '.join(missing)} not found (`hack/cluster/cluster build` makes them)"
        # On CI a missing program is a failure, not a skip.
        if "apiserver" in os.environ.get("DGYM_TEST_REQUIRE", "").split(","):
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    base = tmp_path_factory.getbasetemp()
    # Workers of pytest-xdist have directories of their own below that of the run.
    run = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base
    server = shared_api_server(run / "api-server")
    yield server
    server.release()


@pytest.fixture
def api_namespace(api_server: ApiServer) -> str:
    """A namespace of this test's own. Nothing deletes namespaces here, and nothing needs to."""
    name = f"test-{uuid.uuid4().hex[:10]}"
    api_server.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    return name
