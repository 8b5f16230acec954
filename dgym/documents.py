"""Text to plain data: YAML (many documents) and JSON, with the line of every field and all duplicate keys; and back.

Unlike PyYAML's defaults, times stay text, and ``12:30`` is text, not a number in base sixty. The module is imported
when a file is read, because yaml is slow to import.

A manifest may come from an untrusted author. Nesting can overflow the stack of code that walks the values, and aliases
of aliases can stand for more values than fit into memory. Both are found in the parser's flat sequence of events before
any value is built. The cost of everything else is proportional to the length of the text.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, ClassVar

import msgspec
import yaml

from dgym.errors import FieldPath, Problem

_Base = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_INTEGER = re.compile(r"^(?:[-+]?0b[01_]+|[-+]?0[0-7_]+|[-+]?(?:0|[1-9][0-9_]*)|[-+]?0x[0-9a-fA-F_]+)$")
_FLOAT = re.compile(r"^(?i:[-+]?[0-9][0-9_]*\.[0-9_]*(?:e[-+]?[0-9]+)?|[-+]?\.[0-9][0-9_]*|[-+]?\.inf|\.nan)$")
_NOTHING = re.compile(r"(?!)")
_PATTERNS = {
    "tag:yaml.org,2002:timestamp": _NOTHING,
    "tag:yaml.org,2002:int": _INTEGER,
    "tag:yaml.org,2002:float": _FLOAT,
}


class _Loader(_Base):  # type: ignore[misc,valid-type]
    yaml_implicit_resolvers: ClassVar[dict[str, list[tuple[str, re.Pattern[str]]]]] = {
        first: [(tag, _PATTERNS.get(tag, pattern)) for tag, pattern in resolvers]
        for first, resolvers in _Base.yaml_implicit_resolvers.items()
    }


class Document(msgspec.Struct):
    """One document: its data, the lines of its fields, and its problems."""

    number: int
    value: Any
    lines: dict[FieldPath, int] = {}
    problems: list[Problem] = []

    def line_of(self, path: FieldPath) -> int | None:
        """The line of the field or, for one that is missing, of what should hold it."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path)


def read_yaml(text: str) -> Iterator[Document]:
    """Every document that is not empty; the first with a syntax error or above a limit is the last."""
    try:
        loader = _Loader(text)
    except (yaml.YAMLError, UnicodeError) as error:
        yield Document(1, None, problems=[Problem((), f"not text: {error}; save it as UTF-8")])
        return
    # In step with the loader: the limits of each document are checked before it is built.
    excesses = yaml_excesses(yaml.parse(text, _Loader))
    number = 1
    try:
        while loader.check_node():
            excess = next(excesses, None)
            if excess is not None:
                yield Document(number, None, problems=[excess])
                return
            node = loader.get_node()
            document = Document(number, None)
            _Survey(document).visit(node, (), ())
            if not document.problems:
                document.value = _constructed(loader, node)
            if document.value is not None or document.problems:
                yield document
            number += 1
    except yaml.MarkedYAMLError as error:
        yield Document(number, None, problems=[_syntax(error)])
    except (yaml.YAMLError, ValueError) as error:
        yield Document(number, None, problems=[Problem((), f"not valid YAML: {error}; correct the syntax")])
    finally:
        loader.dispose()


def _constructed(loader: _Loader, node: yaml.Node) -> Any:
    """The value of a document.

    Raises:
        ValueError: A tag does not fit its value, such as ``!!timestamp soon``, which PyYAML trips over.
    """
    try:
        return loader.construct_document(node)
    except (AttributeError, LookupError, TypeError, OverflowError):
        raise ValueError("a tag (!!timestamp, !!int, …) does not fit the value behind it") from None


class _Survey:
    """Records lines, duplicate keys and self-references; a node that aliases share is visited once.

    Values behind an alias have no lines of their own: ``Document.line_of`` returns the alias's line.
    """

    def __init__(self, document: Document) -> None:
        self._document = document
        self._visited: set[int] = set()

    def visit(self, node: yaml.Node, path: FieldPath, above: tuple[int, ...]) -> None:
        line = node.start_mark.line + 1
        if id(node) in above:
            self._document.problems.append(
                Problem(path, "an alias refers to what it is part of; write it out", self._document.line_of(path))
            )
        if id(node) in self._visited:
            return
        self._visited.add(id(node))
        self._document.lines.setdefault(path, line)
        if isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                self.visit(item, (*path, index), (*above, id(node)))
        elif isinstance(node, yaml.MappingNode):
            self._mapping(node, path, (*above, id(node)))

    def _mapping(self, node: yaml.MappingNode, path: FieldPath, above: tuple[int, ...]) -> None:
        seen: dict[str, int] = {}
        for key, item in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue  # the constructor reports the mapping that cannot be built
            name = str(key.value)
            key_line = key.start_mark.line + 1
            if name in seen and name != "<<":
                message = f"is given twice, first in line {seen[name]}; keep one of them"
                self._document.problems.append(Problem((*path, name), message, key_line))
            seen.setdefault(name, key_line)
            self._document.lines.setdefault((*path, name), key_line)
            self.visit(item, (*path, name), above)


def _syntax(error: yaml.MarkedYAMLError) -> Problem:
    mark = error.problem_mark or error.context_mark
    place = f" at column {mark.column + 1}" if mark else ""
    said = ", ".join(part for part in (error.context, error.problem) if part)
    hint = "; indent with spaces, not tabs" if "\\t" in said else "; check indentation and quotes there"
    return Problem((), f"not valid YAML{place}: {said}{hint}", mark.line + 1 if mark else None)


def read_json(text: str) -> Iterator[Document]:
    """The one document of a JSON file."""
    document = Document(1, None)
    excess = json_excess(text)
    if excess is not None:
        document.problems.append(excess)
        yield document
        return

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) < len(pairs):
            twice = sorted(name for name, number in Counter(name for name, _ in pairs).items() if number > 1)
            document.problems.extend(Problem((name,), "is given twice in one object; keep one") for name in twice)
        return result

    try:
        document.value = json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        message = f"not valid JSON at column {error.colno}: {error.msg}; correct the syntax"
        document.problems.append(Problem((), message, error.lineno))
    except ValueError as error:
        document.problems.append(Problem((), f"not valid JSON: {error}; correct the value"))
    if document.problems:
        document.value = None
    yield document


def read_value(text: str) -> Any:
    """One YAML value, as on a command line; ``ValueError`` when it is not one."""
    documents = list(read_yaml(text))
    if documents and documents[0].problems:
        raise ValueError(documents[0].problems[0].message)
    if len(documents) > 1:
        raise ValueError("more than one document")
    return documents[0].value if documents else None


DEEPEST = 100
MOST_VALUES = 1_000_000
"""Of one document, keys included; a kilobyte of memory each while it is read."""
MOST_REPEATED = 100_000
"""Values that the aliases of one document repeat."""

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
        """The limit that this event exceeds, as a message; None within the limits."""
        if isinstance(event, yaml.CollectionEndEvent):
            size, anchor = self._open.pop()
            self._close(size, anchor)
        elif isinstance(event, yaml.AliasEvent):
            # The loader reports an alias of its own parent and an alias without an anchor.
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
    """For each document the limit it exceeds, or None; ends where the text is not YAML."""
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
    """The limit of depth that a JSON text exceeds, or None; JSON has no aliases."""
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


class _Dumper(yaml.SafeDumper):
    """Quotes also what readers of YAML 1.2 take for a number or a truth value; PyYAML writes YAML 1.1."""

    def ignore_aliases(self, _data: Any) -> bool:
        """Write everything out."""
        return True


_Dumper.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^(?:0o[0-7]+|[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?)$"),
    list("-+.0123456789"),
)
_Dumper.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^[yYnN]$"), list("yYnN"))


def dump(value: Any, *, flow: bool = False) -> str:
    """``value`` as YAML that ends with a newline: in block style, or with ``flow`` on one line."""
    text = yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=float("inf"), default_flow_style=flow)
    return text.removesuffix("...\n")
