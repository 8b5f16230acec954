"""Completion for calls typed at a prompt: tools, their arguments, pdb's commands, and paths seen so far."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from dgym.agents.console import META_COMMANDS, PDB_COMMANDS


class CallCompleter(Completer):
    """Completes one line of text. ``paths`` grows with what observations mention."""

    def __init__(self, tools: Mapping[str, Mapping[str, Any]]) -> None:
        self._tools = tools
        self.paths: set[str] = set()

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:  # noqa: ARG002
        """Completions for the word before the cursor."""
        text = document.text_before_cursor.lstrip()
        words = text.split(" ")
        word = words[-1]
        for candidate, meta in self._candidates(words):
            if candidate.startswith(word):
                yield Completion(candidate, start_position=-len(word), display_meta=meta)

    def _candidates(self, words: list[str]) -> Iterable[tuple[str, str]]:
        if len(words) == 1:
            for name, tool in sorted(self._tools.items()):
                yield f"{name} ", _first_sentence(tool["description"])
            yield from META_COMMANDS.items()
            return
        name = words[0]
        if name == "help":
            yield from ((tool, "") for tool in sorted(self._tools))
        if name == "pdb" and len(words) == 2:
            yield from ((command, "pdb command") for command in PDB_COMMANDS)
        yield from self._arguments(name, position=len(words) - 2)
        if name in self._tools:
            yield from ((path, "") for path in sorted(self.paths))

    def _arguments(self, name: str, position: int) -> Iterable[tuple[str, str]]:
        """Values that the argument at this place can have, where its schema lists them."""
        parameters = list(self._tools.get(name, {}).get("parameters", {}).get("properties", {}).items())
        if not 0 <= position < len(parameters):
            return
        parameter, schema = parameters[position]
        values = schema.get("enum") or (["true", "false"] if schema.get("type") == "boolean" else [])
        yield from ((str(value), parameter) for value in values)


def _first_sentence(text: str) -> str:
    return text.strip().partition("\n")[0].partition(". ")[0][:60]
