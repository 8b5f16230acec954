"""Load the resources that a command line names: manifests, folders, bundled benchmarks and repositories."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from dgym.api import (
    DebugTask,
    DebugTaskSpec,
    Episode,
    EpisodeSet,
    EpisodeSpec,
    Loaded,
    ObjectMeta,
    Resource,
    SandboxPool,
    SourceSpec,
    apply_overrides,
    load_documents,
)
from dgym.cli.options import Inputs
from dgym.errors import ManifestError, nearest

PREFIX = "bundled:"
"""Prefix of the source name of a bundled manifest."""

NAME_LIMIT = 52
"""Maximum length of generated names. The names of a set's Episodes and pods append to them."""

_MANIFEST_SUFFIXES = (".yaml", ".yml", ".json")


def read_episodes(inputs: Inputs) -> list[Loaded]:
    """Read manifests, repositories and a benchmark, and apply the overrides of ``inputs``.

    ``agent`` is the same as ``-p agent.name=…``. If an agent is named and the manifests contain only DebugTasks, each
    task gets an Episode.

    Raises:
        ManifestError: A manifest, a name or an assignment is wrong.
    """
    loaded = read_manifests(inputs)
    assignments = inputs.assignments
    if inputs.agent:
        assignments = (f"agent.name={inputs.agent}", *assignments)
    if agent_in(assignments) and loaded and all(item.resource.kind == "DebugTask" for item in loaded):
        from dgym.episodes import episodes_for

        loaded = [*loaded, *episodes_for(loaded)]
    if inputs.bundled:
        loaded = [*loaded, *load_bundle(inputs.bundled)]
    return override(loaded, assignments)


def read_manifests(inputs: Inputs) -> list[Loaded]:
    """Read every resource of the files.

    A directory in ``manifests`` is a repository to debug. A directory in ``folders`` (``-f``) contains manifests.

    Raises:
        ManifestError: A file is wrong, or two resources share a name. The message has the faults of all files.
    """
    found: list[Loaded] = []
    faults: list[str] = []
    files = [*map(Path, inputs.manifests), *(file for path in inputs.folders for file in _manifests_in(Path(path)))]
    for file in files:
        try:
            if file.is_dir():
                found.append(_repository(file, inputs.entrypoint))
            else:
                found.extend(load_documents(file, allow_local_paths=inputs.local_paths))
        except ManifestError as error:
            faults.append(str(error))
    if faults:
        raise ManifestError("\n".join(faults))
    _refuse_duplicates(found)
    return found


def override(loaded: Sequence[Loaded], assignments: Sequence[str]) -> list[Loaded]:
    """Apply ``-p`` to every Episode and EpisodeSet. DebugTasks and SandboxPools do not change."""
    return [Loaded(_changed(item.resource, assignments), item.file, item.document) for item in loaded]


def agent_in(assignments: Sequence[str]) -> str | None:
    """Return the agent of the last ``-p agent.name=…``, which takes precedence, or None."""
    pairs = (assignment.partition("=") for assignment in assignments)
    named = [value.strip().strip("\"'") for path, _, value in pairs if path.strip() == "agent.name"]
    return named[-1] if named else None


def load_bundle(name: str) -> list[Loaded]:
    """Return the EpisodeSet of a bundled benchmark and its tasks.

    Raises:
        ManifestError: The benchmark does not exist.
    """
    from dgym.benchmarks import bundled, episode_set, load_bundled

    known = list(bundled())
    if name not in known:
        guess = nearest(name, known)
        hint = f"did you mean {guess!r}?" if guess else f"the benchmarks are {', '.join(known)}"
        raise ManifestError(f"--bundled {name}: no such benchmark; {hint}")
    source = f"{PREFIX}{name}"
    tasks = [Loaded(task, source, number) for number, task in enumerate(load_bundled(name), start=2)]
    return [Loaded(episode_set(name), source, 1), *tasks]


def place_of(item: Loaded) -> str:
    """Return file, document and resource, for the start of a message."""
    return f"{item.file}: document {item.document} ({item.resource.kind} {item.resource.metadata.name})"


def resource_name(text: str, default: str = "repository", *, limit: int | None = NAME_LIMIT) -> str:
    """Turn ``text`` into a valid name of a resource, or return ``default`` if no character of it is valid."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    return name[:limit].rstrip("-") or default


def local_path(root: Path, manifest: Path | None) -> str:
    """Return the path of the repository relative to the manifest's directory, or ``root`` if ``manifest`` is None."""
    if manifest is None:
        return str(root)
    relative = os.path.relpath(root, manifest.absolute().parent)
    return relative if relative.startswith(".") else f"./{relative}"


def _changed(resource: Resource, assignments: Sequence[str]) -> Resource:
    if isinstance(resource, DebugTask | SandboxPool):
        return resource
    named = agent_in(assignments)
    if isinstance(resource, EpisodeSet) and named:
        _refuse_agents_of_arms(resource, named)
    if isinstance(resource, Episode):
        spec = _without_foreign_parameters(resource.spec, named)
        return apply_overrides(msgspec.structs.replace(resource, spec=spec), assignments)
    template = _without_foreign_parameters(resource.spec.template, named)
    spec_of_set = msgspec.structs.replace(resource.spec, template=template)
    return apply_overrides(msgspec.structs.replace(resource, spec=spec_of_set), assignments)


def _refuse_agents_of_arms(episode_set: EpisodeSet, named: str) -> None:
    for number, arm in enumerate(episode_set.spec.arms):
        if arm.agent.name is not None:
            raise ManifestError(
                f"EpisodeSet {episode_set.metadata.name}: --agent {named}: arm {arm.name} names the agent"
                f" {arm.agent.name} itself; change the arm: -p set.arms.{number}.agent.name={named}"
            )


def _without_foreign_parameters(spec: EpisodeSpec, named: str | None) -> EpisodeSpec:
    """Drop the parameters if ``named`` is another agent, because they belong to the agent of the manifest."""
    if not named or spec.agent is None or spec.agent.name == named:
        return spec
    return msgspec.structs.replace(spec, agent=msgspec.structs.replace(spec.agent, parameters={}))


def _manifests_in(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.iterdir() if file.suffix in _MANIFEST_SUFFIXES and file.is_file())
    if not files:
        raise ManifestError(f"-f {path}: the folder does not contain a manifest ({', '.join(_MANIFEST_SUFFIXES)})")
    return files


def _repository(path: Path, entrypoint: str | None) -> Loaded:
    root = path.resolve()
    name = resource_name(root.name, limit=None)
    spec = DebugTaskSpec(source=SourceSpec(local_path=str(root)))
    if entrypoint is not None:
        spec = msgspec.structs.replace(spec, entrypoint=entrypoint)
    task = DebugTask(metadata=ObjectMeta(name=name), spec=spec)
    return Loaded(task, str(root), 1)


def _refuse_duplicates(found: Sequence[Loaded]) -> None:
    places: dict[tuple[str, str | None, str], Loaded] = {}
    for item in found:
        metadata = item.resource.metadata
        other = places.setdefault((item.resource.kind, metadata.namespace, metadata.name), item)
        if other is not item and msgspec.to_builtins(other.resource) != msgspec.to_builtins(item.resource):
            raise ManifestError(
                f"{item.file}: document {item.document}: {item.resource.kind} {metadata.name} is also in {other.file},"
                f" document {other.document}, with other content; use different names"
            )
