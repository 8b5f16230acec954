"""The base of all tools: one class with one ``use`` method, from which everything else is derived.

A tool's schema comes from the typed signature of ``use`` and its docstring, so that a tool of ten lines is complete
and its description cannot drift from what it accepts::

    class WordCount(Tool):
        \"\"\"Count the words of a file.\"\"\"

        async def use(self, context, path: str) -> str:
            return f"{len((await context.read_text(path)).split())} words"

Tools run on the trusted side; everything they know of the repository comes through ``ToolContext``.
"""

import re
from functools import cached_property
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, ClassVar

from dgym.tools.answers import ToolError, ToolResult
from dgym.tools.schema import Signature, describe_signature, read_signature
from dgym.tools.text import split_words

if TYPE_CHECKING:
    from dgym.tools.context import ToolContext

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
    """

    name: ClassVar[str] = ""
    mutates: ClassVar[bool] = True
    verbatim: ClassVar[str | None] = None
    examples: ClassVar[tuple[str, ...]] = ()
    after_rewrites: int = 0

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" not in cls.__dict__:
            cls.name = _WORD_START.sub("_", cls.__name__).lower()

    async def use(self, context: "ToolContext", *args: Any, **kwargs: Any) -> str | ToolResult:
        """Execute a call. Raise ``ToolError`` for mistakes that the model can correct."""
        raise NotImplementedError

    async def on_reset(self, context: "ToolContext") -> str | None:  # noqa: ARG002 - for subclasses
        """Called once when the tool becomes available; the returned text is added to that observation."""
        return None

    async def on_rewrite(self, context: "ToolContext", path: str) -> str | ToolResult | None:  # noqa: ARG002
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
        """What an agent's prompt says about this tool."""
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
