"""``dgym attach``: a person drives an Episode of a cluster."""

from collections.abc import Mapping
from typing import ClassVar

from dgym.agents import AgentContext, HumanAgent
from dgym.cli.output import echo
from dgym.console import META_COMMANDS
from dgym.env import AsyncRepoEnv


class _Visitor(HumanAgent):
    """The agent human, whose leaving does not end the episode."""

    commands: ClassVar[Mapping[str, str]] = META_COMMANDS | {"quit": "leave; the episode goes on (Ctrl-D)"}


async def attach(name: str, *, context: str | None, namespace: str | None, wait_seconds: float) -> None:
    """Let a person drive the Episode until it ends or the person leaves.

    Raises:
        DgymError: There is no such Episode, it cannot be driven, or the cluster refuses.
    """
    full = f"{namespace}/{name}" if namespace else name
    async with AsyncRepoEnv.connect(full, context=context, wait_seconds=wait_seconds) as env:
        left = await _Visitor().run(env, AgentContext(task_name=name))
    if left is not None:
        echo(f"{name} goes on: dgym attach {name} comes back, dgym cancel {name} ends it", err=True)
