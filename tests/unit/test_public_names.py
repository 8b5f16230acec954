"""Tests of the public names of `dgym`, which users import, and of the modules that it imports."""

import importlib
import os
import subprocess
import sys

import pytest

import dgym


def test_the_public_names_are_pinned():
    assert dgym.__all__ == [
        "AsyncRepoEnv",
        "DebugTask",
        "DgymError",
        "Episode",
        "EpisodeSet",
        "RepoEnv",
        "SandboxPool",
        "Tool",
        "ToolContext",
        "ToolError",
        "ToolResult",
        "connect",
        "load",
    ]
    for name in dgym.__all__:
        assert getattr(dgym, name) is not None
    assert set(dgym.__all__) <= set(dir(dgym))


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="Nothing"):
        getattr(dgym, "Nothing")  # noqa: B009


def test_importing_dgym_does_not_import_slow_modules():
    heavy = {"msgspec", "yaml", "asyncio", "click", "rich"}
    code = f"import sys, dgym; print(sorted({heavy} & set(sys.modules)))"
    # Coverage imports many modules if it measures subprocesses.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    command = [sys.executable, "-c", code]
    output = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
    assert output.strip() == "[]"


def test_the_package_does_not_shadow_the_standard_library():
    assert importlib.import_module("operator").itemgetter is not None
