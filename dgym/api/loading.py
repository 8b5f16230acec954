"""Files to resources. All faults of a file are reported in one ``ManifestError``."""

import os
import shlex
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from dgym.api.episode import Episode
from dgym.api.episodeset import EpisodeSet
from dgym.api.fields import API_VERSION
from dgym.api.rules import check_rules
from dgym.api.sandboxpool import SandboxPool
from dgym.api.task import DebugTask
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


class Loaded(msgspec.Struct, frozen=True):
    """A resource and where it came from: the file and the number of the document in it, from 1."""

    resource: Resource
    file: str
    document: int


def load(path: str | os.PathLike[str], *, allow_local_paths: Collection[str | os.PathLike[str]] = ()) -> list[Resource]:
    """All resources of a YAML or JSON file; ``localPath`` becomes absolute, relative to the file's directory.

    Raises:
        ManifestError: The file has faults, or a ``localPath`` leads out of the file's directory to a place that is
            neither one of ``allow_local_paths`` nor below one.
    """
    return [loaded.resource for loaded in load_documents(path, allow_local_paths=allow_local_paths)]


def loads(text: str, *, source: str = "<text>", base: str | os.PathLike[str] | None = None) -> list[Resource]:
    """All resources of a text; ``source`` names it in errors. ``localPath`` is as in ``load`` if ``base`` is given."""
    directory = None if base is None else Path(base).absolute()
    return [loaded.resource for loaded in _parse(text, source, directory, ())]


def load_documents(
    path: str | os.PathLike[str], *, allow_local_paths: Collection[str | os.PathLike[str]] = ()
) -> list[Loaded]:
    """As ``load``, with the place each resource came from."""
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
        raise ManifestError(f"{source}: holds no document; write at least one of {', '.join(KINDS)}")
    return found


def _resources_of(document: "Document") -> Iterator[tuple[str, Any, tuple[str | int, ...]]]:
    """The document itself, or the items of a ``List`` as ``kubectl get -o yaml`` writes it."""
    where = f"document {document.number}"
    value = document.value
    if isinstance(value, dict) and value.get("kind") == "List" and isinstance(value.get("items"), list):
        for index, item in enumerate(value["items"]):
            yield f"{where}, items[{index}]", item, ("items", index)
    else:
        yield where, value, ()


def _called(value: Any) -> str:
    """``(Episode fix-ledger)`` as far as kind and name can be read."""
    if not isinstance(value, dict):
        return ""
    metadata = value.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    words = [word for word in (value.get("kind"), name) if isinstance(word, str)]
    return f" ({' '.join(words)})" if words else ""


def _convert(value: Any, problems: list[Problem]) -> Resource | None:
    from dgym.api.schema import convert

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
            yield f"{place}: metadata.name: is the name of document {seen[key]} too; give each its own"
        seen.setdefault(key, loaded.document)


def _with_absolute_path(
    resource: Resource, base: Path, allowed: Collection[str | os.PathLike[str]], problems: list[Problem]
) -> Resource:
    """The resource with ``localPath`` made absolute; one that leads out of ``base`` is a problem unless allowed."""
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
