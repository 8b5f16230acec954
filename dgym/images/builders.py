"""The programs that build images: docker, podman, buildah and BuildKit's buildctl, through their command lines."""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from dgym.decoding import DECODE_ERRORS
from dgym.errors import SetupFailed
from dgym.sandbox.container import Answer, call

BuilderName = Literal["docker", "podman", "buildah", "buildctl"]
BUILDERS: tuple[BuilderName, ...] = get_args(BuilderName)
"""In the order in which they are tried: whoever has docker uses docker."""

_ASK_SECONDS = 30.0
_BUILD_SECONDS = 3600.0
_PUSH_SECONDS = 3600.0
_PROBES: Mapping[BuilderName, tuple[str, ...]] = {
    "docker": ("info",),
    "podman": ("info",),
    "buildah": ("images",),
    "buildctl": ("debug", "workers"),
}
"""A call of each that succeeds only if the program can build."""

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Builder:
    """A builder that answered."""

    name: BuilderName
    program: str

    async def resolve_base(self, base: str, progress: Progress) -> tuple[str, str]:
        """The name of ``base`` by its digest, and what identifies its content; it is pulled if it is missing here.

        An image that no registry served has no name by digest: its name stays, and its id identifies it. buildctl has
        no images on this machine, so that only a digest in ``base`` itself identifies the content.

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
        """Pull the image; False if the registry does not have it, does not answer or needs a login.

        No call of all three asks a registry without pulling: podman's ``manifest inspect`` refuses an image
        of one platform.
        """
        if self.name == "buildctl":
            return False
        return (await self._call("pull", image, seconds=_BUILD_SECONDS, progress=progress)).status == 0

    async def build(self, context: Path, image: str, *, network: bool, push: bool, progress: Progress) -> None:
        """Build the directory ``context``, which has a Dockerfile, as ``image``.

        Args:
            context: The directory.
            image: The name of the result.
            network: True if a command of the Dockerfile needs the network.
            push: Push the result. For buildctl this is part of the build.
            progress: Called with each line of output.

        Raises:
            SetupFailed: It cannot be built or pushed; the message ends with the last lines of the builder.
        """
        answer = await self._call(
            *self._build_arguments(context, image, network=network), seconds=_BUILD_SECONDS, progress=progress
        )
        if answer.status != 0:
            raise SetupFailed(f"image {image} cannot be built with {self.name}:\n{answer.why}")
        if push and self.name != "buildctl":
            await self.push(image, progress)

    async def push(self, image: str, progress: Progress) -> None:
        """Push an image that this machine has.

        Raises:
            SetupFailed: The registry refuses it or does not answer.
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
        # A bridge needs rights that a build by an ordinary user or inside a container often lacks.
        shared = [] if self.name == "docker" else ["--network", "host"]
        return ["build", *(shared if network else ["--network", "none"]), "--tag", image, str(context)]

    async def _inspect(self, image: str) -> dict[str, Any] | None:
        """What this machine has recorded about an image; None if it does not have the image."""
        # After an end of options: a name must not be read as an option.
        arguments = ("inspect", "--type", "image") if self.name == "buildah" else ("image", "inspect")
        answer = await self._call(*arguments, "--", image, seconds=_ASK_SECONDS)
        if answer.status != 0:
            return None
        try:
            decoded = msgspec.json.decode(answer.output)
        except DECODE_ERRORS:
            return {}
        # docker and podman answer with a list of one, buildah with an object.
        facts = decoded[0] if isinstance(decoded, list) and decoded else decoded
        return facts if isinstance(facts, dict) else {}

    async def _call(self, *arguments: str, seconds: float, progress: Progress | None = None) -> Answer:
        return await call(self.program, arguments, seconds, progress)


async def find_builder(name: BuilderName | Literal["auto"] = "auto") -> Builder:
    """The builder of that name, or the first that answers.

    Raises:
        SetupFailed: None answers; the message has the cause for each.
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
