"""Tests of the missing requirements of failing tests, derived from the causes that a run reports."""

import pytest

from dgym.sandbox import Cause
from dgym.session.scoring._assessment import requirement_of_failure, unmet_requirements_in_output

PATHS = ["src/own/__init__.py", "src/own/_speed.pyx", "src/own/calc.py", "setup.py"]
PATHS += ["packages/shop/pyproject.toml", "packages/shop/src/shop/cart.py", "till/setup.py", "till/till.py"]


@pytest.mark.parametrize(
    ("cause", "requirement"),
    [
        (Cause("builtins.ModuleNotFoundError", "No module named 'yaml.nodes'"), ("module", "yaml")),
        (Cause("builtins.ModuleNotFoundError", "No module named 'own'"), ("installation", "own")),
        (Cause("builtins.ModuleNotFoundError", "No module named 'shop.cart'"), ("project", "packages/shop")),
        (Cause("builtins.ModuleNotFoundError", "No module named 'till'"), ("project", "till")),
        (Cause("builtins.ModuleNotFoundError", "No module named 'own._version'"), ("installation", "own._version")),
        (Cause("builtins.ModuleNotFoundError", "No module named 'own._speed'"), ("extension", "own._speed")),
        (
            Cause("importlib.metadata.PackageNotFoundError", "No package metadata was found for own"),
            ("metadata", "own"),
        ),
        (Cause("importlib.metadata.PackageNotFoundError", "own", "own"), ("metadata", "own")),
        (Cause("_pytest.fixtures.FixtureLookupError", "", "mocker"), ("plugin", "the fixture mocker")),
        (
            Cause("builtins.Failed", "async def functions are not natively supported.\nYou need to install"),
            ("plugin", "support of async tests, such as pytest-asyncio"),
        ),
        (Cause("builtins.FileNotFoundError", "[Errno 2] No such file or directory: 'own'", "own"), ("script", "own")),
        (Cause("builtins.FileNotFoundError", "[Errno 2] No such file: 'a/b.txt'", "a/b.txt"), None),
        (Cause("/bin/sh", "1: own: not found"), ("script", "own")),
        (Cause("socket.gaierror", "[Errno -3] Temporary failure in name resolution"), ("network", "")),
        (Cause("requests.exceptions.ConnectionError", "Max retries exceeded with url: /"), ("network", "")),
        (Cause("redis.exceptions.ConnectionError", "Error 111 connecting to localhost"), ("database", "redis")),
        (Cause("psycopg2.OperationalError", "connection refused"), ("database", "psycopg2")),
        (Cause("_tkinter.TclError", "no display name and no $DISPLAY environment variable"), ("display", "")),
        (Cause("builtins.AssertionError", "assert 1 == 2"), None),
        (Cause("builtins.ImportError", "cannot import name 'x' from 'own'"), None),
    ],
)
def test_a_cause_shows_what_is_missing(cause, requirement):
    assert requirement_of_failure([cause], PATHS) == requirement


def test_a_skip_counts_only_for_an_extension_of_the_repository():
    assert requirement_of_failure(
        [Cause("Skipped", "Skipped: could not import 'own._speed': x")], PATHS, skipped=True
    ) == (
        "extension",
        "own._speed",
    )
    assert (
        requirement_of_failure([Cause("Skipped", "Skipped: could not import 'numpy': x")], PATHS, skipped=True) is None
    )


def test_a_run_that_ends_before_its_tests_names_options_and_modules():
    text = "__main__.py: error: unrecognized arguments: --cov=x\nModuleNotFoundError: No module named 'a.b'\n"
    assert [(requirement.kind, requirement.name) for requirement in unmet_requirements_in_output(text)] == [
        ("option", "--cov=x"),
        ("module", "a"),
    ]
