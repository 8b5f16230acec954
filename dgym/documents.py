"""Reads YAML (several documents) and JSON as plain data, with the lines of fields and duplicate keys; writes YAML.

Unlike PyYAML's defaults, timestamps and ``12:30`` are read as text, not as a date or a number in base 60. Other modules
import this module only when a file is read, because the import of yaml is slow.

A manifest may be untrusted. Deep nesting can overflow the stack of code that traverses the values, and aliases of
aliases can expand to more values than fit into memory. Both are detected in the event stream of the parser before
values are built. All other costs are proportional to the length of the text.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
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
    """One document.

    Attributes:
        number: Number of the document in its file, from 1.
        value: The data; None if there are problems.
        lines: Line of each field.
        problems: Problems of the document.
    """

    number: int
    value: Any
    lines: dict[FieldPath, int] = {}
    problems: list[Problem] = []

    def line_of(self, path: FieldPath) -> int | None:
        """Return the line of a field. For a missing field it is the line of the nearest parent."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path)


def read_yaml(text: str) -> Iterator[Document]:
    """Yield all documents that are not empty, up to the first with a syntax error or one that exceeds a limit."""
    try:
        loader = _Loader(text)
    except (yaml.YAMLError, UnicodeError) as error:
        yield Document(1, None, problems=[Problem((), f"not text: {error}; save it as UTF-8")])
        return
    # Advanced together with the loader, so that the limits of each document are checked before it is built.
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
    """Build the value of a document.

    Raises:
        ValueError: A tag does not match its value, such as ``!!timestamp soon``. PyYAML raises various exceptions.
    """
    try:
        return loader.construct_document(node)
    except (AttributeError, LookupError, TypeError, OverflowError):
        raise ValueError("a tag (!!timestamp, !!int, …) does not match its value") from None


class _Survey:
    """Records the lines of fields, duplicate keys and self-references. A node with several aliases is visited once.

    Values that an alias repeats have no lines; ``Document.line_of`` returns the line of the alias.
    """

    def __init__(self, document: Document) -> None:
        self._document = document
        self._visited: set[int] = set()

    def visit(self, node: yaml.Node, path: FieldPath, above: tuple[int, ...]) -> None:
        line = node.start_mark.line + 1
        if id(node) in above:
            self._document.problems.append(
                Problem(
                    path,
                    "an alias refers to a value that contains the alias; write the value out",
                    self._document.line_of(path),
                )
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
                continue  # the constructor reports that such a mapping cannot be built
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
    detail = ", ".join(part for part in (error.context, error.problem) if part)
    hint = "; indent with spaces, not tabs" if "\\t" in detail else "; check indentation and quotes there"
    return Problem((), f"not valid YAML{place}: {detail}{hint}", mark.line + 1 if mark else None)


def read_json(text: str) -> Iterator[Document]:
    """Yield the single document of a JSON file."""
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
    """Parse one YAML value, such as an argument on a command line.

    Raises:
        ValueError: The text is not valid YAML, or has more than one document.
    """
    documents = list(read_yaml(text))
    if documents and documents[0].problems:
        raise ValueError(documents[0].problems[0].message)
    if len(documents) > 1:
        raise ValueError("more than one document")
    return documents[0].value if documents else None


DEEPEST = 100
MOST_VALUES = 1_000_000
"""Maximum number of values of one document, including keys. Each takes about 1 KiB of memory during reading."""
MOST_REPEATED = 100_000
"""Maximum number of values that the aliases of one document may repeat."""

_TOO_DEEP = f"nested more than {DEEPEST} levels deep; flatten it"
_TOO_MANY = f"more than {MOST_VALUES:,} values; divide it into several documents"
_TOO_OFTEN = f"aliases repeat more than {MOST_REPEATED:,} values; write out what is needed, without aliases of aliases"
_JSON_MARK = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[{\]}]', re.DOTALL)


class _Size(msgspec.Struct, gc=False):
    """The size of a value with its aliases expanded: number of values, and levels of nesting."""

    values: int = 1
    levels: int = 0


class _Walk:
    """Checks the limits of one document, given its events in order."""

    def __init__(self) -> None:
        self._open: list[tuple[_Size, str | None]] = []
        self._anchors: dict[str, _Size] = {}
        self._written = 0
        self._repeated = 0

    def check_event(self, event: yaml.Event) -> str | None:
        """Process an event. Returns a message if it exceeds a limit, else None."""
        if isinstance(event, yaml.CollectionEndEvent):
            size, anchor = self._open.pop()
            self._close(size, anchor)
        elif isinstance(event, yaml.AliasEvent):
            # The loader reports an alias of a parent and an alias without an anchor.
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
    """Yield a problem for each document that exceeds a limit, else None. Stops at a syntax error."""
    walk = _Walk()
    try:
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                walk = _Walk()
            elif isinstance(event, yaml.DocumentEndEvent):
                yield None
            elif (excess := walk.check_event(event)) is not None:
                yield Problem((), excess, event.start_mark.line + 1 if event.start_mark else None)
                return
    except yaml.YAMLError:
        return


def json_excess(text: str) -> Problem | None:
    """Return a problem if a JSON text is nested too deeply. Other limits only concern aliases, which JSON lacks."""
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
    """Also quotes text that is a number or boolean in YAML 1.2, because PyYAML only follows YAML 1.1."""

    def ignore_aliases(self, _data: Any) -> bool:
        """Write repeated values again instead of aliases."""
        return True


_Dumper.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^(?:0o[0-7]+|[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?)$"),
    list("-+.0123456789"),
)
_Dumper.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^[yYnN]$"), list("yYnN"))


def dump(value: Any, *, flow: bool = False) -> str:
    """Return ``value`` as YAML with a final newline, in block style or, with ``flow``, on one line."""
    text = yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=float("inf"), default_flow_style=flow)
    return text.removesuffix("...\n")


def end_of_field(lines: Sequence[str], start: int) -> int:
    """Return the index of the line after the field that begins at index ``start``.

    Comments and empty lines between its items belong to the field.
    """
    end = start + 1
    for number, line in enumerate(lines[start + 1 :], start=start + 2):
        text, deeper = line.strip(), indent_of(line) - indent_of(lines[start])
        if not text or text.startswith("#"):
            continue
        if deeper < 0 or (deeper == 0 and not text.startswith("- ")):
            break
        end = number
    return end


def indent_of(line: str) -> int:
    """Return the number of spaces at the start of the line."""
    return len(line) - len(line.lstrip(" "))
