"""The top-level command group. The module of a command is imported only when that command is used."""

import importlib
from collections.abc import Mapping
from typing import Any

import click

from dgym.cli.output import printable_messages, translated
from dgym.errors import nearest

COMMANDS = {
    "init-llm-config": "Write a commented template of the models' configuration.",
    "llm": "List the configured models, or check that they answer.",
    "agent": "Show the first request that an agent sends to its model.",
    "attach": "Debug in the sandbox of an Episode of a cluster, at this terminal.",
    "benchmark": "Import benchmarks such as SWE-bench, and run them or render manifests.",
    "cancel": "End Episodes and EpisodeSets of a cluster before they finish.",
    "check": "Run tasks with and without their solution, and list their problems.",
    "clean": "Remove the leftovers of killed runs.",
    "completion": "Print the script by which a shell completes dgym's commands.",
    "get": "Show the Episodes and EpisodeSets of a cluster.",
    "image": "Build images of tasks, for clusters and containers.",
    "init": "Write a manifest for a repository of your own.",
    "lock": "Write exact versions and hashes of the requirements into manifests of tasks.",
    "logs": "Show the log of an Episode of a cluster.",
    "migrate": "Convert a configuration of debug-gym to a manifest.",
    "replay": "Run recorded trajectories again and compare the observations.",
    "report": "Show the figures of results, or compare two runs.",
    "results": "Fetch results, patches and trajectories of Episodes of a cluster.",
    "retry": "Run the failed episodes of EpisodeSets of a cluster again.",
    "run": "Run the Episodes and EpisodeSets of MANIFESTs on this machine.",
    "submit": "Run the Episodes and EpisodeSets of MANIFESTs in a cluster.",
    "tools": "List the tools, or show one with its instructions, options and schema.",
    "ui": "Show runs and episodes in a web page.",
    "validate": "Check manifests without running anything.",
    "version": "Show the versions of dgym and of its wire protocol.",
}

_MODULES = {
    **{name: name for name in COMMANDS},
    **dict.fromkeys(("cancel", "retry"), "submit"),
    **dict.fromkeys(("clean", "completion", "tools", "version"), "installed"),
    "init-llm-config": "llm",
}
"""The module of each command."""


class LazyGroup(click.Group):
    """A group that imports the module of a command when the command is used.

    ``modules`` maps the name of each command to its module, relative to ``dgym.cli``.
    """

    def __init__(self, *arguments: Any, modules: Mapping[str, str], **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names of all commands, sorted."""
        return sorted(self._modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's
        """Import the module of the command and return the command, or None if the name is unknown."""
        if cmd_name not in self._modules:
            return None
        declared = importlib.import_module(f"dgym.cli.{self._modules[cmd_name]}")
        command: click.Command = getattr(declared, f"{cmd_name.replace('-', '_')}_command")
        return command


class _Dgym(LazyGroup):
    """The group ``dgym``. ``--help`` lists ``COMMANDS``, because importing every module is slow."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command. The error for an unknown name suggests the nearest known one."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-") and not ctx.resilient_parsing:
            guess = nearest(name, COMMANDS)
            hint = f" Did you mean {guess!r}?" if guess else f" Commands: {', '.join(COMMANDS)}."
            ctx.fail(f"No such command {name!r}.{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        """Write the commands and summaries of ``COMMANDS``."""
        with formatter.section("Commands"):
            formatter.write_dl(sorted(COMMANDS.items()))

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Parse the options of the group, with exceptions turned into printable click errors."""
        with printable_messages():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Exceptions of dgym become messages and exit statuses."""
        with translated(ctx):
            return super().invoke(ctx)


@click.command(
    "dgym",
    cls=_Dgym,
    modules=_MODULES,
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
)
@click.version_option(package_name="dgym", prog_name="dgym", message="%(prog)s %(version)s")
def cli() -> None:
    """Run debugging episodes: one agent, one buggy repository, one sandbox."""
