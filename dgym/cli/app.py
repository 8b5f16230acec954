"""The group of commands. A command is declared in a module that is imported when the command is named."""

import difflib
import importlib
from typing import Any

import click

from dgym.cli.output import printable_messages, translated

COMMANDS = {
    "init-llm-config": "Write a commented template of the models' configuration.",
    "llm": "List the configured models, or check that they answer.",
    "agent": "Show the first request that an agent sends to its model.",
    "attach": "Debug in the sandbox of an Episode of a cluster, at this terminal.",
    "benchmark": "Import benchmarks such as SWE-bench, and run them or render manifests.",
    "cancel": "End Episodes and EpisodeSets of a cluster before their time.",
    "check": "Run tasks untouched and solved, and list their problems.",
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
    "version": "Show the versions of dgym and of its wire.",
}

_MODULES = {
    "agent": ("agent",),
    "benchmark": ("benchmark",),
    "cluster": ("attach", "cancel", "get", "logs", "results", "retry", "submit"),
    "image": ("image",),
    "installed": ("clean", "completion", "tools", "version"),
    "llm": ("init-llm-config", "llm"),
    "local": ("check", "init", "lock", "migrate", "replay", "report", "run", "validate"),
    "ui": ("ui",),
}
"""The commands that each module declares. At import, these modules load options and output functions only."""


class LazyGroup(click.Group):
    """Lists its commands from a table, so that ``--help`` imports none of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """The names of all commands."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's
        """Import the module that declares the command."""
        if cmd_name not in COMMANDS:
            return None
        module = next(module for module, names in _MODULES.items() if cmd_name in names)
        declared = importlib.import_module(f"dgym.cli.{module}")
        command: click.Command = getattr(declared, f"{cmd_name.replace('-', '_')}_command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; an unknown one is answered with the nearest."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-") and not ctx.resilient_parsing:
            nearest = difflib.get_close_matches(name, COMMANDS, n=1)
            hint = f" Did you mean {nearest[0]!r}?" if nearest else f" Commands: {', '.join(COMMANDS)}."
            ctx.fail(f"No such command {name!r}.{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        """List the commands from the table above."""
        with formatter.section("Commands"):
            formatter.write_dl(sorted(COMMANDS.items()))

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Parse the options of the group."""
        with printable_messages():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; exceptions of dgym become messages and exit statuses."""
        with translated(ctx):
            return super().invoke(ctx)


@click.command("dgym", cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]}, no_args_is_help=True)
@click.version_option(package_name="dgym", prog_name="dgym", message="%(prog)s %(version)s")
def cli() -> None:
    """Run debugging episodes: one agent, one buggy repository, one sandbox."""
