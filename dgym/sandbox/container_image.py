"""Images: which one a task runs in, fetching it where it is missing, and what must be known of it."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from dgym.errors import SandboxStartFailed
from dgym.sandbox.container_engine import Answer, Engine
from dgym.sandbox.container_locks import directory
from dgym.sandbox.process_lock import only_one

DEFAULT_IMAGE = "localhost/dgym/sandbox-python:0.1.0"
"""What tasks of this release run in when they name no image.

Below ``localhost/`` nobody else can publish it, and nothing tries to pull it.
"""

PULL_SECONDS = 3600.0
_LOCAL = "localhost/"
_UNKNOWN = ("no such image", "no such object", "image not known", "not found")

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Image:
    """An image this engine has. ``id`` names its contents for good; ``user`` is who its programs run as."""

    name: str
    id: str
    user: str

    @property
    def is_root(self) -> bool:
        """True when the image's programs run as root unless told otherwise."""
        return self.user.partition(":")[0] in ("", "0", "root")


async def ensure_image(engine: Engine, name: str, progress: Progress | None = None) -> Image:
    """The image of that name, pulled first where this engine does not have it; once for all processes that want it.

    Raises:
        SandboxStartFailed: it does not exist or cannot be pulled.
    """
    image = await _inspect(engine, name)
    if image is not None:
        return image
    if name.startswith(_LOCAL):
        raise SandboxStartFailed(_how_to_build(engine, name))
    tell = progress or (lambda _: None)
    key = hashlib.sha256(f"{engine.program}\0{name}".encode()).hexdigest()[:20]
    async with only_one(
        directory() / f"pull-{key}",
        waiting=lambda: tell(f"waiting for another process that pulls {name}"),
        timeout_seconds=PULL_SECONDS,
        error=SandboxStartFailed,
    ):
        image = await _inspect(engine, name)
        if image is None:
            await _pull(engine, name, tell)
            image = await _inspect(engine, name)
    if image is None:
        raise SandboxStartFailed(f"image {name!r} was pulled, but {engine.flavor} does not know it")
    return image


async def _pull(engine: Engine, name: str, tell: Progress) -> None:
    tell(f"pulling {name} with {engine.flavor}")
    answer = await engine.call(
        "pull", "--", name, timeout_seconds=PULL_SECONDS, on_line=lambda line: tell(f"pulling {name}: {line}")
    )
    if answer.status != 0:
        raise SandboxStartFailed(f"image {name!r} cannot be pulled: {answer.why}")
    tell(f"pulled {name}")


async def _inspect(engine: Engine, name: str) -> Image | None:
    # After an end of options: a name comes from a manifest and must not be taken for one.
    answer = await engine.call("image", "inspect", "--format", "{{json .}}", "--", name)
    if answer.status == 0:
        return _image(name, answer)
    if any(words in answer.errors.lower() for words in _UNKNOWN):
        return None
    # Not the same as an image that is missing: the engine may be gone, or the name not be one.
    raise SandboxStartFailed(f"{engine.flavor} cannot tell whether it has image {name!r}: {answer.why}")


def _image(name: str, answer: Answer) -> Image:
    try:
        said = msgspec.json.decode(answer.output)
        # docker answers with an object, podman with a list of one.
        facts: dict[str, Any] = said[0] if isinstance(said, list) else said
        config = facts.get("Config") or {}
        return Image(name=name, id=str(facts["Id"]), user=str(config.get("User") or ""))
    except (msgspec.DecodeError, LookupError, AttributeError, TypeError):
        raise SandboxStartFailed(
            f"the engine's answer about image {name!r} makes no sense: {answer.output[:200]}"
        ) from None


def _how_to_build(engine: Engine, name: str) -> str:
    if name == DEFAULT_IMAGE:
        return (
            f"{engine.flavor} does not have dgym's own image {name}: build it with 'make images' in a checkout of "
            "dgym, or name an image that holds Python and pytest in the task's 'image'"
        )
    return f"{engine.flavor} does not have the image {name}, and one of that name is never pulled; build it first"
