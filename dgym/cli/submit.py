"""``dgym submit``, ``dgym retry`` and ``dgym cancel``: start, wait for and end episodes of a cluster.

Manifests are sent to the cluster with the files of local repositories inline.
"""

import asyncio
import base64
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from dgym.api import (
    INLINE_LIMIT,
    RETRY_KEY,
    TREATMENTS,
    DebugTask,
    DebugTaskSpec,
    Episode,
    InlineFile,
    Loaded,
    SourceSpec,
    Treatment,
)
from dgym.api import Resource as Manifest
from dgym.cli.cluster.connection import (
    RESOURCES,
    ClusterError,
    EpisodeView,
    SetView,
    connect,
    explained,
    find_all,
    follow,
    table_of,
)
from dgym.cli.image import with_images
from dgym.cli.manifests import place_of, read_episodes
from dgym.cli.options import (
    ClusterPlace,
    ImageOptions,
    Inputs,
    base_option,
    builder_option,
    check_registry,
    takes_cluster_place,
    takes_inputs,
)
from dgym.cli.output import FAILED, INTERRUPTED, UsageFailure, echo, echo_json, show_table
from dgym.cli.proposal import with_environments
from dgym.errors import ManifestError
from dgym.kube import EPISODE_SETS, EPISODES, ApiError, Client, ConnectionLost, InformerStore, Key, Resource
from dgym.terminal import printable_line
from dgym.workspace.sources import walk_repository

_REMEDY = "push it to a git repository or an archive that the agents may fetch, or build it into an image"


def with_repositories_inline(loaded: Sequence[Loaded]) -> list[Loaded]:
    """Replace every ``localPath`` by the files of the repository.

    Raises:
        ManifestError: A repository is missing, empty, too large for a manifest, or contains a symbolic link.
    """
    return [Loaded(_inlined(item.resource, place_of(item)), item.file, item.document) for item in loaded]


def namespace_of(item: Loaded, *, chosen: str | None, default: str) -> str:
    """Return the namespace of a resource: that of its manifest, else ``chosen``, else ``default``.

    Raises:
        ManifestError: The manifest and ``chosen`` name different namespaces.
    """
    own = item.resource.metadata.namespace
    if own and chosen and own != chosen:
        raise ManifestError(
            f"{place_of(item)}: metadata.namespace: is '{own}', and -n is '{chosen}'; leave out one of them"
        )
    return own or chosen or default


def refuse_without_image(loaded: Sequence[Loaded]) -> None:
    """Refuse tasks that need an environment and have no image, because their tests cannot run in a cluster.

    Raises:
        ManifestError: At least one task is refused. The message lists each with file and field.
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
    """Print manifests as YAML documents or, if ``form`` is ``json``, as a List as in kubectl."""
    if form == "json":
        echo_json({"apiVersion": "v1", "kind": "List", "items": list(manifests)})
        return
    import yaml

    echo(yaml.safe_dump_all(manifests, sort_keys=False, allow_unicode=True, width=120), nl=False)


def manifest_of(resource: Manifest, namespace: str) -> dict[str, Any]:
    """Return the manifest to apply: no status, and only name, namespace (if not empty), labels and annotations."""
    manifest: dict[str, Any] = msgspec.to_builtins(resource)
    manifest.pop("status", None)
    metadata: dict[str, Any] = {"name": resource.metadata.name, **({"namespace": namespace} if namespace else {})}
    given = {"labels": resource.metadata.labels, "annotations": resource.metadata.annotations}
    manifest["metadata"] = {**metadata, **{name: value for name, value in given.items() if value}}
    return manifest


def _inlined(resource: Manifest, where: str) -> Manifest:
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
        raise ManifestError(f"{where}: {root} is not a directory; give the directory of the repository")
    try:
        files = tuple(_files(root, where, INLINE_LIMIT - sum(len(file.data()) for file in spec.scoring.hidden_files)))
    except OSError as error:
        raise ManifestError(f"{where}: {error.filename or root} cannot be read: {error.strerror}") from error
    if not files:
        raise ManifestError(f"{where}: {root} does not contain files; give the directory of the repository")
    return msgspec.structs.replace(spec, source=SourceSpec(files=files))


def _files(root: Path, where: str, room: int) -> Iterator[InlineFile]:
    for path, entry in walk_repository(root):
        if entry.is_symlink():
            raise ManifestError(f"{where}: {path} is a symbolic link, which a manifest cannot contain; {_REMEDY}")
        if not entry.is_file(follow_symlinks=False):
            continue
        room -= entry.stat(follow_symlinks=False).st_size
        if room < 0:
            raise ManifestError(f"{where}: {root} has more than the {INLINE_LIMIT} bytes of a manifest; {_REMEDY}")
        data, mode = Path(entry.path).read_bytes(), entry.stat(follow_symlinks=False).st_mode & 0o777
        try:
            yield InlineFile(path=path, content=data.decode("utf-8"), mode=mode)
        except UnicodeDecodeError:
            yield InlineFile(path=path, content_base64=base64.b64encode(data).decode("ascii"), mode=mode)


V = TypeVar("V", EpisodeView, SetView)

_AT_A_TIME = 8


@click.command("submit")
@takes_inputs()
@click.option("--wait", is_flag=True, help="Wait until all episodes have finished, and show the outcomes.")
@click.option("--dry-run", is_flag=True, help="Check everything in the cluster without creating anything.")
@click.option(
    "--registry",
    metavar="REGISTRY",
    callback=check_registry,
    help="Build the images of tasks without one, and push those that are not in REGISTRY.",
)
@base_option
@builder_option
@click.option(
    "--output",
    type=click.Choice(["yaml", "json"]),
    help="Print the manifests instead of applying them.",
)
@takes_cluster_place("namespace", "context")
def submit_command(
    inputs: Inputs,
    wait: bool,
    dry_run: bool,
    registry: str | None,
    base: str | None,
    builder: str,
    output: str | None,
    place: ClusterPlace,
) -> None:
    """Run the Episodes and EpisodeSets of MANIFESTs in a cluster.

    DebugTasks, Episodes and EpisodeSets are applied as with kubectl apply: equal existing objects are not changed. A
    MANIFEST that is a directory is a repository to debug. Give the agent with --agent, and the command that runs its
    tests with --entrypoint. With --registry, a task without an image gets an image with its environment and repository,
    as with dgym image build. Without it, repositories of this machine are sent inside the manifest, up to 200 KiB.

    Exit status: 0 (with --wait: no episode failed), 1 some failed, or the cluster refuses or cannot be
    reached, 2 usage or manifest, 130 Ctrl-C (the episodes continue).
    """
    if wait and (dry_run or output):
        raise click.UsageError(f"--wait cannot be combined with --{'output' if output else 'dry-run'}")
    if base is not None and registry is None:
        raise click.UsageError("--base requires --registry, because it is only used to build images")
    loaded = read_episodes(inputs)
    if registry is not None:
        images = ImageOptions(registry=registry, base=base, builder=builder)
        loaded = with_images(with_environments(loaded, inputs.entrypoint, None), images, build=not dry_run)
    loaded = with_repositories_inline(loaded)
    refuse_without_image(loaded)
    if output is not None:
        print_manifests(
            [manifest_of(item.resource, namespace_of(item, chosen=place.namespace, default="")) for item in loaded],
            output,
        )
        return
    try:
        succeeded = asyncio.run(_submit(loaded, place, wait=wait, dry_run=dry_run))
    except KeyboardInterrupt:
        if wait:
            echo("Interrupted; the episodes continue. dgym get --watch shows them, dgym cancel ends them.", err=True)
        sys.exit(INTERRUPTED)
    if not succeeded:
        sys.exit(FAILED)


@click.command("cancel")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@takes_cluster_place("namespace", "context")
def cancel_command(names: tuple[str, ...], place: ClusterPlace) -> None:
    """End Episodes and EpisodeSets of a cluster before they finish.

    NAME is the name of an Episode or of an EpisodeSet. episode/NAME and episodeset/NAME distinguish equal names. The
    work so far is scored and stored. This cannot be undone. Finished Episodes are not changed.

    Exit status: 0, 1 the cluster refuses or cannot be reached, 2 usage or a name that does not exist, 130 Ctrl-C.
    """

    async def cancel() -> None:
        async with connect(place) as client:
            for found in await find_all(client, names):
                name = found.metadata.name
                label = f"{found.kind.lower()}/{name}"
                if found.finished:
                    echo(f"{label} has finished already")
                    continue
                change = {"spec": {"cancel": True}}
                resource = RESOURCES[found.kind]
                await client.patch(
                    resource, name, change, decode=bytes, namespace=client.namespace, field_manager="dgym"
                )
                echo(f"{label} cancelled")

    asyncio.run(cancel())


@click.command("retry")
@click.argument("names", nargs=-1, required=True, metavar="SET...")
@click.option(
    "--reason",
    "reasons",
    multiple=True,
    metavar="REASON",
    help="Only episodes with this reason, such as ModelError. Can be repeated.",
)
@takes_cluster_place("namespace", "context")
def retry_command(names: tuple[str, ...], reasons: tuple[str, ...], place: ClusterPlace) -> None:
    """Run the failed episodes of EpisodeSets of a cluster again.

    Failed episodes do not count for the agent, such as those of ModelError and SandboxLost. They start again under the
    same names. Stored files of former runs are kept, and `dgym report` counts the last run. A set without failed
    episodes is not changed.

    Exit status: 0, 1 the cluster refuses or cannot be reached, 2 usage or a name that does not exist, 130 Ctrl-C.
    """
    failures = {reason for reason, treatment in TREATMENTS.items() if treatment is not Treatment.COUNTED}
    unknown = [reason for reason in reasons if reason not in failures]
    if unknown:
        raise UsageFailure(f"{unknown[0]} is not a reason of failed episodes; one of {', '.join(sorted(failures))}")

    async def retry() -> None:
        async with connect(place) as client:
            for found in await find_all(client, names, kinds=("EpisodeSet",)):
                assert isinstance(found, SetView)
                label = f"episodeset/{found.metadata.name}"
                chosen = [each for each in found.status.failed_indexes if not reasons or each.reason in reasons]
                if found.spec.cancel:
                    echo(f"{label} is cancelled; submit a new one")
                elif not chosen:
                    echo(f"{label} has no episode that failed{' with ' if reasons else ''}{', '.join(reasons)}")
                else:
                    value = " ".join((datetime.now(UTC).isoformat(), ",".join(reasons))).strip()
                    change = {"metadata": {"annotations": {RETRY_KEY: value}}}
                    name = found.metadata.name
                    await client.patch(
                        EPISODE_SETS, name, change, decode=bytes, namespace=client.namespace, field_manager="dgym"
                    )
                    counts = ", ".join(f"{each.reason} {each.count}" for each in chosen)
                    echo(f"{label}: failed episodes run again: {counts}")

    asyncio.run(retry())


async def _submit(loaded: Sequence[Loaded], place: ClusterPlace, *, wait: bool, dry_run: bool) -> bool:
    """Apply everything. With ``wait``, wait for the end and return True if no episode failed."""
    async with connect(place) as client:
        manifests = [
            manifest_of(item.resource, namespace_of(item, chosen=place.namespace, default=client.namespace))
            for item in loaded
        ]
        # Tasks are applied first, because Episodes refer to them.
        tasks = [each for each in manifests if each["kind"] == "DebugTask"]
        await apply_all(client, tasks, dry_run=dry_run)
        await apply_all(client, [each for each in manifests if each not in tasks], dry_run=dry_run)
        if not wait:
            return True
        return await wait_for(client, manifests)


async def apply_all(
    client: Client, manifests: Sequence[dict[str, Any]], *, dry_run: bool = False, to_stderr: bool = False
) -> None:
    """Apply the manifests, at most 8 at a time, and print a line for each.

    Raises:
        ManifestError: Manifests were refused because of their content. The message has every refusal.
        ClusterError: Manifests were refused, at least one for another reason. The message has every refusal.
    """
    gate = asyncio.Semaphore(_AT_A_TIME)
    suffix = " (dry run)" if dry_run else ""

    async def apply(manifest: dict[str, Any]) -> str:
        metadata, resource = manifest["metadata"], RESOURCES[manifest["kind"]]
        where = {"namespace": metadata["namespace"], "field_manager": "dgym", "dry_run": dry_run}
        async with gate:
            _, created = await client.apply(resource, metadata["name"], manifest, decode=bytes, **where)
        return f"{resource.kind.lower()}/{metadata['name']} {'created' if created else 'applied'}{suffix}"

    refused = []
    for outcome in await asyncio.gather(*map(apply, manifests), return_exceptions=True):
        if isinstance(outcome, str):
            echo(outcome, err=to_stderr)
        elif isinstance(outcome, ApiError) and not isinstance(outcome, ConnectionLost):
            refused.append(explained(outcome, client.access))
        else:
            raise outcome
    if refused:
        text = "\n".join(dict.fromkeys(map(str, refused)))
        raise ManifestError(text) if all(isinstance(each, ManifestError) for each in refused) else ClusterError(text)


async def wait_for(client: Client, manifests: Sequence[Mapping[str, Any]]) -> bool:
    """Wait until all Episodes and EpisodeSets of the manifests have finished. Return True if none failed."""
    async with asyncio.TaskGroup() as group:
        episodes = group.create_task(finished(client, EPISODES, EpisodeView, _keys(manifests, EPISODES)))
        sets = group.create_task(finished(client, EPISODE_SETS, SetView, _keys(manifests, EPISODE_SETS)))
    found_episodes, found_sets = episodes.result(), sets.result()
    known = [view for view in found_episodes.values() if view is not None]
    known_sets = [view for view in found_sets.values() if view is not None]
    if known or known_sets:
        show_table(table_of([*known_sets, *known]))
    gone = [key for found in (found_episodes, found_sets) for key, view in found.items() if view is None]
    for namespace, name in gone:
        echo(f"{name}: deleted from namespace {namespace} before it was finished", err=True)
    failed = any(each.failed for each in known) or any(each.status.failed for each in known_sets)
    return not gone and not failed


def _keys(manifests: Iterable[Mapping[str, Any]], resource: Resource) -> list[Key]:
    metadata = (each["metadata"] for each in manifests if each["kind"] == resource.kind)
    return [(each["namespace"], each["name"]) for each in metadata]


async def finished(client: Client, resource: Resource, view: type[V], keys: Sequence[Key]) -> dict[Key, V | None]:
    """Wait until all objects have finished. Return the last state of each, or None if it was deleted before its end."""
    by_namespace: dict[str, set[Key]] = {}
    for key in keys:
        by_namespace.setdefault(key[0], set()).add(key)
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(_finished_in(client, resource, view, namespace, wanted))
            for namespace, wanted in by_namespace.items()
        ]
    return {key: state for task in tasks for key, state in task.result().items()}


async def _finished_in(
    client: Client, resource: Resource, view: type[V], namespace: str, wanted: set[Key]
) -> dict[Key, V | None]:
    only = f"metadata.name={next(iter(wanted))[1]}" if len(wanted) == 1 else ""
    last: dict[Key, V] = {}
    shown: dict[Key, str] = {}
    changed = asyncio.Event()
    async with follow(client, resource, view, changed, namespace=namespace, field_selector=only) as store:
        # An object may be deleted as soon as it has finished. Its last observed state counts.
        while not _all_finished(store, wanted) or changed.is_set():
            await changed.wait()
            changed.clear()
            for key in wanted:
                state = store.get(key)
                if state is not None and state != last.get(key):
                    last[key] = state
                    _show_state(key, state, shown, len(wanted))
    return {key: last[key] if key in last and last[key].finished else None for key in wanted}


def _all_finished(store: InformerStore[V], wanted: Iterable[Key]) -> bool:
    states = (store.get(key) for key in wanted)
    return all(state is None or state.finished for state in states)


def _show_state(key: Key, view: EpisodeView | SetView, shown: dict[Key, str], number: int) -> None:
    text = view.message if isinstance(view, SetView) else _of_episode(view, brief=number > 1)
    if text and shown.get(key) != text:
        shown[key] = text
        echo(printable_line(f"{view.metadata.name}: {text}"), err=True)


def _of_episode(view: EpisodeView, *, brief: bool) -> str:
    """Return the state of an episode. With ``brief``, it is empty unless the episode has finished or failed."""
    reason = view.status.reason
    if not view.finished and brief and reason not in TREATMENTS:
        return ""
    outcome = view.status.outcome
    if view.finished and outcome is not None:
        reason = f"{reason} {outcome.score}/{outcome.max_score}, {outcome.steps} steps"
    return f"{reason}: {view.message}" if view.message else reason
