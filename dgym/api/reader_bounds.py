"""What would harm whoever builds values from a text, found before anything is built.

A manifest may come from anybody. Depth overflows the stack of who follows it, and ten aliases of ten aliases of … are
more values than any memory holds. Both are seen in the flat sequence of a parser's events. Everything else about a text
costs in proportion to its length.
"""

import re
from collections.abc import Iterator

import msgspec
import yaml

from dgym.api.problems import Problem

DEEPEST = 100
MOST_VALUES = 1_000_000
"""Of one document, keys included; a kilobyte of memory each while it is read."""
MOST_REPEATED = 100_000
"""What the aliases of one document stand for."""

_TOO_DEEP = f"nested more than {DEEPEST} deep; flatten it"
_TOO_MANY = f"more than {MOST_VALUES:,} values; divide it into several documents"
_TOO_OFTEN = f"aliases repeat more than {MOST_REPEATED:,} values; write out what is needed, without aliases of aliases"
_JSON_MARK = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[{\]}]', re.DOTALL)


class _Size(msgspec.Struct, gc=False):
    """How many values a value is, and how many levels, aliases followed."""

    values: int = 1
    levels: int = 0


class _Walk:
    """The events of one document, one after the other."""

    def __init__(self) -> None:
        self._open: list[tuple[_Size, str | None]] = []
        self._anchors: dict[str, _Size] = {}
        self._written = 0
        self._repeated = 0

    def see(self, event: yaml.Event) -> str | None:
        """What is too much from here on."""
        if isinstance(event, yaml.CollectionEndEvent):
            size, anchor = self._open.pop()
            self._close(size, anchor)
        elif isinstance(event, yaml.AliasEvent):
            # Who names what it is part of, or nothing at all, is told so by who reads it.
            size = self._anchors.get(event.anchor or "", _Size())
            self._repeated += size.values
            self._add(size)
            if len(self._open) + size.levels > DEEPEST:
                return _TOO_DEEP
        elif isinstance(event, yaml.NodeEvent):
            self._written += 1
            if isinstance(event, yaml.CollectionStartEvent):
                self._open.append((_Size(levels=1), event.anchor))
            else:
                self._close(_Size(), event.anchor)
        if len(self._open) > DEEPEST:
            return _TOO_DEEP
        if self._written > MOST_VALUES:
            return _TOO_MANY
        return _TOO_OFTEN if self._repeated > MOST_REPEATED else None

    def _close(self, size: _Size, anchor: str | None) -> None:
        if anchor is not None:
            self._anchors[anchor] = size
        self._add(size)

    def _add(self, size: _Size) -> None:
        if self._open:
            holder, _ = self._open[-1]
            holder.values += size.values
            holder.levels = max(holder.levels, 1 + size.levels)


def yaml_excesses(events: Iterator[yaml.Event]) -> Iterator[Problem | None]:
    """For one document after the other what is too much of it; ends where the text is no YAML."""
    walk = _Walk()
    try:
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                walk = _Walk()
            elif isinstance(event, yaml.DocumentEndEvent):
                yield None
            elif (excess := walk.see(event)) is not None:
                yield Problem((), excess, event.start_mark.line + 1 if event.start_mark else None)
                return
    except yaml.YAMLError:
        return


def json_excess(text: str) -> Problem | None:
    """What is too much of a text of JSON: there are no aliases, so only its depth."""
    depth = 0
    for mark in _JSON_MARK.finditer(text):
        first = text[mark.start()]
        if first in "[{":
            depth += 1
            if depth > DEEPEST:
                return Problem((), _TOO_DEEP, text.count("\n", 0, mark.start()) + 1)
        elif first in "]}":
            depth -= 1
    return None
