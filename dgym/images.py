"""Build images of tasks: the Dockerfile of the environment, the locked wheels, and the programs that build and push.

The tag of an image is a digest of everything in it. docker, podman, buildah or BuildKit's buildctl builds it from a
rendered Dockerfile. Its wheels are downloaded, locked with their hashes and cached.
"""

import hashlib
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from dgym.api import DebugTask, DebugTaskSpec, split_hashes
from dgym.decoding import DECODE_ERRORS
from dgym.env import Opening, open_source
from dgym.errors import ManifestError, SetupFailed
from dgym.locks import hold_lock, whole_in_thread
from dgym.sandbox import cache_directory
from dgym.sandbox.container import EngineOutput, call
from dgym.sandbox.local import (
    Interpreter,
    find_version,
    inspect_interpreter,
    installer_environment,
    pip_for,
    requirement_name,
)
from dgym.workspace.sources import extract

__all__ = [
    "BUILDERS",
    "Builder",
    "Recipe",
    "build_image",
    "find_builder",
    "prepare_image",
    "render",
    "with_image",
]

LOCK = "requirements.txt"
_SECONDS = 1800.0
_NEWEST_GLIBC = 36
"""Minor version of glibc in Debian 12, the oldest Debian release of the official Python images."""
_LAYOUT = 1
_NO_WHEEL = re.compile(r"no matching distribution|could not find a version", re.IGNORECASE)

Progress = Callable[[str], None]


async def locked_wheels(requirements: Sequence[str], interpreter: Interpreter, progress: Progress) -> Path:
    """Return a directory with wheels for ``requirements`` and the lock file ``requirements.txt`` with their hashes.

    While the directory is in the cache, the same requirements give the same wheels, so an image is not built again.

    Args:
        requirements: Requirements in pip's format, which the caller has checked. The wheel of a requirement with hashes
            must have one of them.
        interpreter: An interpreter with the version of the image. It evaluates environment markers.
        progress: Called with each line of pip's output.

    Raises:
        SetupFailed: A requirement has no wheel, its hash differs, or the index cannot be reached.
    """
    wanted = sorted(set(requirements))
    described = json.dumps([_LAYOUT, wanted, interpreter.version[:2], os.uname().machine])
    path = cache_directory() / "wheels" / hashlib.sha256(described.encode()).hexdigest()[:20]
    if (path / LOCK).is_file():
        return path
    async with hold_lock(
        path.with_name(f"{path.name}.lock"),
        waiting=lambda: progress("waiting for another process that downloads the same wheels"),
        timeout_seconds=_SECONDS,
        error=SetupFailed,
    ):
        if not (path / LOCK).is_file():
            await _download(wanted, interpreter, path, progress)
    return path


async def _download(wanted: Sequence[str], interpreter: Interpreter, path: Path, progress: Progress) -> None:
    shutil.rmtree(path, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="download-", dir=path.parent) as scratch:
        pip, wheels = Path(scratch, "pip"), Path(scratch, "wheels")
        command = pip_for(interpreter, interpreter.executable)
        if not command:
            uv = shutil.which("uv")
            with_pip = [uv, "venv", "--quiet", "--seed", "--python"] if uv else [interpreter.executable, "-m", "venv"]
            make = [*with_pip, *([interpreter.executable] if uv else []), str(pip)]
            await _run(make, "an environment with pip cannot be made", scratch, progress)
            command = [str(pip / "bin" / "python"), "-I", "-m", "pip"]
        plain = sorted({split_hashes(requirement)[0] for requirement in wanted})
        progress(f"downloading wheels of {', '.join(plain)}")
        version = ".".join(map(str, interpreter.version[:2]))
        download = [
            *(*command, "download", "--no-input", "--progress-bar", "off"),
            *("--disable-pip-version-check", "--only-binary", ":all:", "--python-version", version),
            *_platforms(os.uname().machine),
            *("--dest", str(wheels), "--", *plain),
        ]
        await _run(download, "requirements: their wheels cannot be downloaded", scratch, progress)

        def keep() -> None:
            lock = lock_of(wheels)
            _check_hashes(wanted, lock)
            (wheels / LOCK).write_text(lock)
            wheels.rename(path)

        await whole_in_thread(keep)


def _check_hashes(wanted: Sequence[str], lock: str) -> None:
    """Raise ``SetupFailed`` if the hash of a wheel is not among the hashes of its requirement."""
    found = {requirement_name(line): split_hashes(line.rstrip()) for line in lock.splitlines()}
    for requirement in wanted:
        pin, (_, allowed) = requirement_name(requirement), split_hashes(requirement)
        if allowed and pin in found and found[pin][1].isdisjoint(allowed):
            plain, (digest,) = found[pin]
            raise SetupFailed(
                f"requirements: the wheel of {plain} has the hash sha256:{digest}, which the manifest does not have; "
                "do not use it unless you know why it differs, and compare with what dgym init writes today"
            )


def lock_of(wheels: Path) -> str:
    """The lock file for a directory of wheels. It has one line with the hash for each wheel, sorted by name."""
    lines = []
    for wheel in sorted(wheels.glob("*.whl")):
        name, version = wheel.name.split("-")[:2]
        with wheel.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        lines.append(f"{name.lower().replace('_', '-')}=={version} --hash=sha256:{digest}\n")
    return "".join(lines)


def _platforms(machine: str) -> list[str]:
    tags = [f"manylinux_2_{minor}_{machine}" for minor in range(_NEWEST_GLIBC, 4, -1)]
    tags += [f"manylinux2014_{machine}", f"linux_{machine}"]
    return [argument for tag in tags for argument in ("--platform", tag)]


async def _run(command: Sequence[str], failure: str, home: str, progress: Progress) -> None:
    answer = await call(command[0], command[1:], _SECONDS, progress, environment=installer_environment(home))
    if answer.status != 0:
        remedy = (
            "an image is made of wheels only; name a version that has one, or build the wheel yourself and name its "
            "directory in PIP_FIND_LINKS; "
            if _NO_WHEEL.search(answer.errors)
            else ""
        )
        raise SetupFailed(f"{failure}: {remedy}{answer.why}")


LOCAL_REGISTRY = "localhost/dgym"
_DIGEST_LENGTH = 20
BuilderName = Literal["docker", "podman", "buildah", "buildctl"]
BUILDERS: tuple[BuilderName, ...] = get_args(BuilderName)
"""All builders, in the order in which they are tried."""
_ASK_SECONDS = 30.0
_BUILD_SECONDS = 3600.0
_PUSH_SECONDS = 3600.0
_PROBES: Mapping[BuilderName, tuple[str, ...]] = {
    "docker": ("info",),
    "podman": ("info",),
    "buildah": ("images",),
    "buildctl": ("debug", "workers"),
}
"""For each builder, arguments of a call that only succeeds if the program can build images."""
ENVIRONMENT = "/opt/environment"
"""The virtual environment inside the image."""
USER = 1000
"""The user id and group id of the programs in the image."""
_PLAIN_PATH = re.compile(r"(/[A-Za-z0-9._+-]+)+")


@dataclass(frozen=True)
class Builder:
    """A builder that is installed and usable. ``program`` is its path."""

    name: BuilderName
    program: str

    async def resolve_base(self, base: str, progress: Progress) -> tuple[str, str]:
        """Resolve ``base`` to a name with digest. The image is pulled if it is missing on this machine.

        An image that was built locally does not have a digest, so its name is not changed and its id identifies it.
        buildctl does not have local images, so it returns ``base`` unchanged.

        Returns:
            The name, and a text that identifies the content of the image.

        Raises:
            SetupFailed: The image does not exist or cannot be pulled.
        """
        if self.name == "buildctl":
            return base, base
        facts = await self._inspect(base)
        if facts is None:
            progress(f"pulling {base} with {self.name}")
            answer = await self._call("pull", base, seconds=_BUILD_SECONDS, progress=progress)
            if answer.status != 0:
                raise SetupFailed(f"base image {base} cannot be pulled, name another with --base: {answer.why}")
            facts = await self._inspect(base) or {}
        digests = [each for each in facts.get("RepoDigests") or [] if not str(each).startswith("localhost/")]
        identity = str(facts.get("Id") or facts.get("FromImageID") or base)
        return (str(digests[0]) if digests and "@" not in base else base), identity

    async def exists(self, image: str) -> bool:
        """True if this machine has the image."""
        return self.name != "buildctl" and await self._inspect(image) is not None

    async def pull(self, image: str, progress: Progress) -> bool:
        """Pull the image. Returns False if the registry does not have it, does not answer or needs a login.

        The image is pulled because docker, podman and buildah have no common call that only checks the registry:
        ``podman manifest inspect`` refuses an image with a single platform.
        """
        if self.name == "buildctl":
            return False
        return (await self._call("pull", image, seconds=_BUILD_SECONDS, progress=progress)).status == 0

    async def build(self, context: Path, image: str, *, network: bool, push: bool, progress: Progress) -> None:
        """Build the directory ``context``, which contains a Dockerfile, as ``image``.

        Args:
            context: The directory.
            image: The name of the image.
            network: True if a command of the Dockerfile needs the network.
            push: Whether to push the image. buildctl always pushes it.
            progress: Called with each line of output.

        Raises:
            SetupFailed: The image cannot be built or pushed. The message ends with the last lines of the output.
        """
        answer = await self._call(
            *self._build_arguments(context, image, network=network), seconds=_BUILD_SECONDS, progress=progress
        )
        if answer.status != 0:
            raise SetupFailed(f"image {image} cannot be built with {self.name}:\n{answer.why}")
        if push and self.name != "buildctl":
            await self.push(image, progress)

    async def push(self, image: str, progress: Progress) -> None:
        """Push a local image.

        Raises:
            SetupFailed: The registry refuses the image or does not answer.
        """
        progress(f"pushing {image}")
        answer = await self._call("push", image, seconds=_PUSH_SECONDS, progress=progress)
        if answer.status != 0:
            registry = image.partition("/")[0]
            raise SetupFailed(
                f"image {image} cannot be pushed (is {registry} right, and have you logged in with {self.name} login?):"
                f"\n{answer.why}"
            )

    def _build_arguments(self, context: Path, image: str, *, network: bool) -> list[str]:
        if self.name == "buildctl":
            local = [f"{kind}={context}" for kind in ("context", "dockerfile")]
            return [
                *("build", "--frontend", "dockerfile.v0", "--local", local[0], "--local", local[1]),
                *("--output", f"type=image,name={image},push=true"),
            ]
        # podman and buildah use the host network: a bridge needs privileges that a build without root, or inside a
        # container, often does not have.
        shared = [] if self.name == "docker" else ["--network", "host"]
        return ["build", *(shared if network else ["--network", "none"]), "--tag", image, str(context)]

    async def _inspect(self, image: str) -> dict[str, Any] | None:
        """The metadata of a local image, or None if the image does not exist on this machine."""
        # The "--" keeps a name from being parsed as an option.
        arguments = ("inspect", "--type", "image") if self.name == "buildah" else ("image", "inspect")
        answer = await self._call(*arguments, "--", image, seconds=_ASK_SECONDS)
        if answer.status != 0:
            return None
        try:
            decoded = msgspec.json.decode(answer.output)
        except DECODE_ERRORS:
            return {}
        # docker and podman return a list with one object, buildah returns the object.
        facts = decoded[0] if isinstance(decoded, list) and decoded else decoded
        return facts if isinstance(facts, dict) else {}

    async def _call(self, *arguments: str, seconds: float, progress: Progress | None = None) -> EngineOutput:
        return await call(self.program, arguments, seconds, progress)


async def find_builder(name: BuilderName | Literal["auto"] = "auto") -> Builder:
    """The builder with this name, or the first usable builder for "auto".

    Raises:
        SetupFailed: None of the builders can be used. The message contains the reason for each.
    """
    problems: list[str] = []
    for candidate in BUILDERS if name == "auto" else (name,):
        program = shutil.which(candidate)
        if program is None:
            problems.append(f"{candidate} is not installed")
            continue
        answer = await call(program, _PROBES[candidate], _ASK_SECONDS)
        if answer.status == 0:
            return Builder(candidate, program)
        problems.append(f"{candidate} does not answer: {answer.why.splitlines()[-1]}")
    raise SetupFailed(
        f"no builder of images answers ({'; '.join(problems)}); install docker, podman, buildah or buildctl, or print "
        "the Dockerfile with dgym image dockerfile and build it elsewhere"
    )


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """The inputs of one image.

    Attributes:
        name: The name of the task.
        dockerfile: The text of the Dockerfile.
        wheels: The directory with the wheels and their lock file.
        tar: The tar of the repository.
        network: True if a command of the Dockerfile needs the network.
    """

    name: str
    dockerfile: str
    wheels: Path
    tar: Path
    network: bool

    @property
    def tag(self) -> str:
        """The digest of all inputs of the image."""
        digest = hashlib.sha256(self.dockerfile.encode())
        digest.update((self.wheels / LOCK).read_bytes())
        with self.tar.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
        return digest.hexdigest()[:_DIGEST_LENGTH]

    def image(self, registry: str | None) -> str:
        """The full name of the image in ``registry``, or of the local image if ``registry`` is None."""
        return f"{registry or LOCAL_REGISTRY}/{self.name}:{self.tag}"


async def prepare_image(task: DebugTask, *, builder: Builder | None, base: str | None, progress: Progress) -> Prepared:
    """Resolve and fetch the inputs of a task's image without building it.

    Args:
        task: The task. Its name becomes part of the image's name.
        builder: Resolves the name of the base image to its digest. None: the name is not resolved.
        base: A base image with ``python3``. Default: the official slim image of the Python version that the task
            declares, or else of the version that runs dgym.
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
    """Build the image unless it exists on this machine or in the registry. Push it to ``registry`` if one is given.

    Returns:
        The full name of the image, and True if this call has built it.

    Raises:
        SetupFailed: The image cannot be built or pushed.
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
    """The task with ``image``. Source, requirements and environment are removed, because the image contains them."""
    return msgspec.structs.replace(spec, image=image, source=None, requirements=(), environment=None)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The inputs of a Dockerfile.

    Attributes:
        base: Base image with ``python3`` of the version ``python``, with a digest if it is known.
        base_identity: A text that identifies the content of ``base``, such as the id of the image.
        python: Version of Python, such as "3.12".
        working_directory: The directory of the repository in the image.
        system_packages: Debian packages, sorted.
        install: True if the repository is installed in editable mode.
        variables: Environment variables for this installation, such as the version for setuptools-scm.
        files: Texts of files that this installation needs, by path, such as the version for versioningit.
    """

    base: str
    base_identity: str
    python: str
    working_directory: str
    system_packages: Sequence[str] = ()
    install: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)


def render(recipe: Recipe) -> str:
    """Render the Dockerfile. Its context contains ``requirements.txt`` (with hashes), ``wheels/`` and ``repository/``.

    The layers that depend on the repository come last, so that tasks with the same requirements share the others.

    Raises:
        ManifestError: ``working_directory`` contains characters with a meaning in a Dockerfile.
    """
    directory = recipe.working_directory
    if not _PLAIN_PATH.fullmatch(directory):
        raise ManifestError(
            f"workingDirectory: {directory!r} has characters that a Dockerfile interprets; use letters, digits, '.', "
            "'_', '+', '-' and '/', such as /workspace"
        )
    python = f"{ENVIRONMENT}/bin/python"
    install = f"{python} -m pip install --no-cache-dir --disable-pip-version-check --no-index"
    wrong = f"the base has Python %d.%d and the task needs {recipe.python}; name another with --base"
    check = (
        "import sys; found = sys.version_info[:2]; "
        f"sys.exit('.'.join(map(str, found)) != {minor_version(recipe.python)!r} and {wrong!r} % found)"
    )
    lines = [
        f"# Python {minor_version(recipe.python)}, {recipe.base_identity}",
        f"ARG BASE={recipe.base}",
        "FROM ${BASE}",
        "USER 0:0",
        f"RUN python3 -c {shlex.quote(check)}",
    ]
    if recipe.system_packages:
        packages = " ".join(recipe.system_packages)
        lines += [
            "RUN apt-get update -qq \\",
            f" && apt-get install -y -qq --no-install-recommends {packages} \\",
            " && rm -rf /var/lib/apt/lists/*",
        ]
    lines += [
        "RUN --mount=type=bind,target=/mnt \\",
        f"    python3 -m venv {ENVIRONMENT} \\",
        f" && {install} --find-links /mnt/wheels \\",
        "      --require-hashes -r /mnt/requirements.txt",
        f"RUN echo 'agent:x:{USER}:{USER}:agent:/home/agent:/bin/sh' >>/etc/passwd \\",
        f" && echo 'agent:x:{USER}:' >>/etc/group \\",
        f" && mkdir -p /home/agent && chown {USER}:{USER} /home/agent",
        f"ENV PATH={ENVIRONMENT}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8",
        f"COPY --chown={USER}:{USER} repository/ {directory}/",
        f"WORKDIR {directory}",
    ]
    if recipe.install:
        variables = "".join(f"{name}={shlex.quote(value)} " for name, value in sorted(recipe.variables.items()))
        for path, text in sorted(recipe.files.items()):
            escaped = text.replace("\\", "\\\\").replace("\n", "\\n")
            lines.append(f"RUN printf %b {shlex.quote(escaped)} >{shlex.quote(path)}")
        lines += [
            f"RUN {variables}{install} --no-deps --no-build-isolation --editable . \\",
            f" && chown -R {USER}:{USER} {directory}",
        ]
    # The user is numeric because Kubernetes (runAsNonRoot) cannot check that a user name is not root.
    lines += [f"USER {USER}:{USER}", 'CMD ["python"]']
    return "\n".join(lines) + "\n"


def minor_version(version: str) -> str:
    """The major and minor number of a version: ``3.12`` for ``3.12.1``."""
    return ".".join(version.split(".")[:2])
