"""Text to plain data: YAML (many documents) and JSON, with the line of every field and all duplicate keys.

Differences from PyYAML's defaults are those a manifest needs: times stay text, and ``12:30`` is text, not a number in
base sixty. The only module that imports yaml; nothing imports it before a file is read.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, ClassVar

import msgspec
import yaml

from dgym.api.problems import Path, Problem

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
    """One document: its data, the lines of its fields, and what was already found wrong with it."""

    number: int
    value: Any
    lines: dict[Path, int] = {}
    problems: list[Problem] = []

    def line_of(self, path: Path) -> int | None:
        """The line of the field or, for one that is missing, of what should hold it."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path)


def read_yaml(text: str) -> Iterator[Document]:
    """Every document that is not empty; one with a syntax error is the last."""
    loader = _Loader(text)
    number = 1
    try:
        while loader.check_node():
            node = loader.get_node()
            document = Document(number, None)
            _survey(node, (), document, ())
            if not document.problems:
                document.value = loader.construct_document(node)
            if document.value is not None or document.problems:
                yield document
            number += 1
    except yaml.MarkedYAMLError as error:
        yield Document(number, None, problems=[_syntax(error)])
    except (yaml.YAMLError, ValueError) as error:
        yield Document(number, None, problems=[Problem((), f"not valid YAML: {error}; correct the syntax")])
    finally:
        loader.dispose()


def _survey(node: yaml.Node, path: Path, document: Document, above: tuple[int, ...]) -> None:
    """Record lines, duplicate keys and self-references; a node that aliases share is visited once."""
    line = node.start_mark.line + 1
    document.lines.setdefault(path, line)
    if id(node) in above:
        document.problems.append(Problem(path, "an alias refers to what it is part of; write it out", line))
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _survey(item, (*path, index), document, (*above, id(node)))
    elif isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, item in node.value:
            name = str(key.value)
            key_line = key.start_mark.line + 1
            if name in seen and name != "<<":
                message = f"is given twice, first in line {seen[name]}; keep one of them"
                document.problems.append(Problem((*path, name), message, key_line))
            seen.setdefault(name, key_line)
            document.lines.setdefault((*path, name), key_line)
            _survey(item, (*path, name), document, (*above, id(node)))


def _syntax(error: yaml.MarkedYAMLError) -> Problem:
    mark = error.problem_mark or error.context_mark
    place = f" at column {mark.column + 1}" if mark else ""
    said = ", ".join(part for part in (error.context, error.problem) if part)
    hint = "; indent with spaces, not tabs" if "\\t" in said else "; check indentation and quotes there"
    return Problem((), f"not valid YAML{place}: {said}{hint}", mark.line + 1 if mark else None)


def read_json(text: str) -> Iterator[Document]:
    """The one document of a JSON file."""
    document = Document(1, None)

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) < len(pairs):
            names = [name for name, _ in pairs]
            twice = sorted({name for name in names if names.count(name) > 1})
            document.problems.extend(Problem((name,), "is given twice in one object; keep one") for name in twice)
        return result

    try:
        document.value = json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        message = f"not valid JSON at column {error.colno}: {error.msg}; correct the syntax"
        document.problems.append(Problem((), message, error.lineno))
    except RecursionError:
        document.problems.append(Problem((), "nested too deeply; flatten it"))
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
