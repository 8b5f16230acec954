"""Tests that the paths in CONTRIBUTING.md exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TOPS = ("dgym", "operator", "hack", "charts", "docs", "tests", "unit", "integration", "examples", "images")
PATHS = sorted(set(re.findall(rf"`((?:{'|'.join(TOPS)})/[\w./-]+)`", (ROOT / "CONTRIBUTING.md").read_text("utf-8"))))


@pytest.mark.parametrize("path", [path for path in PATHS if "NAME" not in path])
def test_a_path_exists(path: str) -> None:
    assert any((ROOT / top / path).exists() for top in ("", "tests")), path
