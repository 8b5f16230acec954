"""What ``auto`` means: where a task's programs run on this machine."""

import asyncio
from typing import Literal

from dgym.errors import ManifestError, SandboxStartFailed
from dgym.sandbox.bubblewrap import bubblewrap_works
from dgym.sandbox.container_engine import Engine, EngineName, find_engine

SandboxKind = Literal["auto", "bubblewrap", "container", "none"]


async def choose_engine(
    sandbox: SandboxKind, engine: EngineName, *, image: str | None, delivered: bool, python: str | None
) -> Engine | None:
    """The engine whose containers the task runs in; None when it runs without one.

    With "auto" a task that names an image goes into a container if an engine answers; otherwise bubblewrap comes
    first, then a container of dgym's own image, then no isolation at all. A ``python`` of this machine is a reason not
    to take a container, where it does not exist.

    Args:
        sandbox: what was asked for.
        engine: which engine may be taken.
        image: the image the task names, if it does.
        delivered: False when the repository is in the image.
        python: an interpreter of this machine that was asked for.

    Raises:
        ManifestError: the task, the sandbox and the interpreter that were asked for do not fit together.
        SandboxStartFailed: a container is needed and no engine answers.
    """
    in_image = image is not None and not delivered
    if in_image and sandbox in ("bubblewrap", "none"):
        # It would debug an empty directory.
        raise ManifestError(
            f"the repository is in the image {image!r}, which the sandbox {sandbox!r} does not use; take 'container', "
            "or give the task a source"
        )
    if sandbox == "container" or in_image:
        if python is not None:
            raise ManifestError(
                f"python {python!r} is an interpreter of this machine, which a container does not see; give the task "
                "an 'image' with the interpreter it needs"
            )
        return await find_engine(engine)
    if sandbox != "auto" or python is not None:
        return None
    if image is None and await asyncio.to_thread(bubblewrap_works):
        return None
    try:
        return await find_engine(engine)
    except SandboxStartFailed:
        return None
