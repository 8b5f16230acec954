"""Texts of one shape, parsed once: texts that differ in nothing but quoted values give trees that differ in these.

Rendered pods are such texts, since every value of a template is written as JSON. Parsing one as YAML takes several
times as long as rendering it.
"""

import re
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

# Values without escapes, of printable ASCII and on one line, which JSON and YAML read alike, in keys too.
_QUOTED = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_PLAIN = re.compile(r'"[ !#-\[\]-~]{0,1000}"')
_MARK = "dgym-value-"
_SHAPES = 128


class ShapeCache:
    """Parsed shapes.

    A shape is the text with a mark in place of every quoted value. It serves only where each mark is a scalar of its
    own in the tree; every other text, such as one with quotes in a comment, is parsed as it is.
    """

    def __init__(self) -> None:
        self._trees: OrderedDict[str, dict[str, Any] | None] = OrderedDict()

    def read(self, text: str, parse: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
        """What ``parse`` gives for the text, or raises: a new tree of mappings, lists and scalars."""
        values: dict[str, str] = {}

        def mark(match: re.Match[str]) -> str:
            if not _PLAIN.fullmatch(match[0]):
                return match[0]
            name = f"{_MARK}{len(values)}"
            values[name] = match[0][1:-1]
            return f'"{name}"'

        tree = self._tree(_QUOTED.sub(mark, text), values, parse) if _MARK not in text else None
        if tree is None:
            return parse(text)
        try:
            return _filled_mapping(tree, values)
        except _SameKey:
            return parse(text)

    def _tree(
        self, shape: str, values: dict[str, str], parse: Callable[[str], dict[str, Any]]
    ) -> dict[str, Any] | None:
        if shape not in self._trees:
            self._trees[shape] = _parsed(shape, values, parse)
            if len(self._trees) > _SHAPES:
                self._trees.popitem(last=False)
        self._trees.move_to_end(shape)
        return self._trees[shape]


class _SameKey(Exception):
    """The values give a mapping one key twice."""


def _parsed(shape: str, values: dict[str, str], parse: Callable[[str], dict[str, Any]]) -> dict[str, Any] | None:
    try:
        tree = parse(shape)
    except Exception:
        return None  # Parsing the text itself tells what is wrong with it, and where.
    marks = [text for text in _texts(tree) if _MARK in text]
    return tree if sorted(marks) == sorted(values) else None


def _texts(value: Any) -> Iterator[str]:
    """Every text in the tree, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _texts(key)
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


def _filled(value: Any, values: dict[str, str]) -> Any:
    if isinstance(value, str):
        return values.get(value, value)
    if isinstance(value, list):
        return [_filled(item, values) for item in value]
    return _filled_mapping(value, values) if isinstance(value, dict) else value


def _filled_mapping(mapping: dict[str, Any], values: dict[str, str]) -> dict[str, Any]:
    filled = {values.get(key, key): _filled(item, values) for key, item in mapping.items()}
    if len(filled) < len(mapping):
        raise _SameKey
    return filled
