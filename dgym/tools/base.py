"""The base of all tools: one class with one ``use`` method, from which everything else is derived; and their calls.

A tool's schema comes from the typed signature of ``use`` and its docstring, so that a tool of ten lines is complete
and its description cannot drift from what it accepts::

    class WordCount(Tool):
        \"\"\"Count the words of a file.\"\"\"

        async def use(self, context, path: str) -> str:
            return f"{len((await context.read_text(path)).split())} words"

Tools run on the trusted side; everything they know of the repository comes through ``ToolContext``.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from inspect import iscoroutinefunction
from typing import Any, ClassVar

import msgspec

from dgym.decoding import DECODE_ERRORS
from dgym.tools.context import ToolContext, ToolError, ToolResult
from dgym.tools.schema import Signature, describe_signature, read_signature
from dgym.tools.text import nearest, split_words
from dgym.wire import ToolCall

_FORM = 'An action is {"tool": NAME, "arguments": {...}} or a line of text that begins with a tool\'s name.'
_WORD_START = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


class Tool:
    """Base of all tools. Subclasses write ``use`` and a docstring; the rest has good defaults.

    Attributes:
        name: What a call names; by default the class's name in snake_case.
        mutates: Whether a replay into a new sandbox must execute the call again. Only tools that certainly leave
            files, processes and breakpoints alone may say False.
        verbatim: The parameter that takes the rest of the line, unquoted, in the text form of a call.
        examples: Calls in text form, shown in the instructions.
        after_rewrites: Successful rewrites before the tool becomes available; until then it is not listed.
        setup_commands: Shell lines that run in the workspace of each of the agent's sandboxes before the tool is used.
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
        """Execute a call. Raise ``ToolError`` for mistakes that the model can correct."""
        raise NotImplementedError

    async def on_reset(self, context: ToolContext) -> str | None:  # noqa: ARG002 - for subclasses
        """Called once when the tool becomes available; the returned text is added to that observation."""
        return None

    async def on_rewrite(self, context: ToolContext, path: str) -> str | ToolResult | None:  # noqa: ARG002
        """Called after a tool changed ``path``; the returned text or result is added to that observation."""
        return None

    @cached_property
    def signature(self) -> Signature:
        """Parameters of ``use``; ``TypeError`` when the class has no usable signature or docstring."""
        kind = type(self)
        if kind.use is Tool.use or not iscoroutinefunction(kind.use):
            raise TypeError(f"{kind.__name__} needs a method `async def use(self, context, ...)`")
        signature = read_signature(kind.use, owner=kind, skip=2)
        if not signature.description:
            raise TypeError(f"{kind.__name__} needs a docstring: it is what a model reads of the tool")
        if self.verbatim is not None and self.verbatim not in signature.names:
            raise TypeError(f"{kind.__name__}.verbatim is {self.verbatim!r}, which is not a parameter of its use()")
        return signature

    @property
    def description(self) -> str:
        """What the tool does, for people and models."""
        return self.signature.description

    @property
    def parameters(self) -> dict[str, Any]:
        """JSON Schema of the arguments, as function calling APIs take it."""
        return self.signature.json_schema

    @property
    def instructions(self) -> str:
        """The text about this tool for an agent's prompt."""
        lines = [self.description, "", describe_signature(self.name, self.signature)]
        if self.examples:
            quoting = "" if self.verbatim else ", words with spaces quoted as in a shell"
            lines += [f"As one line of text{quoting}:", *(f"  {example}" for example in self.examples)]
        return "\n".join(lines)

    def parse_text(self, rest: str) -> dict[str, Any]:
        """Arguments from what follows the tool's name in a line of text; ``ToolError`` when it has another form."""
        if self.verbatim is not None:
            return {self.verbatim: rest.strip()} if rest.strip() else {}
        try:
            return self.signature.from_words(split_words(rest))
        except ValueError as error:
            usage = describe_signature(self.name, self.signature)
            raise ToolError(f"{self.name}: {error}\n{usage}") from None


def parse_action(action: str | Mapping[str, Any], tools: Mapping[str, Tool]) -> ToolCall:
    """The call that ``action`` means; its arguments are not checked yet (see ``validate_arguments``)."""
    if isinstance(action, str):
        return _parse_line(action, tools)
    if isinstance(action, Mapping):
        return _parse_mapping(action, tools)
    raise ToolError(f"An action cannot be {type(action).__name__}. {_FORM}")


def validate_arguments(tool: Tool, call: ToolCall) -> dict[str, Any]:
    """Checked arguments, or a ``ToolError`` that names everything that is wrong and what is valid."""
    values, problems = tool.signature.check(call.arguments)
    if problems:
        found = "\n".join(f"{tool.name}: {problem}" for problem in problems)
        raise ToolError(f"{found}\n{describe_signature(tool.name, tool.signature)}")
    return values


def find_tool(name: Any, tools: Mapping[str, Tool]) -> Tool:
    """The tool of that name, or a ``ToolError`` that lists those there are."""
    if isinstance(name, str) and name in tools:
        return tools[name]
    shown = str(name)[:80].encode("utf-8", "replace").decode()
    raise ToolError(f"There is no tool `{shown}`.{nearest(shown, tools)} Tools: {', '.join(sorted(tools))}.")


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
