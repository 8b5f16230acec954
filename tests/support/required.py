"""Handling of tests whose required program is missing: they fail on CI and are skipped with a reason on a laptop."""

import os
from typing import NoReturn

import pytest


def absent(name: str, reason: str) -> NoReturn:
    """Skip the test. Fail instead if ``DGYM_TEST_REQUIRE``, a comma-separated list, contains ``name``."""
    if name in os.environ.get("DGYM_TEST_REQUIRE", "").split(","):
        pytest.fail(f"DGYM_TEST_REQUIRE names {name}: {reason}", pytrace=False)
    pytest.skip(reason)
