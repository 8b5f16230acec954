"""Gymnasium spaces of observations and actions: texts, plain structured values, and calls of tools.

Gymnasium's own ``Text`` fails on text that is not ASCII, and arrays fit neither a call nor a list of breakpoints. In a
vector environment each of these values becomes a tuple with one item for each environment.
"""

import copyreg
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import msgspec
import numpy as np
from gymnasium.spaces import Space

from dgym.tools import Parameter, Signature, Tool, ToolError

Seed = int | np.random.Generator | None

_LONGEST = 40
"""Characters of a sampled text, unless it must be longer."""
_SPREAD = 100
"""How far numbers without a bound on that side are drawn."""
_DEEP = 4
"""Levels of nested values that are drawn."""
_TRIES = 30
"""How often a value is drawn until it fits its parameter: drawing ignores some constraints of a schema."""
_SURROGATES = range(0xD800, 0xE000)
_CHARACTERS = 0x110000


class UnicodeText(Space[str]):
    """Every text: all that can be encoded as UTF-8, of any length, the empty one included."""

    @property
    def is_np_flattenable(self) -> bool:
        """Texts have no fixed length."""
        return False

    def sample(self, mask: Any = None, probability: Any = None) -> str:  # noqa: ARG002 - of Gymnasium's signature
        """A short text, half of it ASCII and half from all of Unicode."""
        return draw_text(self.np_random)

    def contains(self, x: Any) -> bool:
        """Whether ``x`` is text without halves of surrogate pairs."""
        return isinstance(x, str) and not any("\ud800" <= character <= "\udfff" for character in x)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "UnicodeText()"


class JsonValue(Space[Any]):
    """The plain values (None, numbers, texts, lists, dictionaries) of a Python type; ``sample`` picks an example.

    Args:
        kind: The type as msgspec reads it: ``int | None``, a ``TypedDict`` and so on. Conversions are strict.
        examples: Values of the type.
    """

    def __init__(self, kind: Any, examples: Sequence[Any], seed: Seed = None) -> None:
        super().__init__(seed=seed)
        self.kind = kind
        self.examples = tuple(examples)

    @property
    def is_np_flattenable(self) -> bool:
        """Values have no fixed shape."""
        return False

    def sample(self, mask: Any = None, probability: Any = None) -> Any:  # noqa: ARG002
        """One of the examples."""
        return deepcopy(self.examples[int(self.np_random.integers(len(self.examples)))])

    def contains(self, x: Any) -> bool:
        """Whether ``x`` is a value of the type."""
        return _fits(x, self.kind)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JsonValue) and (self.kind, self.examples) == (other.kind, other.examples)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"JsonValue({self.kind})"


class ToolCalls(Space[dict[str, Any]]):
    """Every call ``{"tool": …, "arguments": {…}}`` that the tools accept.

    ``sample`` makes valid calls only: examples of the tools, and arguments drawn from their schemas. ``words`` are
    texts worth trying, such as the paths of files. A tool is not sampled when one of its arguments can be neither drawn
    nor found in an example.
    """

    def __init__(self, tools: Iterable[Tool], *, words: Sequence[str] = (), seed: Seed = None) -> None:
        super().__init__(seed=seed)
        tools = list(tools)
        # Signatures and examples, not the tools: a space is copied and pickled, a tool may hold what cannot be.
        self.signatures: dict[str, Signature] = {tool.name: tool.signature for tool in tools}
        self.words = tuple(words)
        self._examples = {tool.name: [*_examples(tool)] for tool in tools}
        random = np.random.default_rng(0)
        self._drawn = {name for name, signature in self.signatures.items() if self._draw(signature, random) is not None}
        self._sampled = [name for name in self.signatures if name in self._drawn or self._examples[name]]

    @property
    def is_np_flattenable(self) -> bool:
        """Calls have no fixed shape."""
        return False

    def sample(self, mask: Any = None, probability: Any = None) -> dict[str, Any]:  # noqa: ARG002
        """A valid call of one of the tools, each as likely as the others."""
        name = self._sampled[int(self.np_random.integers(len(self._sampled)))]
        examples = self._examples[name]
        arguments = None
        if name in self._drawn and not (examples and self.np_random.integers(3) == 0):
            arguments = self._draw(self.signatures[name], self.np_random)
        if arguments is None and examples:
            arguments = deepcopy(examples[int(self.np_random.integers(len(examples)))])
        return self.sample() if arguments is None else {"tool": name, "arguments": arguments}

    def contains(self, x: Any) -> bool:
        """Whether ``x`` names a tool and has arguments that it accepts."""
        if not isinstance(x, Mapping) or not x.keys() <= {"tool", "arguments"}:
            return False
        name, arguments = x.get("tool"), x.get("arguments", {})
        signature = self.signatures.get(name) if isinstance(name, str) else None
        if signature is None or not isinstance(arguments, Mapping):
            return False
        return all(isinstance(key, str) for key in arguments) and not signature.check(arguments)[1]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ToolCalls) and self._schemas() == other._schemas()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"ToolCalls({', '.join(self.signatures)})"

    def _schemas(self) -> dict[str, dict[str, Any]]:
        return {name: signature.json_schema for name, signature in self.signatures.items()}

    def _draw(self, signature: Signature, random: np.random.Generator) -> dict[str, Any] | None:
        """Arguments that fit ``signature``; None where one that is required was not found."""
        drawing = _Drawing(random, signature.definitions, self.words)
        arguments = {}
        for parameter in signature.parameters:
            if parameter.required or random.integers(2):
                fitting = drawing.argument(parameter)
                if fitting:
                    arguments[parameter.name] = fitting[0]
                elif parameter.required:
                    return None
        return arguments


class _Drawing:
    """Draws values from the parts of a JSON Schema that most parameters have; the others are met by trying."""

    def __init__(self, random: np.random.Generator, definitions: Mapping[str, Any], words: Sequence[str]) -> None:
        self._random = random
        self._definitions = definitions
        self._words = words

    def argument(self, parameter: Parameter) -> list[Any]:
        """A list with a value that fits ``parameter``, or an empty one."""
        for _ in range(_TRIES):
            value = self._value(parameter.schema, 0)
            if _fits(value, parameter.type):
                return [value]
        return []

    def _value(self, schema: Mapping[str, Any], depth: int) -> Any:
        if "$ref" in schema:
            schema = self._definitions[schema["$ref"].rpartition("/")[2]]
        if depth > _DEEP:
            return None
        if "anyOf" in schema:
            return self._value(self._one_of(schema["anyOf"]), depth)
        if "enum" in schema:
            return self._one_of(schema["enum"])
        match schema.get("type", "string"):
            case "boolean":
                return bool(self._random.integers(2))
            case "integer":
                return int(_multiple(self._random.integers(*_bounds(schema), endpoint=True), schema))
            case "number":
                return float(_multiple(self._random.uniform(*_bounds(schema)), schema))
            case "string":
                return self._text(schema.get("minLength", 0), schema.get("maxLength"))
            case "array":
                count = schema.get("minItems", 0) + int(self._random.integers(2))
                return [self._value(schema.get("items") or {}, depth + 1) for _ in range(count)]
            case "object":
                properties = schema.get("properties", {})
                return {name: self._value(properties[name], depth + 1) for name in schema.get("required", ())}
            case _:
                return None

    def _one_of(self, values: Sequence[Any]) -> Any:
        return values[int(self._random.integers(len(values)))]

    def _text(self, low: int, high: int | None) -> str:
        words = [word for word in self._words if low <= len(word) <= (len(word) if high is None else high)]
        if words and self._random.integers(2):
            return str(self._one_of(words))
        return draw_text(self._random, low, high).replace("\0", "0")


def draw_text(random: np.random.Generator, low: int = 0, high: int | None = None) -> str:
    """A text of at least ``low`` and at most ``high`` characters, half of it ASCII and half from all of Unicode."""
    most = max(low, _LONGEST)
    length = int(random.integers(low, most if high is None else min(most, high), endpoint=True))
    return "".join(_draw_character(random) for _ in range(length))


def _draw_character(random: np.random.Generator) -> str:
    if random.integers(2):
        return chr(int(random.integers(0x20, 0x7F)))
    code = int(random.integers(_CHARACTERS - len(_SURROGATES)))
    return chr(code if code < _SURROGATES.start else code + len(_SURROGATES))


def _bounds(schema: Mapping[str, Any]) -> tuple[Any, Any]:
    """The range a number is drawn from; an exclusive bound is met by trying."""
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    if low is None:
        low = min(0, high or 0) - _SPREAD
    return low, max(0, low) + _SPREAD if high is None else high


def _multiple(number: Any, schema: Mapping[str, Any]) -> Any:
    step = schema.get("multipleOf")
    return number if step is None else number // step * step


def _fits(value: Any, kind: Any) -> bool:
    try:
        msgspec.convert(value, kind)
    except (msgspec.ValidationError, UnicodeEncodeError):
        return False
    return True


def _make_meta(bounds: dict[str, Any]) -> msgspec.Meta:
    return msgspec.Meta(**bounds)


# Spaces are copied and pickled with the types of tools' parameters, and msgspec gives their bounds no way to be.
copyreg.pickle(msgspec.Meta, lambda meta: (_make_meta, (dict(meta.__rich_repr__()),)))


def _examples(tool: Tool) -> Iterable[dict[str, Any]]:
    """The arguments of the tool's own examples, those that are calls of it and valid."""
    for example in tool.examples:
        name, _, rest = example.partition(" ")
        try:
            arguments = tool.parse_text(rest) if name == tool.name else None
        except ToolError:
            continue
        if arguments is not None and not tool.signature.check(arguments)[1]:
            yield arguments
