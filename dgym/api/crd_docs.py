"""Descriptions for ``kubectl explain``, taken from the docstrings of the structs, so that they stand in one place."""

import inspect
import re
from functools import cache

_SECTION = "Attributes:"
_FIELD = re.compile(r"    (\w+): (.*)")


@cache
def describe_struct(cls: type) -> str:
    """What the docstring says before its list of attributes."""
    return _flowed(_lines(cls)[0])


@cache
def describe_fields(cls: type) -> dict[str, str]:
    """What the docstring says of each attribute, by the attribute's name."""
    found: dict[str, list[str]] = {}
    texts: list[str] = []
    for line in _lines(cls)[1]:
        if match := _FIELD.fullmatch(line):
            texts = found.setdefault(match[1], [match[2]])
        else:
            texts.append(line)
    return {name: _flowed(lines) for name, lines in found.items()}


def _lines(cls: type) -> tuple[list[str], list[str]]:
    lines = (inspect.getdoc(cls) or "").splitlines()
    if _SECTION not in lines:
        return lines, []
    start = lines.index(_SECTION)
    return lines[:start], lines[start + 1 :]


def _flowed(lines: list[str]) -> str:
    """One paragraph; marks of code become what a terminal shows well."""
    return " ".join(line.strip() for line in lines if line.strip()).replace("``", "'")
