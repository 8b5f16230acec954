"""Tests of the locked requirements: every package that the code of an image imports is installed in the image."""

import ast
import re
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DISTRIBUTIONS = {"yaml": "pyyaml", "prometheus_client": "prometheus-client", "pydantic_settings": "pydantic-settings"}
COMMON = ("api", "wire", "workspace", "sandbox", "session", "tools")
# Not installed on purpose: these are imported only for optional features.
ABSENT = {"agent": {"tokenizers", "azure", "gymnasium", "numpy", "prompt_toolkit"}}
IMAGES = {
    "operator": ("operator/dgym_operator", "dgym/api", "dgym/wire"),
    "sidecar": ("dgym/sidecar", *(f"dgym/{name}" for name in COMMON)),
    "agent": tuple(f"dgym/{name}" for name in (*COMMON, "episodes", "agents", "env", "llm", "results")),
}


@pytest.mark.parametrize("image", IMAGES)
def test_every_imported_distribution_is_in_the_requirements(image):
    text = (ROOT / "requirements" / f"{image}.txt").read_text()
    installed = {name.lower() for name in re.findall(r"^([A-Za-z0-9._-]+)==", text, re.MULTILINE)}
    imported = {name for directory in IMAGES[image] for name in _imported(ROOT / directory)}
    wanted = {DISTRIBUTIONS.get(name, name) for name in imported - ABSENT.get(image, set())}
    assert wanted <= installed


@pytest.mark.parametrize("image", [*IMAGES, "sandbox-python"])
def test_versions_are_those_that_the_tests_run_with(image):
    tested = set(_pins(ROOT / "requirements" / "dev.txt"))
    assert set(_pins(ROOT / "requirements" / f"{image}.txt")) <= tested


def test_no_address_of_an_index_is_committed():
    for path in (ROOT / "requirements").glob("*.txt"):
        assert "://" not in path.read_text()


def _pins(path):
    return re.findall(r"^([A-Za-z0-9._-]+==[^ ]+)", path.read_text(), re.MULTILINE)


@cache
def _imported(directory):
    return frozenset(_imports(directory))


def _imports(directory):
    paths = list(directory.rglob("*.py"))
    assert paths, f"{directory} has no modules"
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module]
            tops = {name.partition(".")[0] for name in names}
            yield from tops - set(sys.stdlib_module_names) - {"dgym", "dgym_operator"}
