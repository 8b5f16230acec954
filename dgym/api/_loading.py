"""Reads resources from files, and applies ``-p path=value``. One ``ManifestError`` reports all problems of a file."""

import os
import shlex
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import inspect

from dgym.api._episode import Episode
from dgym.api._episodeset import EpisodeSet
from dgym.api._fields import API_VERSION
from dgym.api._sandboxpool import SandboxPool
from dgym.api._task import DebugTask
from dgym.api._validation import check_rules, convert, inner_type, known_paths, struct_type
from dgym.errors import ManifestError, Problem, describe, error_of, nearest, show

if TYPE_CHECKING:
    from dgym.documents import Document

Resource = DebugTask | Episode | EpisodeSet | SandboxPool
KINDS: dict[str, type[DebugTask] | type[Episode] | type[EpisodeSet] | type[SandboxPool]] = {
    "DebugTask": DebugTask,
    "Episode": Episode,
    "EpisodeSet": EpisodeSet,
    "SandboxPool": SandboxPool,
}
R = TypeVar("R", DebugTask, Episode, EpisodeSet, SandboxPool)


class Loaded(msgspec.Struct, frozen=True):
    """A resource, its file, and the number of its document in the file, from 1."""

    resource: Resource
    file: str
    document: int


def load(path: str | os.PathLike[str], *, allow_local_paths: Collection[str | os.PathLike[str]] = ()) -> list[Resource]:
    """Return all resources of a YAML or JSON file. ``localPath`` becomes absolute, relative to the file's directory.

    Raises:
        ManifestError: The file has problems, or a ``localPath`` is neither in the file's directory nor in one of
            ``allow_local_paths``.
    """
    return [loaded.resource for loaded in load_documents(path, allow_local_paths=allow_local_paths)]


def loads(text: str, *, source: str = "<text>", base: str | os.PathLike[str] | None = None) -> list[Resource]:
    """Return all resources of a text.

    Errors name ``source``. With ``base``, ``localPath`` is resolved as in ``load``.
    """
    directory = None if base is None else Path(base).absolute()
    return [loaded.resource for loaded in _parse(text, source, directory, ())]


def load_documents(
    path: str | os.PathLike[str], *, allow_local_paths: Collection[str | os.PathLike[str]] = ()
) -> list[Loaded]:
    """Do the same as ``load``, and return the place of each resource too."""
    file = Path(path)
    return _parse(_read(file), str(path), file.absolute().parent, allow_local_paths)


def _read(file: Path) -> str:
    try:
        return file.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise ManifestError(f"{file}: no such file; give the path of a YAML or JSON manifest") from None
    except IsADirectoryError:
        raise ManifestError(f"{file}: is a directory; give the manifest files in it") from None
    except UnicodeDecodeError as error:
        raise ManifestError(f"{file}: not UTF-8 at byte {error.start}; save it as UTF-8") from None
    except OSError as error:
        raise ManifestError(f"{file}: cannot be read: {error.strerror or error}") from None


def _parse(
    text: str, source: str, base: Path | None, allow_local_paths: Collection[str | os.PathLike[str]]
) -> list[Loaded]:
    from dgym.documents import read_json, read_yaml

    faults: list[str] = []
    found: list[Loaded] = []
    documents = read_json(text) if source.endswith(".json") else read_yaml(text)
    for document in documents:
        for where, value, prefix in _resources_of(document):
            problems: list[Problem] = []
            resource = None if document.problems else _convert(value, problems)
            if resource is not None and base is not None:
                resource = _with_absolute_path(resource, base, allow_local_paths, problems)
            placed = [problem._replace(line=document.line_of((*prefix, *problem.path))) for problem in problems]
            place = f"{source}: {where}{_called(value)}"
            faults.extend(describe(problem, place) for problem in (*document.problems, *placed))
            if resource is not None:
                found.append(Loaded(resource, source, document.number))
    faults.extend(_duplicates(found))
    if faults:
        raise error_of(faults)
    if not found:
        raise ManifestError(f"{source}: contains no manifest; write at least one of {', '.join(KINDS)}")
    return found


def _resources_of(document: "Document") -> Iterator[tuple[str, Any, tuple[str | int, ...]]]:
    """Yield the document itself, or the items of a ``List``, which ``kubectl get -o yaml`` writes."""
    where = f"document {document.number}"
    value = document.value
    if isinstance(value, dict) and value.get("kind") == "List" and isinstance(value.get("items"), list):
        for index, item in enumerate(value["items"]):
            yield f"{where}, items[{index}]", item, ("items", index)
    else:
        yield where, value, ()


def _called(value: Any) -> str:
    """Return ``(Episode fix-ledger)``, or the part of it that can be read."""
    if not isinstance(value, dict):
        return ""
    metadata = value.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    words = [word for word in (value.get("kind"), name) if isinstance(word, str)]
    return f" ({' '.join(words)})" if words else ""


def _convert(value: Any, problems: list[Problem]) -> Resource | None:
    from dgym.api._validation import convert

    if not isinstance(value, dict):
        problems.append(Problem((), f"{show(value)} is not a manifest; write apiVersion, kind, metadata and spec"))
        return None
    if value.get("apiVersion") != API_VERSION:
        problems.append(Problem(("apiVersion",), _wrong("apiVersion", value.get("apiVersion"), [API_VERSION])))
    kind = value.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        problems.append(Problem(("kind",), _wrong("kind", kind, list(KINDS))))
        return None
    resource = convert({**value, "apiVersion": API_VERSION}, KINDS[kind], problems)
    if resource is not None:
        problems.extend(check_rules(resource))
    return None if problems else resource


def _wrong(field: str, value: Any, allowed: list[str]) -> str:
    if value is None:
        return f"is missing; give {' or '.join(allowed)}"
    guess = nearest(value, allowed) if isinstance(value, str) else None
    remedy = f"did you mean '{guess}'?" if guess else f"give {' or '.join(allowed)}"
    return f"{show(value)} is not a known {field}; {remedy}"


def _duplicates(found: list[Loaded]) -> Iterator[str]:
    seen: dict[tuple[str, str | None, str], int] = {}
    for loaded in found:
        metadata = loaded.resource.metadata
        key = (loaded.resource.kind, metadata.namespace, metadata.name)
        if key in seen:
            place = f"{loaded.file}: document {loaded.document} ({key[0]} {key[2]})"
            yield f"{place}: metadata.name: is also the name of document {seen[key]}; give each resource its own name"
        seen.setdefault(key, loaded.document)


def _with_absolute_path(
    resource: Resource, base: Path, allowed: Collection[str | os.PathLike[str]], problems: list[Problem]
) -> Resource:
    """Return the resource with an absolute ``localPath``. Report a path outside of ``base`` unless it is allowed."""
    replace = msgspec.structs.replace
    if isinstance(resource, EpisodeSet | SandboxPool):
        return resource
    task = resource.spec if isinstance(resource, DebugTask) else resource.spec.task
    if task is None or task.source is None or task.source.local_path is None:
        return resource
    given = task.source.local_path
    local_path = os.path.normpath(base / Path(given).expanduser())
    real = Path(local_path).resolve()
    if not any(real.is_relative_to(Path(place).expanduser().resolve()) for place in (base, *allowed)):
        field = ("spec", *(() if isinstance(resource, DebugTask) else ("task",)), "source", "localPath")
        problems.append(
            Problem(
                field,
                f"{show(given)} leads out of the manifest's directory, to {real}; move the repository below {base},"
                f" or allow it on the command line: --allow-local-path {shlex.quote(str(real))}",
            )
        )
    absolute = replace(task, source=replace(task.source, local_path=local_path))
    if isinstance(resource, DebugTask):
        return replace(resource, spec=absolute)
    return replace(resource, spec=replace(resource.spec, task=absolute))


def apply_overrides(resource: R, assignments: Sequence[str]) -> R:
    """Return the resource with each ``path=value`` applied in order. A later assignment overrides an earlier one.

    Raises:
        ManifestError: A path is unknown (the message suggests the nearest one), or a value is not YAML or not valid
            there.
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
        raise ManifestError(
            f"-p {assignment}: does not have the form path=value; write for example -p agent.maxSteps=20"
        )
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
    """Return the part of the resource that a path is relative to, and the path itself."""
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
            part, parts = ".".join([part, *parts]), []  # the keys of labels and quantities contain dots
        key, type_ = _step(data, type_, part)
        if not parts:
            data[key] = _value(type_, text)
        elif isinstance(data, dict) and not isinstance(data.get(key), dict | list):
            data[key] = {}
        data = data[key]


def _step(data: Any, type_: inspect.Type, part: str) -> tuple[str | int, inspect.Type]:
    """Return the key for one part of a path, and the type of its value."""
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
    """Return the value as YAML. If the field is text, ``0.2`` and ``true`` are text even without quotes."""
    from dgym.documents import read_value

    try:
        value = read_value(text)
    except ValueError as error:
        raise ValueError(f"the value is {error}") from None
    return text.strip() if isinstance(type_, inspect.StrType) and isinstance(value, bool | int | float) else value


def _unknown(cls: type[msgspec.Struct], path: str) -> str:
    if path.startswith("set.") and cls is not EpisodeSet:
        return f"'set.' is for EpisodeSets, but this resource is of kind {cls.__name__}; remove the prefix"
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
    return f"unknown path; known paths begin with {', '.join(name for name in known if '.' not in name)}"


def _refused(
    resource: DebugTask | Episode | EpisodeSet | SandboxPool, assignments: Sequence[str], problems: Sequence[Problem]
) -> ManifestError:
    """Return an error with all problems.

    Each names the assignments of its field or, if none matches, all assignments.
    """
    lines = []
    for problem in problems:
        touching = [text for text in assignments if _overlaps(resource, text, problem)] or assignments
        shown = " ".join(f"-p {text}" for text in touching)
        lines.append(describe(problem, shown))
    return error_of(lines)


def _overlaps(resource: DebugTask | Episode | EpisodeSet | SandboxPool, assignment: str, problem: Problem) -> bool:
    prefix, inside = _address(resource, assignment.partition("=")[0].strip())
    assigned = (*prefix, *inside.split("."))
    field = tuple(str(part) for part in problem.path)
    shared = min(len(assigned), len(field))
    return assigned[:shared] == field[:shared]
