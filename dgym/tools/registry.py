"""Finding tools by name: entry points of the group ``dgym.tools``, dotted paths, or the classes themselves."""

import importlib
import re
import sys
from collections.abc import Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Protocol

import msgspec

from dgym.errors import ManifestError, PluginError
from dgym.tools.base import Tool
from dgym.tools.schema import Signature, describe_signature, read_signature
from dgym.tools.text import nearest

GROUP = "dgym.tools"
_CAPITAL = re.compile(r"(?<!^)(?=[A-Z])")


class NamedTool(Protocol):
    """A tool as manifests name it: ``{name, options}``."""

    @property
    def name(self) -> str:
        """A name of the group ``dgym.tools`` or a dotted path."""
        ...

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments of the tool's constructor, in camelCase."""
        ...


def available_tools() -> tuple[str, ...]:
    """Names of all installed tools."""
    return tuple(sorted(_installed()))


def load_tools(specs: Sequence["str | NamedTool | type[Tool] | Tool"]) -> list[Tool]:
    """One instance for each entry of ``tools[]``; ``PluginError`` names the one that cannot be loaded."""
    tools = [_load(spec) for spec in specs]
    for tool in tools:
        _check_setup(tool)
    names = [tool.name for tool in tools]
    for name in names:
        if names.count(name) > 1:
            raise PluginError(f"Two tools are named `{name}`; a call could not tell them apart.")
    return tools


def _check_setup(tool: Tool) -> None:
    commands: Any = tool.setup_commands
    if not isinstance(commands, list | tuple) or not all(isinstance(command, str) and command for command in commands):
        raise PluginError(f"Tool `{tool.name}`: setup_commands is {commands!r}; it must be a list of shell lines.")


def load_tool(name: str, options: dict[str, Any] | None = None) -> Tool:
    """The tool of that name or dotted path, made with ``options``."""
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


@cache
def _installed() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def _find(name: str) -> object:
    entry = _installed().get(name)
    try:
        if entry is not None:
            return entry.load()
        if ":" in name:
            return import_dotted(name)
    except Exception as error:
        raise PluginError(f"Tool `{name}` cannot be loaded: {type(error).__name__}: {error}") from error
    raise PluginError(
        f"There is no tool `{name}`.{nearest(name, _installed())} Installed: {', '.join(available_tools())}; "
        "or give a dotted path `package.module:Class`."
    )


def import_dotted(path: str) -> object:
    """Import ``package.module:Class``; modules in the current directory are found too, after everything installed."""
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
        tool.signature  # noqa: B018 - a tool that cannot be described is broken, and is found out here
    except Exception as error:
        raise PluginError(f"Tool `{name}` cannot be used: {type(error).__name__}: {error}") from error
    return tool


def read_options(kind: type[Tool]) -> Signature:
    """The options of a tool, in camelCase as manifests name them."""
    if kind.__init__ is object.__init__:
        return Signature(description="", parameters=())
    signature = read_signature(kind.__init__, owner=kind)
    renamed = [msgspec.structs.replace(each, name=_camel(each.name)) for each in signature.parameters]
    return msgspec.structs.replace(signature, parameters=tuple(renamed))


def describe_options(tool: Tool) -> str:
    """The options of a tool, one a line."""
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
            f"Options of tool `{name}`: {' '.join(problems).replace('no argument', 'no option')}\n{described}"
        )
    return {_CAPITAL.sub("_", key).lower(): value for key, value in values.items()}


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))
