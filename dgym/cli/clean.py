"""``dgym clean``."""

import shutil
from typing import TYPE_CHECKING, cast

import click

from dgym.cli.options import engine_option

if TYPE_CHECKING:
    from dgym.sandbox import EngineName
    from dgym.sandbox.container import Engine


@click.command("clean")
@engine_option
def command(engine: str) -> None:
    """Remove what killed runs left behind.

    These are containers, directories for sandboxes and sources, control groups, and programs that ran without
    isolation. What a living process uses is left alone. Results and the cache stay.
    """
    import asyncio

    from dgym.sandbox.local import remove_leftovers

    removed = [*asyncio.run(_clean_containers(engine)), *asyncio.run(remove_leftovers())]
    for name in removed:
        click.echo(f"removed {name}")
    if not removed:
        click.echo("nothing was left behind")


async def _clean_containers(name: str) -> list[str]:
    from dgym.sandbox.container import remove_abandoned_containers, remove_unused_locks

    engines = await _engines(name)
    removed = [
        f"container {container} ({engine.flavor})"
        for engine in engines
        for container in await remove_abandoned_containers(engine)
    ]
    await remove_unused_locks(engines)
    return removed


async def _engines(name: str) -> "list[Engine]":
    """All engines that answer, or the one that was named, which must."""
    from dgym.errors import SandboxStartFailed
    from dgym.sandbox.container import ORDER, find_engine

    if name != "auto":
        return [await find_engine(cast("EngineName", name))]
    found: list[Engine] = []
    for candidate in ORDER:
        try:
            found.append(await find_engine(candidate))
        except SandboxStartFailed as error:
            if shutil.which(candidate):
                click.echo(f"containers were not looked for: {error}", err=True)
    return found
