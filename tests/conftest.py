"""What every test may use."""

import os
import shutil

import pytest
from hypothesis import settings

# No deadlines: a busy machine is not a failure. On CI the same examples each time: a failure there must be repeatable.
settings.register_profile("dgym", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "dgym")


def pytest_report_header() -> str:
    bubblewrap = shutil.which("bwrap") or "absent: its tests are skipped"
    return f"dgym: bubblewrap {bubblewrap}"


@pytest.fixture(scope="session", autouse=True)
def _required_programs() -> None:
    """On CI a missing program is a failure, not a skip."""
    if "bubblewrap" in os.environ.get("DGYM_TEST_REQUIRE", "").split(",") and shutil.which("bwrap") is None:
        pytest.fail("DGYM_TEST_REQUIRE names bubblewrap, and there is no bwrap on PATH", pytrace=False)
