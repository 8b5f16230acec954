"""Removes containers whose process is gone, so that nothing remains after a crash.

Mostly there is nothing to do: a container ends with the process at the other end of its standard input. This is for
those that did not, because the engine was restarted or a program inside stopped the runner.
"""

import logging
from collections.abc import Iterable

from dgym.errors import SandboxStartFailed
from dgym.sandbox import container_locks as locks
from dgym.sandbox.container_command import LABEL
from dgym.sandbox.container_engine import Engine
from dgym.sandbox.container_process import remove_container

_log = logging.getLogger(__name__)
_cleaned: set[str] = set()


async def remove_abandoned_containers(engine: Engine) -> list[str]:
    """Remove the containers of this user on this machine that no live process owns; their names.

    Raises:
        SandboxStartFailed: the engine does not answer, or a container cannot be removed.
    """
    existing = await _ours(engine)
    abandoned = [name for name in existing if locks.is_abandoned(name)]
    for name in abandoned:
        await remove_container(engine, name)
        locks.forget(name)
    return abandoned


async def remove_abandoned_once(engine: Engine) -> None:
    """The same once in a process, before its first container; a failure is no reason not to start."""
    if engine.program in _cleaned:
        return
    _cleaned.add(engine.program)
    try:
        for name in await remove_abandoned_containers(engine):
            _log.info("removed container %s, which a process that is gone left behind", name)
    except SandboxStartFailed as error:
        _log.warning("abandoned containers could not be removed: %s", error)


async def remove_unused_locks(engines: Iterable[Engine]) -> None:
    """Remove the locks of processes that died, where none of these engines has a container of that name."""
    existing: set[str] = set()
    for engine in engines:
        existing.update(await _ours(engine))
    locks.forget_unused(existing)


async def _ours(engine: Engine) -> list[str]:
    found = await engine.call(
        "ps", "--all", "--filter", f"label={LABEL}={locks.scope()}", "--format", "{{.Names}}", timeout_seconds=30.0
    )
    if found.status != 0:
        raise SandboxStartFailed(found.why)
    return [name for name in found.output.split() if name.startswith(locks.PREFIX)]
