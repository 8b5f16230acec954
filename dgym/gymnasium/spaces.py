"""Spaces of Gymnasium for what episodes are made of: texts, calls of tools, and plain structured values.

Gymnasium's own ``Text`` fails on text that is not ASCII, and arrays fit neither a call nor a list of breakpoints. In a
vector environment each of these values becomes a tuple with one item for each environment.
"""

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
from gymnasium.spaces import Space

from dgym.gymnasium.spaces_json import Drawing, Schema, can_draw, fits
from dgym.tools import Tool, ToolError

_LONGEST = 40
"""Characters of a sampled text, unless it must be longer."""
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
        return isinstance(x, str) and is_unicode(x)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "UnicodeText()"


class JsonValue(Space[Any]):
    """The plain values (None, numbers, texts, lists, dictionaries) that a JSON Schema allows."""

    def __init__(
        self, schema: Schema, definitions: Schema | None = None, seed: int | np.random.Generator | None = None
    ) -> None:
        super().__init__(seed=seed)
        self.schema = dict(schema)
        self.definitions = dict(definitions or {})

    @property
    def is_np_flattenable(self) -> bool:
        """Values have no fixed shape."""
        return False

    def sample(self, mask: Any = None, probability: Any = None) -> Any:  # noqa: ARG002
        """A value of the schema."""
        drawing = Drawing(self.np_random, self.definitions, lambda low, high: draw_text(self.np_random, low, high))
        return drawing.draw(self.schema)

    def contains(self, x: Any) -> bool:
        """Whether the schema allows ``x``."""
        return fits(x, self.schema, self.definitions)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JsonValue) and (self.schema, self.definitions) == (other.schema, other.definitions)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"JsonValue({self.schema})"


class ToolCalls(Space[dict[str, Any]]):
    """Every call ``{"tool": …, "arguments": {…}}`` that the tools accept.

    ``sample`` makes valid calls only: examples of the tools, and arguments drawn from their schemas. ``words`` are
    texts worth trying, such as the paths of files. A tool is not sampled when one of its arguments can be neither drawn
    nor found in an example.
    """

    def __init__(
        self, tools: Iterable[Tool], *, words: Sequence[str] = (), seed: int | np.random.Generator | None = None
    ) -> None:
        super().__init__(seed=seed)
        tools = list(tools)
        # Schemas and examples, not the tools: a space is copied and pickled, a tool may hold what cannot be.
        self.schemas: dict[str, dict[str, Any]] = {tool.name: deepcopy(tool.parameters) for tool in tools}
        self.words = tuple(words)
        self._examples = {tool.name: [*_examples(tool)] for tool in tools}
        self._sampled = [name for name in self.schemas if self._examples[name] or self._can_draw(name)]

    @property
    def is_np_flattenable(self) -> bool:
        """Calls have no fixed shape."""
        return False

    def sample(self, mask: Any = None, probability: Any = None) -> dict[str, Any]:  # noqa: ARG002
        """A valid call of one of the tools, each as likely as the others."""
        name = self._sampled[int(self.np_random.integers(len(self._sampled)))]
        examples = self._examples[name]
        if examples and (not self._can_draw(name) or self.np_random.integers(3) == 0):
            arguments = deepcopy(examples[int(self.np_random.integers(len(examples)))])
        else:
            schema = self.schemas[name]
            arguments = Drawing(self.np_random, schema.get("$defs", {}), self._draw_text).draw(schema)
        return {"tool": name, "arguments": arguments}

    def contains(self, x: Any) -> bool:
        """Whether ``x`` names a tool and has arguments that it accepts."""
        if not isinstance(x, Mapping) or not x.keys() <= {"tool", "arguments"}:
            return False
        name, arguments = x.get("tool"), x.get("arguments", {})
        schema = self.schemas.get(name) if isinstance(name, str) else None
        return schema is not None and fits(arguments, schema, schema.get("$defs", {})) and _is_usable(arguments)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ToolCalls) and self.schemas == other.schemas

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"ToolCalls({', '.join(self.schemas)})"

    def _can_draw(self, name: str) -> bool:
        return can_draw(self.schemas[name], self.schemas[name].get("$defs", {}))

    def _draw_text(self, low: int, high: int | None) -> str:
        words = [word for word in self.words if low <= len(word) <= (len(word) if high is None else high)]
        if words and self.np_random.integers(2):
            return words[int(self.np_random.integers(len(words)))]
        return draw_text(self.np_random, low, high).replace("\0", "0")


def draw_text(random: np.random.Generator, low: int = 0, high: int | None = None) -> str:
    """A text of at least ``low`` and at most ``high`` characters, half of it ASCII and half from all of Unicode."""
    most = max(low, _LONGEST)
    length = int(random.integers(low, most if high is None else min(most, high), endpoint=True))
    return "".join(_draw_character(random) for _ in range(length))


def is_unicode(text: str) -> bool:
    """Whether ``text`` can leave this process: half of a surrogate pair cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _draw_character(random: np.random.Generator) -> str:
    if random.integers(2):
        return chr(int(random.integers(0x20, 0x7F)))
    code = int(random.integers(_CHARACTERS - len(_SURROGATES)))
    return chr(code if code < _SURROGATES.start else code + len(_SURROGATES))


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


def _is_usable(value: Any) -> bool:
    """No tool takes NUL or halves of surrogate pairs, however deep in its arguments."""
    if isinstance(value, str):
        return "\0" not in value and is_unicode(value)
    if isinstance(value, Mapping):
        return all(_is_usable(item) for pair in value.items() for item in pair)
    return not isinstance(value, list | tuple) or all(_is_usable(item) for item in value)
