"""Tests of rules for the source code that linters do not check."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = [path for name in ("dgym", "operator", "hack", "tests") for path in (ROOT / name).rglob("*.py")]


def raises_in_except_star(source: str) -> list[int]:
    # Most files do not contain `except*`, and parsing all files takes seconds.
    if re.search(r"\bexcept\s*\*", source) is None:
        return []
    handlers = [
        handler for node in ast.walk(ast.parse(source)) if isinstance(node, ast.TryStar) for handler in node.handlers
    ]
    return sorted({node.lineno for handler in handlers for node in ast.walk(handler) if isinstance(node, ast.Raise)})


def test_exceptions_are_not_raised_inside_except_star() -> None:
    # Python 3.11.2, the version in Debian 12, wraps an exception raised there in an exception group.
    assert raises_in_except_star("try: pass\nexcept* ValueError:\n    if x:\n        raise KeyError") == [4]
    found = {str(path.relative_to(ROOT)): raises_in_except_star(path.read_text("utf-8")) for path in SOURCES}
    assert not {path: lines for path, lines in found.items() if lines}
