"""The model ``human``: a person reads the prompt at a terminal and answers in the tools' text grammar."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from dgym.errors import PersonLeft
from dgym.llm.calls import describe_tools
from dgym.llm.protocol import Message, ModelCall, Reply, ToolDefinition, Usage
from dgym.llm.tokens import TokenCounter

NAME = "human"

_PROMPT = "model> "
_MORE = ".....> "
_CODE, _END_OF_CODE = "<c>", "</c>"
_TITLES = {"system": "System", "user": "User", "assistant": "You said", "tool": "Result"}


class Terminal(Protocol):
    """The person's terminal."""

    async def read(self, prompt: str) -> str | None:
        """The next line; None at the end of the input."""
        ...

    def show(self, text: str, style: str = "") -> None:
        """Print ``text``."""
        ...


OpenTerminal = Callable[[Mapping[str, Mapping[str, Any]]], Terminal]
"""Opens the terminal, given the tools by name, which it may complete."""


class HumanModel:
    """Implements ``dgym.llm.Model``."""

    name = NAME
    context_limit: int | None = None
    reply_limit: int | None = None
    interactive = True

    def __init__(self, open_terminal: OpenTerminal) -> None:
        self._open_terminal = open_terminal
        self._terminal: Terminal | None = None
        self._shown: dict[str, Sequence[Message]] = {}
        self._calls = 0
        self._counter = TokenCounter()

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolDefinition],
        *,
        session: str,
        seed: int | None = None,  # noqa: ARG002 - people have neither seed nor temperature
        temperature: str | None = None,  # noqa: ARG002
    ) -> Reply:
        """Show new messages and read a line as the reply; a line that does not begin with a tool's name is plain text.

        Raises:
            PersonLeft: ``quit``, or the end of the input.
        """
        started = time.monotonic()
        named = {str(tool["name"]): tool for tool in tools}
        terminal = self._terminal = self._terminal or self._open_terminal(named)
        self._show_new(terminal, messages, session)
        while not (text := await _read(terminal)) or text == "help":
            if text == "help":
                terminal.show(describe_tools(tools))
        if text in ("quit", "exit"):
            raise PersonLeft("the person who played the model has left")
        self._calls += 1
        words = text.split(maxsplit=1)
        is_call = words[0] in named or text.startswith("{")
        call = ModelCall(id=f"human-{self._calls}", tool=words[0] if words[0] in named else "", raw=text)
        return Reply(
            text="" if is_call else text,
            calls=(call,) if is_call else (),
            usage=Usage(
                input_tokens=self.count_tokens(messages, tools),
                output_tokens=self._counter.count_reply(text),
                exact=False,
            ),
            seconds_model=round(time.monotonic() - started, 6),
        )

    def count_tokens(self, messages: Sequence[Message], tools: Sequence[ToolDefinition] = ()) -> int:
        """Estimate the tokens of a request."""
        return self._counter.count(messages, tools)

    def release(self, session: str) -> None:
        """Forget what was shown of the episode."""
        self._shown.pop(session, None)

    async def close(self) -> None:
        """There is nothing to close."""

    def _show_new(self, terminal: Terminal, messages: Sequence[Message], session: str) -> None:
        """Show only messages that differ from those shown before."""
        before = self._shown.get(session, ())
        for message in messages:
            if message not in before and message.role != "assistant":
                terminal.show(f"--- {_TITLES[message.role]}", "title")
                terminal.show(message.content)
        self._shown[session] = tuple(messages)


async def _read(terminal: Terminal) -> str:
    """One reply; it goes on over several lines while code between ``<c>`` and ``</c>`` is open."""
    line = await terminal.read(_PROMPT)
    while line is not None and _CODE in line and _END_OF_CODE not in line:
        more = await terminal.read(_MORE)
        line = None if more is None else f"{line}\n{more}"
    if line is None:
        raise PersonLeft("the input of the person who played the model has ended")
    return line.strip()
