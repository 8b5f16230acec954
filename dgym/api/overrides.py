"""``-p path=value``: change one field of a resource from the command line.

Paths are relative to the spec (of a set: to its template, and to the set's own spec after ``set.``). Values are YAML.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from dgym.api.episode import Episode
from dgym.api.episodeset import EpisodeSet
from dgym.api.rules import check_rules
from dgym.api.sandboxpool import SandboxPool
from dgym.api.schema import convert, inner_type, known_paths, struct_type
from dgym.api.task import DebugTask
from dgym.errors import ManifestError, Problem, describe, error_of, nearest

R = TypeVar("R", DebugTask, Episode, EpisodeSet, SandboxPool)


def apply_overrides(resource: R, assignments: Sequence[str]) -> R:
    """The resource with each ``path=value`` applied in order; the later one wins.

    Raises:
        ManifestError: A path is unknown (the nearest known one is named), a value is not YAML or not allowed there.
    """
    if not assignments:
        return resource
    data = msgspec.json.decode(msgspec.json.encode(resource))
    for assignment in assignments:
        _apply(data, resource, assignment)
    problems: list[Problem] = []
    changed: R | None = convert(data, type(resource), problems)
    if changed is not None:
        problems.extend(check_rules(changed))
    if changed is None or problems:
        raise _refused(resource, assignments, problems)
    return changed


def _apply(data: Any, resource: DebugTask | Episode | EpisodeSet | SandboxPool, assignment: str) -> None:
    path, equals, text = assignment.partition("=")
    if not equals or not path.strip():
        raise ManifestError(f"-p {assignment}: not of the form path=value; write for example -p agent.maxSteps=20")
    prefix, inside = _address(resource, path.strip())
    for part in prefix:
        data = data.setdefault(part, {})
    try:
        _assign(data, _type_at(type(resource), prefix), inside, text)
    except LookupError:
        raise ManifestError(f"-p {assignment}: {_unknown(type(resource), path.strip())}") from None
    except ValueError as error:
        raise ManifestError(f"-p {assignment}: {error}") from None


def _address(resource: DebugTask | Episode | EpisodeSet | SandboxPool, path: str) -> tuple[tuple[str, ...], str]:
    """Where in the resource a path begins, and the path from there."""
    if not isinstance(resource, EpisodeSet):
        return ("spec",), path
    if path.startswith("set."):
        return ("spec",), path.removeprefix("set.")
    return ("spec", "template"), path


def _type_at(cls: type[msgspec.Struct], prefix: Sequence[str]) -> inspect.Type:
    type_: inspect.Type = struct_type(cls)
    for part in prefix:
        type_ = _field(type_, part)
    return type_


def _field(type_: inspect.Type, name: str) -> inspect.Type:
    if isinstance(type_, inspect.StructType):
        for field in type_.fields:
            if field.encode_name == name:
                return inner_type(field.type)
    raise LookupError(name)


def _assign(data: Any, type_: inspect.Type, path: str, text: str) -> None:
    parts = path.split(".")
    while parts:
        part = parts.pop(0)
        if isinstance(type_, inspect.DictType) and not isinstance(type_.value_type, inspect.AnyType):
            part, parts = ".".join([part, *parts]), []  # the keys of labels and quantities hold dots
        key, type_ = _step(data, type_, part)
        if not parts:
            data[key] = _value(type_, text)
        elif isinstance(data, dict) and not isinstance(data.get(key), dict | list):
            data[key] = {}
        data = data[key]


def _step(data: Any, type_: inspect.Type, part: str) -> tuple[str | int, inspect.Type]:
    """The key for one part of a path, and the type behind it."""
    if isinstance(data, list):
        if not part.isdecimal() or int(part) >= len(data):
            raise ValueError(f"a list of {len(data)} items has no item {part!r}; set the whole list")
        return int(part), inner_type(type_.item_type) if isinstance(type_, inspect.VarTupleType) else type_
    if isinstance(type_, inspect.VarTupleType):
        raise ValueError(f"an empty list has no item {part!r}; set the whole list")
    if isinstance(type_, inspect.DictType):
        return part, inner_type(type_.value_type)
    return part, type_ if isinstance(type_, inspect.AnyType) else _field(type_, part)


def _value(type_: inspect.Type, text: str) -> Any:
    """The value as YAML; where text is wanted, ``0.2`` and ``true`` are text without quotes too."""
    from dgym.documents import read_value

    try:
        value = read_value(text)
    except ValueError as error:
        raise ValueError(f"the value is {error}") from None
    return text.strip() if isinstance(type_, inspect.StrType) and isinstance(value, bool | int | float) else value


def _unknown(cls: type[msgspec.Struct], path: str) -> str:
    if path.startswith("set.") and cls is not EpisodeSet:
        return f"'set.' is for EpisodeSets, and this is of kind {cls.__name__}; leave the prefix out"
    known = list(known_paths(_type_at(cls, ("spec", "template") if cls is EpisodeSet else ("spec",))))
    if cls is EpisodeSet:
        own = known_paths(_type_at(cls, ("spec",)))
        known += [f"set.{name}" for name in own if name.partition(".")[0] != "template"]
    last = path.rpartition(".")[2]
    same_name = [name for name in known if name.rpartition(".")[2] == last]
    guess = nearest(path, same_name) or (same_name[0] if same_name else nearest(path, known))
    if guess is None:
        by_last = {name.rpartition(".")[2]: name for name in reversed(known)}
        guess = by_last.get(nearest(last, by_last) or "")
    if guess:
        return f"unknown path; did you mean '{guess}'?"
    return f"unknown path; known ones begin with {', '.join(name for name in known if '.' not in name)}"


def _refused(
    resource: DebugTask | Episode | EpisodeSet | SandboxPool, assignments: Sequence[str], problems: Sequence[Problem]
) -> ManifestError:
    """Every fault, each behind the assignments that touched its field (behind all where none did)."""
    lines = []
    for problem in problems:
        touching = [text for text in assignments if _touches(resource, text, problem)] or assignments
        shown = " ".join(f"-p {text}" for text in touching)
        lines.append(describe(problem, shown))
    return error_of(lines)


def _touches(resource: DebugTask | Episode | EpisodeSet | SandboxPool, assignment: str, problem: Problem) -> bool:
    prefix, inside = _address(resource, assignment.partition("=")[0].strip())
    assigned = (*prefix, *inside.split("."))
    field = tuple(str(part) for part in problem.path)
    shared = min(len(assigned), len(field))
    return assigned[:shared] == field[:shared]
