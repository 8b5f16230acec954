"""Tests of the table of tests that only ``make test-all`` runs: each entry is an existing test."""

import ast
from pathlib import Path

import pytest

from tests.support.thorough import KEPT

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("module", KEPT)
def test_every_entry_names_a_test(module):
    nodes = ast.walk(ast.parse((ROOT / module).read_text()))
    tests = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    assert set(KEPT[module]) <= tests
