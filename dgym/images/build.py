"""An image for a task: its environment and repository, under a name that is a digest of all that it is made from."""

import hashlib
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from dgym.api import DebugTask, DebugTaskSpec
from dgym.env import Opening, open_source
from dgym.errors import ManifestError
from dgym.images.builders import Builder
from dgym.images.dockerfile import Recipe, render
from dgym.images.wheels import LOCK, locked_wheels
from dgym.locks import whole_in_thread
from dgym.sandbox.local import find_version, inspect_interpreter
from dgym.workspace.sources import extract

LOCAL_REGISTRY = "localhost/dgym"
_DIGEST_LENGTH = 20

Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What one image is made from.

    Attributes:
        name: The name of the task.
        dockerfile: The text of the Dockerfile.
        wheels: The directory with wheels and their lock.
        tar: The repository.
        network: True if a command of the Dockerfile needs the network.
    """

    name: str
    dockerfile: str
    wheels: Path
    tar: Path
    network: bool

    @property
    def tag(self) -> str:
        """The digest of everything that goes into the image."""
        digest = hashlib.sha256(self.dockerfile.encode())
        digest.update((self.wheels / LOCK).read_bytes())
        with self.tar.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
        return digest.hexdigest()[:_DIGEST_LENGTH]

    def image(self, registry: str | None) -> str:
        """The full name of the image in ``registry``, or on this machine."""
        return f"{registry or LOCAL_REGISTRY}/{self.name}:{self.tag}"


async def prepare_image(task: DebugTask, *, builder: Builder | None, base: str | None, progress: Progress) -> Prepared:
    """Resolve and fetch all that the image of a task is made from; build nothing.

    Args:
        task: The task. Its name becomes part of the image's name.
        builder: Names the base by its digest; None leaves the base's name as it is.
        base: Image with ``python3``, such as one of your registry; by default Python's own slim image of the version
            that the task names, else of the version that runs dgym.
        progress: Called with each line of progress.

    Raises:
        ManifestError: The task's environment is not valid.
        SourceFailed: The repository cannot be obtained.
        SetupFailed: A wheel or the base cannot be obtained.
    """
    environment = task.spec.declared_environment()
    interpreter = inspect_interpreter(find_version(environment.python) if environment.python else sys.executable)
    version = ".".join(map(str, interpreter.version[:2]))
    tar = await open_source(task)
    if tar is None:
        raise ManifestError(f"DebugTask {task.metadata.name}: spec.source is missing; an image is made of a repository")
    project = await Opening(progress=progress).install(task, tar)
    wanted = ("pytest", *project.requirements, *project.build_requirements)
    wheels = await locked_wheels(wanted, interpreter, progress)
    chosen = base or f"python:{version}-slim"
    named, identity = (chosen, chosen) if builder is None else await builder.resolve_base(chosen, progress)
    recipe = Recipe(
        base=named,
        base_identity=identity,
        python=version,
        working_directory=task.spec.working_directory,
        system_packages=sorted(set(environment.system_packages)),
        install=project.layer is not None,
        variables=project.variables,
        files=project.files,
    )
    network = bool(recipe.system_packages)
    return Prepared(name=task.metadata.name, dockerfile=render(recipe), wheels=wheels, tar=tar, network=network)


async def build_image(
    prepared: Prepared, builder: Builder, *, registry: str | None, progress: Progress
) -> tuple[str, bool]:
    """Build the image if neither this machine nor the registry has it, and push it to ``registry`` if one is given.

    Returns:
        The image's full name, and True if it was built now.

    Raises:
        SetupFailed: It cannot be built or pushed.
    """
    image = prepared.image(registry)
    if await builder.exists(image):
        if registry is not None:
            await builder.push(image, progress)
        return image, False
    if registry is not None and await builder.pull(image, progress):
        return image, False
    with tempfile.TemporaryDirectory(prefix="dgym-image-") as directory:
        context = Path(directory)

        def fill() -> None:
            (context / "Dockerfile").write_text(prepared.dockerfile)
            (context / "repository").mkdir()
            extract(prepared.tar, context / "repository")
            shutil.copytree(prepared.wheels, context / "wheels")
            (context / "wheels" / LOCK).rename(context / LOCK)

        await whole_in_thread(fill)
        await builder.build(context, image, network=prepared.network, push=registry is not None, progress=progress)
    return image, True


def with_image(spec: DebugTaskSpec, image: str) -> DebugTaskSpec:
    """The task as it runs from its image, which has the repository and the environment."""
    return msgspec.structs.replace(spec, image=image, source=None, requirements=(), environment=None)
