"""Fixtures and hooks for all tests."""

import gc
import os
import shutil
import signal
import sys
import uuid
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.security import records
from tests.support import thorough
from tests.support.apiserver import ApiServer, missing_binaries, shared_api_server
from tests.support.required import absent

# If it is installed, jsonschema imports it for the format "iri-reference" only. The import takes two seconds.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]

NO_API_SERVER = "no API server"

# No deadlines: they would fail on a busy machine. CI uses the same examples each time, so that failures are repeatable.
_ON_CI = bool(os.environ.get("CI"))
for _profile, _examples in (("dgym", 25), ("thorough", 100)):  # make test-all has --hypothesis-profile thorough
    settings.register_profile(_profile, deadline=None, max_examples=_examples, derandomize=_ON_CI, print_blob=_ON_CI)
settings.load_profile("dgym")


def pytest_configure(config: pytest.Config) -> None:
    records.register(config)
    # A process that a script starts in the background ignores SIGINT, and its children inherit that. Tests send SIGINT.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Add marks before pytest selects tests by marks."""
    thorough.mark(items)


def pytest_collection_finish() -> None:
    """Freeze the modules and items, so that the garbage collector does not visit them again and again."""
    gc.collect()
    gc.freeze()


def pytest_report_header() -> str:
    bubblewrap = shutil.which("bwrap") or "absent: its tests are skipped"
    return f"dgym: bubblewrap {bubblewrap}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = sum(NO_API_SERVER in str(report.longrepr) for report in terminalreporter.stats.get("skipped", ()))
    if skipped:
        terminalreporter.section("without a kube-apiserver", yellow=True)
        what = f"{skipped} tests skipped, kmock stood in for the client's"
        terminalreporter.line(f"dgym: no kube-apiserver (make binaries builds it): {what}")


@pytest.fixture(scope="session", autouse=True)
def _required_programs() -> None:
    """Fail if ``DGYM_TEST_REQUIRE`` lists bubblewrap and it is missing. CI sets the variable to avoid skipped tests."""
    if "bubblewrap" in os.environ.get("DGYM_TEST_REQUIRE", "").split(",") and shutil.which("bwrap") is None:
        absent("bubblewrap", "there is no bwrap on PATH")


@pytest.fixture(scope="session")
def api_server_binaries() -> None:
    """Skip tests that start their own API server if its binaries are missing."""
    if missing := missing_binaries():
        absent("apiserver", f"{NO_API_SERVER}: {' and '.join(missing)} not found (`make binaries` builds them)")


@pytest.fixture(scope="session")
def api_server(api_server_binaries: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """A real API server for the whole run. Each test uses its own namespace."""
    base = tmp_path_factory.getbasetemp()
    # Each worker of pytest-xdist has its own directory below that of the run.
    run = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base
    server = shared_api_server(run / "api-server")
    yield server
    server.release()


@pytest.fixture
def api_namespace(api_server: ApiServer) -> str:
    """A new namespace for this test. It is not deleted."""
    name = f"test-{uuid.uuid4().hex[:10]}"
    api_server.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    return name
