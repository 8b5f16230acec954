"""``dgym image``: build images of tasks from the environment that their manifests declare."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from dgym.cli.options import (
    ImageOptions,
    Inputs,
    base_option,
    builder_option,
    check_registry,
    output_option,
    takes_inputs,
)

if TYPE_CHECKING:
    from dgym.api import DebugTask, Loaded
    from dgym.images import Builder

_takes_tasks = takes_inputs("manifests", "folders", "bundled", "entrypoint", "local_paths")


@click.group("image")
def image_command() -> None:
    """Build images of tasks, for clusters and containers.

    An image has what the manifest declares in `environment`: a Python, Debian packages, requirements locked with their
    hashes, and the repository, installed editable at the working directory.
    """


@image_command.command("build")
@_takes_tasks
@click.option("--push", "registry", metavar="REGISTRY", callback=check_registry, help="Push to this registry.")
@click.option(
    "--load", is_flag=True, help="Load the image into the engine of this machine (the default without --push)."
)
@base_option
@builder_option
@output_option
def build_command(
    inputs: Inputs, registry: str | None, load: bool, base: str | None, builder: str, output: str
) -> None:
    """Build the images of the tasks of MANIFESTs. A MANIFEST that is a directory is a repository.

    The name of an image contains a digest of all its inputs, so equal inputs are not built twice. Tasks of one
    repository share the layers below it. Prints one line for each task and its image.

    Exit status: 0, 1 an image cannot be built or pushed, 2 usage or manifest, 130 Ctrl-C.
    """
    import asyncio

    from dgym.cli.output import echo, echo_json

    if builder == "buildctl" and (load or registry is None):
        raise click.UsageError(
            "buildctl cannot load images into the engine of this machine; give --push, or another --builder"
        )
    tasks = _tasks(_manifests(inputs))
    built = asyncio.run(build_all(tasks, ImageOptions(registry, base, builder)))
    if output == "json":
        rows = [(*named, *made) for named, made in built.items()]
        echo_json([dict(zip(("kind", "name", "image", "built"), row, strict=True)) for row in rows])
        return
    for (_, name), (image, new) in built.items():
        echo(f"{name} {image}{'' if new else ' (was there already)'}")


@image_command.command("dockerfile")
@_takes_tasks
@base_option
def dockerfile_command(inputs: Inputs, base: str | None) -> None:
    """Print the Dockerfile of a task's image.

    Its build context contains requirements.txt (the lock), wheels/ and repository/, which `dgym image build` creates.

    Exit status: 0, 1 the repository or a wheel cannot be obtained, 2 usage or manifest, 130 Ctrl-C.
    """
    import asyncio

    from dgym.cli.output import echo
    from dgym.images import prepare_image

    tasks = _tasks(_manifests(inputs))
    if len(tasks) != 1:
        raise click.UsageError(f"the manifests have {len(tasks)} tasks; name the manifest of one task")
    (task,) = tasks.values()
    prepared = asyncio.run(prepare_image(task, builder=None, base=base, progress=_progress))
    echo(prepared.dockerfile, nl=False)


def _manifests(inputs: Inputs) -> "list[Loaded]":
    """Read the manifests. Repositories get the environment that ``dgym init`` proposes."""
    from dgym.cli.manifests import read_manifests
    from dgym.cli.proposal import with_environments

    return with_environments(read_manifests(inputs), inputs.entrypoint, None)


async def build_all(
    tasks: "dict[tuple[str, str], DebugTask]", options: ImageOptions, *, build: bool = True
) -> dict[tuple[str, str], tuple[str, bool]]:
    """Build the images of tasks, keyed by kind and name of their resource.

    Returns:
        For each key, the name of the image, and True if the image was built by this call. Without ``build``, the names
        are only computed.
    """
    from dgym.images import build_image, find_builder, prepare_image

    found: Builder = await find_builder(options.builder)
    images: dict[tuple[str, str], tuple[str, bool]] = {}
    for number, (key, task) in enumerate(tasks.items(), start=1):
        notify = _numbered(task.metadata.name, number, len(tasks))
        prepared = await prepare_image(task, builder=found, base=options.base, progress=notify)
        if build:
            images[key] = await build_image(prepared, found, registry=options.registry, progress=notify)
        else:
            images[key] = (prepared.image(options.registry), False)
    return images


def with_images(loaded: "Sequence[Loaded]", options: ImageOptions, *, build: bool) -> "list[Loaded]":
    """Set an image in every task without one. With ``build``, missing images are built and pushed."""
    import asyncio

    import msgspec

    from dgym.api import DebugTask, Episode, Loaded
    from dgym.images import with_image

    images = asyncio.run(build_all(_tasks(loaded), options, build=build))

    def changed(resource: Any) -> Any:
        spec = resource.spec
        if (resource.kind, resource.metadata.name) not in images:
            return resource
        image, _ = images[resource.kind, resource.metadata.name]
        if isinstance(resource, DebugTask):
            return msgspec.structs.replace(resource, spec=with_image(spec, image))
        if isinstance(resource, Episode) and spec.task is not None and spec.task.image is None:
            spec = msgspec.structs.replace(spec, task=with_image(spec.task, image))
            return msgspec.structs.replace(resource, spec=spec)
        return resource

    return [Loaded(changed(item.resource), item.file, item.document) for item in loaded]


def _tasks(loaded: "Sequence[Loaded]") -> "dict[tuple[str, str], DebugTask]":
    """Return the tasks without an image by kind and name of their DebugTask or Episode."""
    from dgym.api import DebugTask, Episode

    found: dict[tuple[str, str], DebugTask] = {}
    for item in loaded:
        resource = item.resource
        key = (resource.kind, resource.metadata.name)
        if isinstance(resource, DebugTask) and resource.spec.image is None:
            found[key] = resource
        elif isinstance(resource, Episode) and resource.spec.task is not None and resource.spec.task.image is None:
            found[key] = DebugTask(metadata=resource.metadata, spec=resource.spec.task)
    return found


def _progress(line: str) -> None:
    from dgym.cli.output import echo
    from dgym.terminal import printable_line

    echo(printable_line(line), err=True)


def _numbered(name: str, number: int, of: int) -> Callable[[str], None]:
    return lambda line: _progress(f"[{number}/{of}] {name}: {line}")
