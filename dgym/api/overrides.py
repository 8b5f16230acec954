"""``-p path=value``: change one field of a resource from the command line.

Paths are relative to the spec (of a set: to its template, and to the set's own spec after ``set.``). Values are YAML.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from dgym.api.episode import Episode
from dgym.api.episodeset import EpisodeSet
from dgym.api.problems import Problem, describe, error_of, nearest
from dgym.api.rules import check_rules
from dgym.api.schema import convert, inner_type, known_paths, struct_type
from dgym.api.task import DebugTask
from dgym.errors import ManifestError

R = TypeVar("R", DebugTask, Episode, EpisodeSet)


def apply_overrides(resource: R, assignments: Sequence[str]) -> R:
    """The resource with each ``path=value`` applied in order; the later one wins.

    Raises:
        ManifestError: A path is unknown (the nearest known one is named), a value is not YAML or not allowed there.
    """
    if not assignments:
        return resource
    data = msgspec.to_builtins(resource)
    for assignment in assignments:
        _apply(data, resource, assignment)
    problems: list[Problem] = []
    changed: R | None = convert(data, type(resource), problems)
    if changed is not None:
        problems.extend(check_rules(changed))
    if changed is None or problems:
        raise _refused(resource, assignments, problems)
    return changed


def _apply(data: Any, resource: DebugTask | Episode | EpisodeSet, assignment: str) -> None:
    path, equals, text = assignment.partition("=")
    if not equals or not path.strip():
        raise ManifestError(f"-p {assignment}: not of the form path=value; write for example -p agent.maxSteps=20")
    prefix, inside = _address(resource, path.strip())
    type_: inspect.Type = struct_type(type(resource))
    for part in prefix:
        data = data.setdefault(part, {})
        type_ = _field(type_, part) or type_
    _assign(data, type_, inside, _read(assignment, text), assignment)


def _address(resource: DebugTask | Episode | EpisodeSet, path: str) -> tuple[tuple[str, ...], str]:
    """Where in the resource a path begins, and the path from there."""
    if not isinstance(resource, EpisodeSet):
        return ("spec",), path
    if path.startswith("set."):
        return ("spec",), path.removeprefix("set.")
    return ("spec", "template"), path


def _read(assignment: str, text: str) -> Any:
    from dgym.api.reader import read_value

    try:
        return read_value(text)
    except ValueError as error:
        raise ManifestError(f"-p {assignment}: the value is {error}") from None


def _field(type_: inspect.Type, name: str) -> inspect.Type | None:
    if not isinstance(type_, inspect.StructType):
        return None
    return next((inner_type(field.type) for field in type_.fields if field.encode_name == name), None)


def _assign(data: Any, root: inspect.Type, path: str, value: Any, assignment: str) -> None:
    parts = path.split(".")
    type_: inspect.Type = root
    for index, part in enumerate(parts):
        last = index == len(parts) - 1
        if isinstance(type_, inspect.DictType) and not isinstance(type_.value_type, inspect.AnyType):
            part, last = ".".join(parts[index:]), True  # the keys of labels and quantities hold dots
        key, type_ = _step(data, type_, part, root, path, assignment)
        if last:
            data[key] = value
            return
        if isinstance(data, dict) and not isinstance(data.get(key), dict | list):
            data[key] = {}
        data = data[key]


def _step(
    data: Any, type_: inspect.Type, part: str, root: inspect.Type, path: str, assignment: str
) -> tuple[str | int, inspect.Type]:
    """The key for one part of a path, and the type behind it."""
    if isinstance(type_, inspect.DictType):
        return part, inner_type(type_.value_type)
    if isinstance(data, list):
        if part.isdecimal() and int(part) < len(data):
            item = type_.item_type if isinstance(type_, inspect.VarTupleType) else inspect.AnyType()
            return int(part), inner_type(item)
        raise ManifestError(f"-p {assignment}: a list of {len(data)} items has no item {part!r}; set the whole list")
    if isinstance(type_, inspect.AnyType) and isinstance(data, dict):
        return part, type_
    field = _field(type_, part)
    if field is None or not isinstance(data, dict):
        raise ManifestError(f"-p {assignment}: {_unknown(root, path)}")
    return part, field


def _unknown(root: inspect.Type, path: str) -> str:
    known = list(known_paths(root))
    same_name = [candidate for candidate in known if candidate.rpartition(".")[2] == path.rpartition(".")[2]]
    guess = nearest(path, known) if path.count(".") or not same_name else same_name[0]
    guess = guess or nearest(path, [candidate.rpartition(".")[2] for candidate in known])
    if guess:
        guess = next(candidate for candidate in known if candidate == guess or candidate.endswith(f".{guess}"))
        return f"unknown path; did you mean '{guess}'?"
    return f"unknown path; known ones begin with {', '.join(name for name in known if '.' not in name)}"


def _refused(
    resource: DebugTask | Episode | EpisodeSet, assignments: Sequence[str], problems: Sequence[Problem]
) -> ManifestError:
    """Every fault, each behind the assignments that touched its field (behind all where none did)."""
    lines = []
    for problem in problems:
        touching = [text for text in assignments if _touches(resource, text, problem)] or assignments
        shown = " ".join(f"-p {text}" for text in touching)
        lines.append(describe(problem, shown))
    return error_of(lines)


def _touches(resource: DebugTask | Episode | EpisodeSet, assignment: str, problem: Problem) -> bool:
    prefix, inside = _address(resource, assignment.partition("=")[0].strip())
    assigned = (*prefix, *inside.split("."))
    field = tuple(str(part) for part in problem.path)
    shared = min(len(assigned), len(field))
    return assigned[:shared] == field[:shared]
