"""The base class of tools, the parsing of calls, and the registry of tools.

Tools are loaded by the name of an entry point of the group ``dgym.tools``, by dotted path, or from a class.
"""

import importlib
import re
import sys
from collections.abc import Mapping, Sequence
from functools import cached_property
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any, ClassVar, Protocol

import msgspec

from dgym.decoding import DECODE_ERRORS
from dgym.errors import ManifestError, PluginError
from dgym.lazy import installed
from dgym.tools._context import ToolContext, ToolError, ToolResult, did_you_mean, split_words
from dgym.tools._schema import Signature, describe_signature, read_signature
from dgym.wire import ToolCall

_FORM = 'An action is {"tool": NAME, "arguments": {...}} or a line of text that begins with a tool\'s name.'
_WORD_START = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
GROUP = "dgym.tools"
_CAPITAL = re.compile(r"(?<!^)(?=[A-Z])")


class Tool:
    """The base class of tools. A subclass must define ``use`` and a docstring; everything else has a default.

    Attributes:
        name: Name of the tool in calls. Default: the class name in snake_case.
        mutates: Whether a replay into a new sandbox must execute the call again. Set it to False only if the tool never
            changes files, processes or breakpoints.
        verbatim: The parameter that takes the rest of the line, without quotes, in the text form of a call.
        examples: Calls in text form, which the instructions show.
        after_rewrites: Number of successful rewrites after which the tool is offered. Default: 0, from the beginning.
        setup_commands: Shell commands that run in the workspace of each of the agent's sandboxes, before the tool is
            used.
    """

    name: ClassVar[str] = ""
    mutates: ClassVar[bool] = True
    verbatim: ClassVar[str | None] = None
    examples: ClassVar[tuple[str, ...]] = ()
    after_rewrites: int = 0
    setup_commands: Sequence[str] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" not in cls.__dict__:
            cls.name = _WORD_START.sub("_", cls.__name__).lower()

    async def use(self, context: ToolContext, *args: Any, **kwargs: Any) -> str | ToolResult:
        """Execute a call and return the observation.

        Raises:
            ToolError: The call has a mistake that the model can correct.
        """
        raise NotImplementedError

    async def on_reset(self, context: ToolContext) -> str | None:  # noqa: ARG002 - for subclasses
        """Called once when the tool becomes available. A returned text is added to the observation of that step."""
        return None

    async def on_rewrite(self, context: ToolContext, path: str) -> str | ToolResult | None:  # noqa: ARG002
        """Called after a tool changed ``path``. A returned text or result is added to the observation of that step."""
        return None

    @cached_property
    def signature(self) -> Signature:
        """The parameters of ``use``. Raises TypeError if the signature or the docstring is missing or unusable."""
        kind = type(self)
        if kind.use is Tool.use or not iscoroutinefunction(kind.use):
            raise TypeError(f"{kind.__name__} needs a method `async def use(self, context, ...)`")
        signature = read_signature(kind.use, owner=kind, skip=2)
        if not signature.description:
            raise TypeError(f"{kind.__name__} needs a docstring: it is the description of the tool for the model")
        if self.verbatim is not None and self.verbatim not in signature.names:
            raise TypeError(f"{kind.__name__}.verbatim is {self.verbatim!r}, which is not a parameter of its use()")
        return signature

    @property
    def description(self) -> str:
        """Description of the tool, for users and for the model."""
        return self.signature.description

    @property
    def parameters(self) -> dict[str, Any]:
        """JSON Schema of the arguments, in the format of function calling APIs."""
        return self.signature.json_schema

    @property
    def instructions(self) -> str:
        """Text about the tool for the prompt of an agent."""
        lines = [self.description, "", describe_signature(self.name, self.signature)]
        if self.examples:
            quoting = "" if self.verbatim else ", words with spaces quoted as in a shell"
            lines += [f"As one line of text{quoting}:", *(f"  {example}" for example in self.examples)]
        return "\n".join(lines)

    def parse_text(self, rest: str) -> dict[str, Any]:
        """Parse the text after the tool's name and return the arguments. They are not validated yet.

        Raises:
            ToolError: The text cannot be parsed.
        """
        if self.verbatim is not None:
            return {self.verbatim: rest.strip()} if rest.strip() else {}
        try:
            return self.signature.from_words(split_words(rest))
        except ValueError as error:
            usage = describe_signature(self.name, self.signature)
            raise ToolError(f"{self.name}: {error}\n{usage}") from None


def parse_action(action: str | Mapping[str, Any], tools: Mapping[str, Tool]) -> ToolCall:
    """Parse an action, which is a line of text or a mapping. The arguments are validated by ``validate_arguments``.

    Raises:
        ToolError: The action cannot be parsed, or its tool does not exist.
    """
    if isinstance(action, str):
        return _parse_line(action, tools)
    if isinstance(action, Mapping):
        return _parse_mapping(action, tools)
    raise ToolError(f"An action cannot be {type(action).__name__}. {_FORM}")


def validate_arguments(tool: Tool, call: ToolCall) -> dict[str, Any]:
    """Return the validated arguments of a call.

    Raises:
        ToolError: At least one argument is invalid. The message lists all problems and the valid arguments.
    """
    values, problems = tool.signature.check(call.arguments)
    if problems:
        found = "\n".join(f"{tool.name}: {problem}" for problem in problems)
        raise ToolError(f"{found}\n{describe_signature(tool.name, tool.signature)}")
    return values


def find_tool(name: Any, tools: Mapping[str, Tool]) -> Tool:
    """Return the tool with this name.

    Raises:
        ToolError: The tool does not exist. The message lists the existing tools.
    """
    if isinstance(name, str) and name in tools:
        return tools[name]
    shown = str(name)[:80].encode("utf-8", "replace").decode()
    raise ToolError(f"Unknown tool `{shown}`.{did_you_mean(shown, tools)} Tools: {', '.join(sorted(tools))}.")


def _parse_line(line: str, tools: Mapping[str, Tool]) -> ToolCall:
    line = line.strip()
    if not line:
        raise ToolError(f"The action is empty. {_FORM}\nTools: {', '.join(sorted(tools))}.")
    if line.startswith("{"):
        try:
            decoded = msgspec.json.decode(line.encode("utf-8", "replace"), type=dict[str, Any])
        except DECODE_ERRORS as error:
            raise ToolError(f"The action begins with a brace but is not JSON: {error}. {_FORM}") from None
        return _parse_mapping(decoded, tools)
    words = line.split(maxsplit=1)
    tool = find_tool(words[0], tools)
    return ToolCall(tool=tool.name, arguments=tool.parse_text(words[1] if len(words) > 1 else ""))


def _parse_mapping(action: Mapping[str, Any], tools: Mapping[str, Tool]) -> ToolCall:
    unknown = [str(key) for key in action if key not in ("tool", "arguments")]
    if unknown or "tool" not in action:
        wrong = f"has no field `{unknown[0]}`" if unknown else "must name its tool"
        raise ToolError(f"The action {wrong}. {_FORM}")
    tool = find_tool(action["tool"], tools)
    arguments = action.get("arguments")
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, Mapping) or not all(isinstance(key, str) for key in arguments):
        raise ToolError(f"The arguments of {tool.name} must be an object. {_FORM}")
    return ToolCall(tool=tool.name, arguments=dict(arguments))


class NamedTool(Protocol):
    """A tool in a manifest: ``{name, options}``."""

    @property
    def name(self) -> str:
        """The name of an entry point of the group ``dgym.tools``, or a dotted path."""
        ...

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments of the tool's constructor, in camelCase."""
        ...


def available_tools() -> tuple[str, ...]:
    """Return the names of all installed tools, sorted."""
    return tuple(sorted(installed(GROUP)))


def load_tools(specs: Sequence["str | NamedTool | type[Tool] | Tool"]) -> list[Tool]:
    """Return an instance for each entry of ``tools[]``.

    Raises:
        PluginError: A tool cannot be loaded, or two tools have the same name.
        ManifestError: The options of a tool are invalid.
    """
    tools = [_load(spec) for spec in specs]
    for tool in tools:
        _check_setup(tool)
    names = [tool.name for tool in tools]
    for name in names:
        if names.count(name) > 1:
            raise PluginError(f"Two tools are named `{name}`; a call would be ambiguous.")
    return tools


def _check_setup(tool: Tool) -> None:
    commands: Any = tool.setup_commands
    if not isinstance(commands, list | tuple) or not all(isinstance(command, str) and command for command in commands):
        raise PluginError(f"Tool `{tool.name}`: setup_commands is {commands!r}; it must be a list of shell lines.")


def load_tool(name: str, options: dict[str, Any] | None = None) -> Tool:
    """Return an instance of the tool with this name or dotted path.

    Raises:
        PluginError: The tool does not exist or cannot be loaded.
        ManifestError: ``options`` are invalid.
    """
    found = _find(name)
    if not (isinstance(found, type) and issubclass(found, Tool)):
        raise PluginError(f"Tool `{name}` cannot be used: {found!r} is not a subclass of dgym.Tool.")
    return _make(name, found, options or {})


def _load(spec: "str | NamedTool | type[Tool] | Tool") -> Tool:
    if isinstance(spec, Tool):
        return spec
    if isinstance(spec, type):
        return _make(spec.__name__, spec, {})
    if isinstance(spec, str):
        return load_tool(spec)
    return load_tool(spec.name, spec.options)


def _find(name: str) -> object:
    entry = installed(GROUP).get(name)
    try:
        if entry is not None:
            return entry.load()
        if ":" in name:
            return import_dotted(name)
    except Exception as error:
        raise PluginError(f"Tool `{name}` cannot be loaded: {type(error).__name__}: {error}") from error
    raise PluginError(
        f"Unknown tool `{name}`.{did_you_mean(name, installed(GROUP))} Installed: {', '.join(available_tools())}; "
        "or give a dotted path `package.module:Class`."
    )


def import_dotted(path: str) -> object:
    """Import ``package.module:Class``. The current directory is appended to the module search path."""
    module, _, attribute = path.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    found: object = importlib.import_module(module)
    for part in attribute.split("."):
        found = getattr(found, part)
    return found


def _make(name: str, kind: type[Tool], options: dict[str, Any]) -> Tool:
    arguments = _check_options(name, kind, options)
    try:
        tool = kind(**arguments)
        tool.signature  # noqa: B018 - raises TypeError now, and not at the first call, if the tool is invalid
    except Exception as error:
        raise PluginError(f"Tool `{name}` cannot be used: {type(error).__name__}: {error}") from error
    return tool


def read_options(kind: type[Tool]) -> Signature:
    """Return the options of a tool. Their names are in camelCase, as in manifests."""
    if kind.__init__ is object.__init__:
        return Signature(description="", parameters=())
    signature = read_signature(kind.__init__, owner=kind)
    renamed = [msgspec.structs.replace(each, name=_camel(each.name)) for each in signature.parameters]
    return msgspec.structs.replace(signature, parameters=tuple(renamed))


def describe_options(tool: Tool) -> str:
    """Return a description of the options of a tool, one per line."""
    return describe_signature(tool.name, read_options(type(tool)), noun="options")


def _check_options(name: str, kind: type[Tool], options: dict[str, Any]) -> dict[str, Any]:
    if not options:
        return {}
    signature = read_options(kind)
    if not signature.parameters:
        raise ManifestError(f"Tool `{name}` takes no options, but `{next(iter(options))}` is given; remove it.")
    values, problems = signature.check({_camel(key): value for key, value in options.items()})
    if problems:
        described = describe_signature(name, signature, noun="options")
        raise ManifestError(
            f"Options of tool `{name}`: {' '.join(problems).replace('unknown argument', 'unknown option')}\n{described}"
        )
    return {_CAPITAL.sub("_", key).lower(): value for key, value in values.items()}


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))
