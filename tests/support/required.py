"""Handling of tests whose required program is missing: they fail on CI and are skipped with a reason on a laptop."""

import os
from pathlib import Path
from typing import NoReturn

import pytest

from hack.cluster.build import find_binary


def absent(name: str, reason: str) -> NoReturn:
    """Skip the test. Fail instead if ``DGYM_TEST_REQUIRE``, a comma-separated list, contains ``name``."""
    if name in os.environ.get("DGYM_TEST_REQUIRE", "").split(","):
        pytest.fail(f"DGYM_TEST_REQUIRE names {name}: {reason}", pytrace=False)
    pytest.skip(reason)


def built(name: str) -> Path:
    """Return a program that ``make binaries`` builds. It is required with ``helm``, all others with ``apiserver``."""
    program = find_binary(name)
    if program is None:
        requirement = "helm" if name == "helm" else "apiserver"
        absent(requirement, f"no {name} in KUBEBUILDER_ASSETS, the user's cache or PATH (`make binaries` builds it)")
    return program
