"""What a test does when a program that it runs against is not there: CI fails, a laptop skips and says so."""

import os
from typing import NoReturn

import pytest


def absent(name: str, reason: str) -> NoReturn:
    """Skip; fail where ``DGYM_TEST_REQUIRE`` (a list with commas) names it."""
    if name in os.environ.get("DGYM_TEST_REQUIRE", "").split(","):
        pytest.fail(f"DGYM_TEST_REQUIRE names {name}: {reason}", pytrace=False)
    pytest.skip(reason)
