"""JSON Schema as far as msgspec writes it: whether a value fits a schema, and a random value that does. Pure.

The schemas of tools and observations come from typed signatures, so this is the part of JSON Schema that Python's types
become. Strings of a ``format`` (dates, UUIDs) are checked as strings only; they and those of a ``pattern`` are never
drawn.
"""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Schema = Mapping[str, Any]
DrawText = Callable[[int, int | None], str]
"""Draws a text of at least so many characters, and of at most so many where that is not None."""

_SPREAD = 100
"""How far numbers without a bound on that side are drawn."""
_FEW = 3
"""How many more items than necessary a drawn list or mapping has at most."""
_DEEP = 5
"""From this depth on only what must be there is drawn, so that recursive types come to an end."""


def fits(value: Any, schema: Schema, definitions: Schema) -> bool:
    """Whether ``value`` is one that ``schema`` allows; types are strict, as those of calls are."""
    schema = resolved(schema, definitions)
    if "anyOf" in schema:
        return any(fits(value, option, definitions) for option in schema["anyOf"])
    if "enum" in schema:
        return any(value == allowed and type(value) is type(allowed) for allowed in schema["enum"])
    check = _CHECKS.get(schema.get("type", ""))
    return check is None or check(value, schema, definitions)


def can_draw(schema: Schema, definitions: Schema, _above: frozenset[str] = frozenset()) -> bool:
    """Whether ``Drawing`` can draw a value: not where a format is asked for, nor where a type never ends."""
    name = schema.get("$ref")
    if name in _above:
        return False
    above = _above | {name} if name else _above
    schema = resolved(schema, definitions)
    if "anyOf" in schema:
        return any(can_draw(option, definitions, above) for option in schema["anyOf"])
    if "enum" in schema:
        return True
    kind = schema.get("type")
    if kind == "string":
        return not {"pattern", "format", "contentEncoding"} & set(schema)
    if kind == "array":
        items = [*schema.get("prefixItems", ()), *_items(schema)[: schema.get("minItems", 0)]]
        return all(can_draw(item, definitions, above) for item in items)
    if kind == "object":
        properties = schema.get("properties", {})
        return all(can_draw(properties.get(key, {}), definitions, above) for key in schema.get("required", ()))
    return True


def resolved(schema: Schema, definitions: Schema) -> Schema:
    """The schema itself, or the one it refers to."""
    while "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    return schema


class Drawing:
    """Draws values of schemas for which ``can_draw`` holds."""

    def __init__(self, random: np.random.Generator, definitions: Schema, draw_text: DrawText) -> None:
        self._random = random
        self._definitions = definitions
        self._draw_text = draw_text

    def draw(self, schema: Schema, depth: int = 0) -> Any:
        """A value that fits ``schema``."""
        schema = resolved(schema, self._definitions)
        if "anyOf" in schema:
            options = [option for option in schema["anyOf"] if can_draw(option, self._definitions)]
            return self.draw(options[-1] if depth >= _DEEP else self._one_of(options), depth + 1)
        if "enum" in schema:
            return self._one_of(schema["enum"])
        draw: Callable[[Schema, int], Any] = getattr(self, f"_{schema.get('type', 'string')}")
        return draw(schema, depth)

    def _one_of(self, values: Any) -> Any:
        return values[int(self._random.integers(len(values)))]

    def _count(self, low: int, high: int | None, depth: int) -> int:
        most = low if depth >= _DEEP else low + _FEW
        return int(self._random.integers(low, most if high is None else min(high, most), endpoint=True))

    def _null(self, schema: Schema, depth: int) -> None:
        """The only value there is."""

    def _boolean(self, schema: Schema, depth: int) -> bool:  # noqa: ARG002 - one signature for all types
        return bool(self._random.integers(2))

    def _string(self, schema: Schema, depth: int) -> str:  # noqa: ARG002
        return self._draw_text(schema.get("minLength", 0), schema.get("maxLength"))

    def _integer(self, schema: Schema, depth: int) -> int:  # noqa: ARG002
        low, high = _bounds(schema, exclusive=1)
        return int(self._multiple(low, high, schema.get("multipleOf", 1)))

    def _number(self, schema: Schema, depth: int) -> float:  # noqa: ARG002
        low, high = _bounds(schema, exclusive=0)
        drawn = low
        while not _in_range(drawn, schema):
            step = schema.get("multipleOf")
            drawn = float(self._random.uniform(low, high) if step is None else self._multiple(low, high, step))
        return float(drawn)

    def _multiple(self, low: float, high: float, step: Any) -> Any:
        return int(self._random.integers(math.ceil(low / step), math.floor(high / step), endpoint=True)) * step

    def _array(self, schema: Schema, depth: int) -> list[Any]:
        prefix = schema.get("prefixItems", [])
        more = [item for item in _items(schema) if can_draw(item, self._definitions)]
        count = 0
        if more:
            left = max(0, schema.get("minItems", 0) - len(prefix))
            most = schema["maxItems"] - len(prefix) if "maxItems" in schema else None
            count = self._count(left, most, depth)
        return [self.draw(item, depth + 1) for item in [*prefix, *more[:1] * count]]

    def _object(self, schema: Schema, depth: int) -> dict[str, Any]:
        properties, required = schema.get("properties", {}), schema.get("required", ())
        drawn = {}
        for name, value in properties.items():
            may = depth < _DEEP and can_draw(value, self._definitions) and self._random.integers(2)
            if name in required or may:
                drawn[name] = self.draw(value, depth + 1)
        values = schema.get("additionalProperties")
        if isinstance(values, Mapping) and can_draw(values, self._definitions):
            for _ in range(self._count(schema.get("minProperties", 0), schema.get("maxProperties"), depth)):
                drawn[self._draw_text(1, None)] = self.draw(values, depth + 1)
        return drawn


def _items(schema: Schema) -> list[Schema]:
    items = schema.get("items", {"type": "null"})
    return [items] if isinstance(items, Mapping) else []


def _bounds(schema: Schema, *, exclusive: int) -> tuple[Any, Any]:
    """Low and high; an exclusive bound is moved inwards by ``exclusive``, a missing one put at some distance."""
    low, high = schema.get("minimum"), schema.get("maximum")
    if "exclusiveMinimum" in schema:
        low = schema["exclusiveMinimum"] + exclusive
    if "exclusiveMaximum" in schema:
        high = schema["exclusiveMaximum"] - exclusive
    if low is None:
        low = min(0, high or 0) - _SPREAD
    return low, max(0, low) + _SPREAD if high is None else high


def _in_range(value: Any, schema: Schema) -> bool:
    return (
        schema.get("minimum", value) <= value <= schema.get("maximum", value)
        and ("exclusiveMinimum" not in schema or value > schema["exclusiveMinimum"])
        and ("exclusiveMaximum" not in schema or value < schema["exclusiveMaximum"])
        and ("multipleOf" not in schema or value % schema["multipleOf"] == 0)
    )


def _fits_integer(value: Any, schema: Schema, definitions: Schema) -> bool:  # noqa: ARG001 - one signature for all
    return isinstance(value, int) and not isinstance(value, bool) and _in_range(value, schema)


def _fits_number(value: Any, schema: Schema, definitions: Schema) -> bool:  # noqa: ARG001
    return isinstance(value, int | float) and not isinstance(value, bool) and _in_range(value, schema)


def _fits_string(value: Any, schema: Schema, definitions: Schema) -> bool:  # noqa: ARG001
    return (
        isinstance(value, str)
        and schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value))
        and ("pattern" not in schema or re.search(schema["pattern"], value) is not None)
    )


def _fits_array(value: Any, schema: Schema, definitions: Schema) -> bool:
    if not isinstance(value, list | tuple):
        return False
    if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
        return False
    prefix, items = schema.get("prefixItems", ()), schema.get("items", {})
    rest = value[len(prefix) :]
    return all(fits(item, kind, definitions) for item, kind in zip(value, prefix, strict=False)) and (
        all(fits(item, items, definitions) for item in rest) if isinstance(items, Mapping) else not rest
    )


def _fits_object(value: Any, schema: Schema, definitions: Schema) -> bool:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        return False
    if not schema.get("minProperties", 0) <= len(value) <= schema.get("maxProperties", len(value)):
        return False
    properties, others = schema.get("properties", {}), schema.get("additionalProperties", {})
    return all(key in value for key in schema.get("required", ())) and all(
        fits(item, properties[key], definitions)
        if key in properties
        else isinstance(others, Mapping) and fits(item, others, definitions)
        for key, item in value.items()
    )


_CHECKS: dict[str, Callable[[Any, Schema, Schema], bool]] = {
    "null": lambda value, schema, definitions: value is None,  # noqa: ARG005
    "boolean": lambda value, schema, definitions: isinstance(value, bool),  # noqa: ARG005
    "integer": _fits_integer,
    "number": _fits_number,
    "string": _fits_string,
    "array": _fits_array,
    "object": _fits_object,
}
