"""Derives JSON Schemas from typed signatures and docstrings, and validates a model's arguments.

msgspec validates each argument separately, so that one error message can list all problems.
"""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_origin, get_type_hints

import msgspec

from dgym.tools._context import did_you_mean

_ARGUMENT = re.compile(r"^(\w+)(?:\s*\([^)]*\))?:\s*(.*)$")
_SECTIONS = ("Args:", "Returns:", "Raises:", "Yields:", "Attributes:", "Example:", "Examples:", "Note:")
_KINDS = {"integer": "an integer", "number": "a number", "string": "text", "boolean": "true or false", "null": "null"}
_NUMBERS: dict[type, frozenset[str | None]] = {int: frozenset({"integer", "number"}), float: frozenset({"number"})}
"""The JSON Schema types that accept a number, by its Python type."""
_VALUE_KINDS = ((bool, "a truth value"), (int, "an integer"), (float, "a float"), (str, "text"), (list, "a list"))


class ToolParameter(msgspec.Struct, frozen=True, kw_only=True):
    """One parameter of a tool."""

    name: str
    type: Any
    schema: dict[str, Any]
    required: bool
    default: Any = None
    positional: bool = True

    @property
    def is_list(self) -> bool:
        """Whether the parameter takes several words in the text form of a call."""
        return get_origin(self.type) is list

    @property
    def kinds(self) -> list[str | None]:
        """The accepted types, by their names in JSON Schema."""
        return [option.get("type") for option in self.schema.get("anyOf", [self.schema])]

    @property
    def takes_text(self) -> bool:
        """Whether a word in the text form of a call is used unchanged as the value."""
        return "string" in self.kinds or self.kinds == [None]


class Signature(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of a tool or of a tool's constructor."""

    description: str
    parameters: tuple[ToolParameter, ...]
    definitions: dict[str, Any] = {}

    @property
    def names(self) -> list[str]:
        """The names of the parameters, in order."""
        return [parameter.name for parameter in self.parameters]

    @property
    def json_schema(self) -> dict[str, Any]:
        """The JSON Schema of an object with these parameters."""
        schema: dict[str, Any] = {
            "type": "object",
            "properties": {parameter.name: parameter.schema for parameter in self.parameters},
            "required": [parameter.name for parameter in self.parameters if parameter.required],
            "additionalProperties": False,
        }
        return schema | ({"$defs": self.definitions} if self.definitions else {})

    def check(self, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """Validate arguments. ``None`` for an optional argument is the same as leaving it out.

        Returns:
            The valid values, and a sentence per problem.
        """
        problems = [
            f"unknown argument `{name}`.{did_you_mean(str(name), self.names)}"
            for name in arguments
            if name not in self.names
        ]
        values: dict[str, Any] = {}
        for parameter in self.parameters:
            if arguments.get(parameter.name) is not None or (parameter.required and parameter.name in arguments):
                try:
                    values[parameter.name] = _checked(parameter, arguments[parameter.name])
                except ValueError as error:
                    problems.append(str(error))
            elif parameter.required:
                problems.append(f"`{parameter.name}` is missing; it must be {describe(parameter.schema)}.")
        return values, problems

    def from_words(self, words: list[str]) -> dict[str, Any]:
        """Return the arguments for positional words. A list parameter takes all remaining words.

        Words are converted to the type of their parameter if possible. ``check`` validates the result.

        Raises:
            ValueError: There are more words than parameters.
        """
        arguments: dict[str, Any] = {}
        rest = list(words)
        for parameter in self.parameters:
            if not rest or not parameter.positional:
                break
            if parameter.is_list:
                arguments[parameter.name] = [_convert_word(word, parameter.type.__args__[0]) for word in rest]
                rest = []
            else:
                word = rest.pop(0)
                arguments[parameter.name] = (
                    word if parameter.takes_text else _convert_word(word, parameter.type, parameter.kinds)
                )
        if rest:
            raise ValueError(f"too many words, from `{rest[0]}` on. Quote a word that contains spaces, as in a shell.")
        return arguments


def read_signature(function: Callable[..., Any], *, owner: type | None = None, skip: int = 1) -> Signature:
    """Return the signature of ``function`` without its first ``skip`` parameters.

    Args:
        function: A function with type annotations and a Google-style docstring.
        owner: A class whose docstring has the description, and may have an ``Args`` section too.
        skip: Number of leading parameters to leave out.

    Raises:
        TypeError: A parameter cannot be passed by name.
    """
    hints = get_type_hints(function, include_extras=True)
    parameters = list(inspect.signature(function).parameters.values())[skip:]
    for parameter in parameters:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f"parameter `{parameter.name}` must have a name that a call can use")
    types = [hints.get(parameter.name, Any) for parameter in parameters]
    schemas, definitions = msgspec.json.schema_components(types, ref_template="#/$defs/{name}")
    summary, documented = read_docstring(inspect.cleandoc(function.__doc__ or ""))
    if owner is not None and owner.__doc__:
        summary, more = read_docstring(inspect.cleandoc(owner.__doc__))
        documented = more | documented
    return Signature(
        description=summary,
        parameters=tuple(
            _describe_parameter(parameter, kind, schema, documented.get(parameter.name))
            for parameter, kind, schema in zip(parameters, types, schemas, strict=True)
        ),
        definitions=definitions,
    )


def read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Parse a Google-style docstring. Returns the text before its sections, and the arguments by name."""
    summary: list[str] = []
    arguments: dict[str, str] = {}
    section, last, indent = "", "", 0
    for line in text.splitlines():
        if line in _SECTIONS:
            section, last = line, ""
        elif not section:
            summary.append(line)
        elif section == "Args:" and line.strip():
            depth = len(line) - len(line.lstrip())
            found = _ARGUMENT.match(line.strip())
            if found and (not last or depth <= indent):
                last, indent = found[1], depth
                arguments[last] = found[2]
            elif last:
                arguments[last] = f"{arguments[last]} {line.strip()}".strip()
    return "\n".join(summary).strip(), arguments


def describe(schema: Mapping[str, Any]) -> str:
    """Return a JSON Schema as text, such as ``an integer of at least 1 or null``."""
    if "anyOf" in schema:
        return " or ".join(describe(option) for option in schema["anyOf"])
    if "enum" in schema:
        return "one of " + ", ".join(_literal(value) for value in schema["enum"])
    if schema.get("type") == "array":
        items = schema.get("items")
        return f"a list, each item {describe(items)}" if isinstance(items, Mapping) else "a list"
    kind = _KINDS.get(schema.get("type", ""), "an object" if "$ref" in schema else "a value")
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f"{kind} from {low} to {high}"
    if low is not None or high is not None:
        return f"{kind} of at {'least' if high is None else 'most'} {low if high is None else high}"
    return kind


def describe_signature(name: str, signature: Signature, *, noun: str = "arguments") -> str:
    """Return a description of the arguments (or options) of a tool, one per line, for prompts and error messages."""
    if not signature.parameters:
        return f"{name} takes no {noun}."
    lines = [f"{noun.capitalize()} of {name}:"]
    for parameter in signature.parameters:
        kind, default = describe(parameter.schema), f", default {_literal(parameter.default)}"
        if parameter.required:
            default = ""
        elif parameter.default is None:
            default = ", optional"
        text = parameter.schema.get("description", "")
        lines.append(f"  {parameter.name}: {kind}{default}{'. ' + text if text else ''}")
    return "\n".join(lines)


def _describe_parameter(
    parameter: inspect.Parameter, kind: Any, schema: dict[str, Any], text: str | None
) -> ToolParameter:
    required = parameter.default is parameter.empty
    described = dict(schema)
    if not required and parameter.default is None:
        described = _without_null(described)
    elif not required:
        described["default"] = msgspec.to_builtins(parameter.default)
    if text:
        described["description"] = text
    return ToolParameter(
        name=parameter.name,
        type=kind,
        schema=described,
        required=required,
        default=None if required else parameter.default,
        positional=parameter.kind == parameter.POSITIONAL_OR_KEYWORD,
    )


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Remove null from the accepted types. Otherwise models pass null, or the text "null", for optional properties."""
    options: list[dict[str, Any]] = [option for option in schema.get("anyOf", ()) if option.get("type") != "null"]
    rest = {key: value for key, value in schema.items() if key not in ("anyOf", "default")}
    if len(options) == 1:
        return options[0] | rest
    return {"anyOf": options} | rest if options else rest


def _checked(parameter: ToolParameter, value: Any) -> Any:
    if isinstance(value, str) and not parameter.takes_text:
        value = _convert_word(value, parameter.type, parameter.kinds)
    elif isinstance(value, float) and value.is_integer() and "integer" in parameter.kinds:
        value = int(value)
    try:
        checked = msgspec.convert(value, parameter.type)
    except msgspec.ValidationError as error:
        _, found, place = str(error).rpartition("at `$")
        where = f" ({place.removesuffix('`')} is wrong)" if found and place != "`" else ""
        wrong = f"must be {describe(parameter.schema)}, not {_shown(value)}{where}."
        if _NUMBERS.get(type(value), frozenset()).intersection(parameter.kinds):
            wrong = f"is out of range: it {wrong}"
        raise ValueError(f"`{parameter.name}` {wrong}") from None
    _refuse_unusable_text(parameter.name, checked)
    return checked


def _refuse_unusable_text(name: str, value: Any) -> None:
    """Raise ValueError for NUL, which paths cannot contain, and unpaired surrogates, which UTF-8 cannot encode."""
    if isinstance(value, str):
        if "\0" in value:
            raise ValueError(f"`{name}` contains a NUL character; remove it.")
        if any("\ud800" <= character <= "\udfff" for character in value):
            raise ValueError(f"`{name}` contains half of a surrogate pair; it must be valid Unicode text.")
    elif isinstance(value, list | tuple):
        for item in value:
            _refuse_unusable_text(name, item)
    elif isinstance(value, dict):
        for key, item in value.items():
            _refuse_unusable_text(name, key)
            _refuse_unusable_text(name, item)


def _convert_word(word: str, kind: Any, kinds: Sequence[str | None] = ()) -> Any:
    """Convert a word to ``kind``. A number out of range is returned as a number, and other text unchanged.

    ``check`` rejects such values later, with a better message.
    """
    for attempt in (kind, *(plain for plain, names in _NUMBERS.items() if names.intersection(kinds))):
        try:
            return msgspec.convert(word, attempt, strict=False)
        except msgspec.ValidationError:
            continue
    return word


def _literal(value: Any) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError, OverflowError):
        return repr(value)


def _shown(value: Any) -> str:
    text = _literal(value).encode("utf-8", "replace").decode()
    text = text if len(text) <= 80 else text[:77] + "..."
    for kind, words in _VALUE_KINDS:
        if isinstance(value, kind):
            return f"{text} ({words})"
    return text
