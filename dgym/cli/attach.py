"""``dgym attach``: drive an Episode of a cluster at the terminal."""

import asyncio
from collections.abc import Mapping
from typing import ClassVar

import click

from dgym.agents import AgentContext, HumanAgent
from dgym.cli.options import ClusterPlace, takes_cluster_place
from dgym.cli.output import echo
from dgym.console import META_COMMANDS
from dgym.env import AsyncRepoEnv


class _Visitor(HumanAgent):
    """The agent human. Leaving it does not end the episode."""

    commands: ClassVar[Mapping[str, str]] = META_COMMANDS | {"quit": "leave; the episode continues (Ctrl-D)"}


@click.command("attach")
@click.argument("name", metavar="EPISODE")
@click.option(
    "--wait",
    type=click.FloatRange(min=0),
    default=900.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait until the sandbox is prepared.",
)
@takes_cluster_place("namespace", "context")
def attach_command(name: str, wait: float, place: ClusterPlace) -> None:
    """Debug in the sandbox of an Episode of a cluster, at this terminal.

    EPISODE must not have an agent. The commands are those of the agent human. quit and Ctrl-D leave the episode
    unchanged, and the same command returns to it. submit ends and scores it.

    Exit status: 0, 1 the Episode does not exist, has an agent or has finished, or the cluster refuses or cannot be
    reached, 2 usage, 130 Ctrl-C.
    """
    asyncio.run(_attach(name, place, wait))


async def _attach(name: str, place: ClusterPlace, wait_seconds: float) -> None:
    full_name = f"{place.namespace}/{name}" if place.namespace else name
    async with AsyncRepoEnv.connect(full_name, context=place.context, wait_seconds=wait_seconds) as env:
        left = await _Visitor().run(env, AgentContext(task_name=name))
    if left is not None:
        echo(f"{name} continues: dgym attach {name} returns to it, dgym cancel {name} ends it", err=True)
