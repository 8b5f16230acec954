"""Manifests as they are sent to a cluster: complete, with the files of local repositories inside."""

import base64
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dgym.api import INLINE_LIMIT, DebugTask, DebugTaskSpec, Episode, InlineFile, Loaded, Resource, SourceSpec
from dgym.cli.manifests import place_of
from dgym.cli.output import echo, echo_json
from dgym.errors import ManifestError
from dgym.workspace.sources import walk_repository

_REMEDY = "push it to a git repository or an archive that the agents may fetch, or build it into an image"


def with_repositories_inline(loaded: Sequence[Loaded]) -> list[Loaded]:
    """Every ``localPath`` replaced by its files.

    Raises:
        ManifestError: A repository is too large for that, or has what no manifest can hold.
    """
    return [Loaded(_inlined(item.resource, place_of(item)), item.file, item.document) for item in loaded]


def namespace_of(item: Loaded, *, chosen: str | None, default: str) -> str:
    """The namespace of a resource: the one chosen, else the manifest's, else the context's.

    Raises:
        ManifestError: The chosen one is not the manifest's.
    """
    own = item.resource.metadata.namespace
    if own and chosen and own != chosen:
        raise ManifestError(
            f"{place_of(item)}: metadata.namespace: is '{own}', and -n says '{chosen}'; leave out one of them"
        )
    return own or chosen or default


def refuse_without_image(loaded: Sequence[Loaded]) -> None:
    """Refuse tasks that need an environment and have no image: their tests cannot run in a cluster.

    Raises:
        ManifestError: There are some; each is named with its place.
    """
    faults = []
    for item in loaded:
        resource = item.resource
        for path, task in (
            ("spec", resource.spec if isinstance(resource, DebugTask) else None),
            ("spec.task", resource.spec.task if isinstance(resource, Episode) else None),
        ):
            if task is not None and (problem := task.image_problem()):
                faults.append(f"{place_of(item)}: {path}.{problem}")
    if faults:
        raise ManifestError("\n".join(faults))


def print_manifests(manifests: Sequence[dict[str, Any]], form: str) -> None:
    """Print manifests as YAML documents, or as JSON: a List, as kubectl takes and prints it."""
    if form == "json":
        echo_json({"apiVersion": "v1", "kind": "List", "items": list(manifests)})
        return
    import yaml

    echo(yaml.safe_dump_all(manifests, sort_keys=False, allow_unicode=True, width=120), nl=False)


def manifest_of(resource: Resource, namespace: str) -> dict[str, Any]:
    """The manifest to apply: without status, and with the author's part of the metadata. Without an empty namespace."""
    manifest: dict[str, Any] = msgspec.to_builtins(resource)
    manifest.pop("status", None)
    metadata: dict[str, Any] = {"name": resource.metadata.name, **({"namespace": namespace} if namespace else {})}
    given = {"labels": resource.metadata.labels, "annotations": resource.metadata.annotations}
    manifest["metadata"] = {**metadata, **{name: value for name, value in given.items() if value}}
    return manifest


def _inlined(resource: Resource, where: str) -> Resource:
    replace = msgspec.structs.replace
    if isinstance(resource, DebugTask):
        return replace(resource, spec=_task(resource.spec, f"{where}: spec.source.localPath"))
    if isinstance(resource, Episode) and resource.spec.task is not None:
        task = _task(resource.spec.task, f"{where}: spec.task.source.localPath")
        return replace(resource, spec=replace(resource.spec, task=task))
    return resource


def _task(spec: DebugTaskSpec, where: str) -> DebugTaskSpec:
    if spec.source is None or spec.source.local_path is None:
        return spec
    root = Path(spec.source.local_path)
    if not root.is_dir():
        raise ManifestError(f"{where}: {root} is no directory; give the directory of the repository")
    try:
        files = tuple(_files(root, where, INLINE_LIMIT - sum(len(file.data()) for file in spec.scoring.hidden_files)))
    except OSError as error:
        raise ManifestError(f"{where}: {error.filename or root} cannot be read: {error.strerror}") from error
    if not files:
        raise ManifestError(f"{where}: {root} holds no file; give the directory of the repository")
    return msgspec.structs.replace(spec, source=SourceSpec(files=files))


def _files(root: Path, where: str, room: int) -> Iterator[InlineFile]:
    for path, entry in walk_repository(root):
        if entry.is_symlink():
            raise ManifestError(f"{where}: {path} is a symbolic link, which no manifest can hold; {_REMEDY}")
        if not entry.is_file(follow_symlinks=False):
            continue
        room -= entry.stat(follow_symlinks=False).st_size
        if room < 0:
            raise ManifestError(f"{where}: {root} holds more than the {INLINE_LIMIT} bytes of a manifest; {_REMEDY}")
        data, mode = Path(entry.path).read_bytes(), entry.stat(follow_symlinks=False).st_mode & 0o777
        try:
            yield InlineFile(path=path, content=data.decode("utf-8"), mode=mode)
        except UnicodeDecodeError:
            yield InlineFile(path=path, content_base64=base64.b64encode(data).decode("ascii"), mode=mode)
