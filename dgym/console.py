"""Console input and output for a human debugger: a prompt with completion on a terminal, plain lines on a pipe."""

import asyncio
import codecs
import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from prompt_toolkit.completion import CompleteEvent, Completer, Completion
    from prompt_toolkit.document import Document

from dgym.terminal import printable

_PATH = re.compile(r"(?<![\w./-])(?:[\w.-]+/)*[\w-]+\.[A-Za-z]\w{0,5}\b")
_CODE, _END_OF_CODE = "<c>", "</c>"

META_COMMANDS = {"help": "what the tools do: help [TOOL]", "quit": "end the episode (Ctrl-D)"}
PDB_COMMANDS = (
    *("b", "tbreak", "cl", "condition", "ignore", "enable", "disable", "commands"),
    *("n", "s", "unt", "r", "c", "j", "u", "d", "w", "l", "ll"),
    *("a", "p", "pp", "display", "whatis", "q", "restart"),
)


class Console(Protocol):
    """Reads commands and shows text."""

    async def read(self, prompt: str) -> str | None:
        """Read the next line; None at the end of the input. For a line that was interrupted it returns ""."""
        ...

    def show(self, text: str, style: str = "") -> None:
        """Print ``text``. Styles are "dim", "good", "bad", "title" and "diff"."""
        ...

    def add_completions(self, text: str) -> None:
        """Add the paths in ``text`` to the completions."""
        ...


async def read_block(console: Console, prompt: str, continuation: str) -> str | None:
    """Read the next line, or all lines of code between ``<c>`` and ``</c>``; None at the end of the input."""
    line = await console.read(prompt)
    while line is not None and _CODE in line and _END_OF_CODE not in line:
        more = await console.read(continuation)
        line = None if more is None else f"{line}\n{more}"
    return line


def open_console(
    tools: Mapping[str, Mapping[str, Any]], commands: Mapping[str, str] = MappingProxyType(META_COMMANDS)
) -> Console:
    """Return a console with a prompt if standard input and output are a terminal, else one with plain lines.

    ``commands`` are the commands that are not tools, with their help.
    """
    if sys.stdin.isatty() and sys.stdout.isatty():
        return TerminalConsole(tools, commands)
    return PlainConsole()


class PlainConsole:
    """A console that reads lines from standard input.

    A daemon thread reads them, because a blocking read cannot be cancelled. It uses ``os.read``, because the
    interpreter's exit fails while a thread holds the lock of ``sys.stdin``.
    """

    def __init__(self) -> None:
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._pump, name="dgym-stdin", daemon=True).start()

    async def read(self, prompt: str) -> str | None:
        """Read the next line and print it after the prompt, so that the output is a complete transcript."""
        line = await self._lines.get()
        if line is not None:
            self.show(f"{prompt}{line}")
        return line

    def show(self, text: str, style: str = "") -> None:  # noqa: ARG002 - a pipe has no styles
        """Print ``text``."""
        print(printable(text), flush=True)

    def add_completions(self, text: str) -> None:
        """Do nothing, because a pipe does not support completion."""

    def _pump(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        pending = ""
        while data := os.read(0, 65536):
            *lines, pending = (pending + decoder.decode(data)).split("\n")
            self._put(lines)
        self._put([pending, None] if pending else [None])

    def _put(self, lines: Iterable[str | None]) -> None:
        for line in lines:
            try:
                self._loop.call_soon_threadsafe(self._lines.put_nowait, line)
            except RuntimeError:  # the event loop is closed, so nothing reads the lines
                return


class TerminalConsole:
    """A console with prompt_toolkit: persistent history, completion of tools, arguments and seen paths, colours."""

    def __init__(self, tools: Mapping[str, Mapping[str, Any]], commands: Mapping[str, str]) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.history import FileHistory, History, InMemoryHistory
        from prompt_toolkit.output.vt100 import Vt100_Output
        from prompt_toolkit.shortcuts import CompleteStyle

        self._paths: set[str] = set()
        path = history_path()
        history: History = FileHistory(str(path)) if path is not None else InMemoryHistory()
        # Without cursor position requests and menus that need them: a script at the other end does not answer them.
        output = Vt100_Output.from_pty(sys.stdout, term=os.environ.get("TERM"))
        output.enable_cpr = False
        self._session: PromptSession[str] = PromptSession(
            history=history,
            completer=call_completer(tools, self._paths, commands),
            complete_style=CompleteStyle.READLINE_LIKE,
            complete_while_typing=False,
            output=output,
        )

    async def read(self, prompt: str) -> str | None:
        """Prompt for a line. Ctrl-C discards the line; Ctrl-D ends the input."""
        try:
            return await self._session.prompt_async(prompt)
        except KeyboardInterrupt:
            return ""
        except EOFError:
            return None

    def show(self, text: str, style: str = "") -> None:
        """Print ``text`` in colour."""
        print("\n".join(_coloured(line, style) for line in printable(text).split("\n")), flush=True)

    def add_completions(self, text: str) -> None:
        """Add the paths in ``text`` to the completions."""
        self._paths.update(_PATH.findall(text))


def call_completer(
    tools: Mapping[str, Mapping[str, Any]],
    paths: set[str],
    commands: Mapping[str, str] = MappingProxyType(META_COMMANDS),
) -> "Completer":
    """Return a completer of lines at the prompt. ``paths`` may be extended later."""
    from prompt_toolkit.completion import Completer, Completion

    class CallCompleter(Completer):
        def get_completions(self, document: "Document", complete_event: "CompleteEvent") -> "Iterator[Completion]":  # noqa: ARG002
            """Yield completions of the word before the cursor."""
            words = document.text_before_cursor.lstrip().split(" ")
            for candidate, meta in _candidates(words, tools, paths, commands):
                if candidate.startswith(words[-1]):
                    yield Completion(candidate, start_position=-len(words[-1]), display_meta=meta)

    return CallCompleter()


def _candidates(
    words: list[str], tools: Mapping[str, Mapping[str, Any]], paths: Iterable[str], commands: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Yield candidates for the last of ``words``, each with a short description: tools, values of arguments, paths."""
    name = words[0]
    if len(words) == 1:
        for tool, about in sorted(tools.items()):
            yield f"{tool} ", _first_sentence(about["description"])
        yield from commands.items()
        return
    if name == "help":
        yield from ((tool, "") for tool in sorted(tools))
    if name == "pdb" and len(words) == 2:
        yield from ((command, "pdb command") for command in PDB_COMMANDS)
    if name in tools:
        yield from _argument_values(tools[name], position=len(words) - 2)
        yield from ((path, "") for path in sorted(paths))


def _argument_values(tool: Mapping[str, Any], position: int) -> Iterator[tuple[str, str]]:
    """Yield the values of the argument at ``position``, if its schema lists them."""
    parameters = list(tool.get("parameters", {}).get("properties", {}).items())
    if position < len(parameters):
        parameter, schema = parameters[position]
        values = schema.get("enum") or (["true", "false"] if schema.get("type") == "boolean" else [])
        yield from ((str(value), parameter) for value in values)


def _first_sentence(text: str) -> str:
    return text.strip().partition("\n")[0].partition(". ")[0][:60]


_COLOURS = {"dim": "2", "good": "32", "bad": "31", "title": "1;36"}


def _coloured(line: str, style: str) -> str:
    code = _COLOURS.get(style, "")
    if style == "diff":
        code = {"+": "32", "-": "31", "@": "36"}.get(line[:1], "")
    return f"\x1b[{code}m{line}\x1b[0m" if code and line and "NO_COLOR" not in os.environ else line


def history_path() -> Path | None:
    """Return the history file in the user's state directory; None if it cannot be written."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    path = Path(state).expanduser() / "dgym" / "history"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
    except OSError:
        return None
    return path
