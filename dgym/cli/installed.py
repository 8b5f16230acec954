"""Commands about the local installation: ``dgym tools``, ``version``, ``completion`` and ``clean``."""

from typing import TYPE_CHECKING, Any, cast

import click

from dgym.cli.options import complete_tools, engine_option, output_option
from dgym.cli.output import echo, echo_json

if TYPE_CHECKING:
    from dgym.sandbox import EngineName
    from dgym.sandbox.container import Engine
    from dgym.tools import Tool


@click.command("tools")
@click.argument("name", required=False, shell_complete=complete_tools)
@output_option
def tools_command(name: str | None, output: str) -> None:
    """List the tools, or show one with its instructions, options and schema.

    NAME is an installed tool or a dotted path, package.module:Class.
    """
    from dgym.tools import available_tools, load_tool

    found = [load_tool(one) for one in ([name] if name else available_tools())]
    if output == "json":
        described = [_describe(tool) for tool in found]
        echo_json(described[0] if name else described)
    elif name:
        _show(found[0])
    else:
        width = max((len(tool.name) for tool in found), default=0)
        for tool in found:
            echo(f"{tool.name:<{width}}  {tool.description.strip().splitlines()[0]}")


def _describe(tool: "Tool") -> dict[str, Any]:
    from dgym.tools import read_options

    return {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "instructions": tool.instructions,
        "options": read_options(type(tool)).json_schema,
    }


def _show(tool: "Tool") -> None:
    from dgym.tools import describe_options

    echo(f"{tool.name}\n\n{tool.instructions.rstrip()}\n\n{describe_options(tool)}\n\nSchema of the arguments:")
    echo_json(tool.parameters)


@click.command("version")
@output_option
def version_command(output: str) -> None:
    """Show the versions of dgym and of its wire protocol.

    The operator and agent pods also support the previous minor version of the protocol.
    """
    from importlib import metadata

    dgym = metadata.version("dgym")
    wire = ".".join(dgym.split(".")[:2])
    if output == "json":
        echo_json({"dgym": dgym, "wire": wire})
    else:
        echo(f"dgym {dgym}\nwire {wire}")


@click.command("clean")
@engine_option
def clean_command(engine: str) -> None:
    """Remove the leftovers of killed runs.

    These are containers, directories for sandboxes and sources, control groups, and programs that ran without
    isolation. Leftovers that a running process uses are kept. Results and the cache are kept.
    """
    import asyncio

    from dgym.sandbox.local import remove_leftovers

    removed = [*asyncio.run(_clean_containers(engine)), *asyncio.run(remove_leftovers())]
    for name in removed:
        echo(f"removed {name}")
    if not removed:
        echo("nothing was left behind")


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
    """Return the engine of that name, which must answer, or for ``auto`` all engines that answer."""
    import shutil

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
                echo(f"containers were not searched: {error}", err=True)
    return found


_PROGRAM = "dgym"
_VARIABLE = "_DGYM_COMPLETE"


_COMPLETION_HELP = """Print the script by which a shell completes dgym's commands.

\b
bash: dgym completion bash > ~/.local/share/bash-completion/completions/dgym
      (needs the package bash-completion)
zsh:  dgym completion zsh > ~/.zfunc/_dgym   (~/.zfunc in fpath, before compinit)
fish: dgym completion fish > ~/.config/fish/completions/dgym.fish

Commands, options, files, agents, tools, bundled benchmarks and the paths of -p are completed.
"""


@click.command("completion", help=_COMPLETION_HELP)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion_command(shell: str) -> None:
    """Print the script."""
    from click.shell_completion import get_completion_class

    from dgym.cli.app import cli

    found = get_completion_class(shell)
    assert found is not None
    # The source() of the base class. The one for bash would start a bash to check its version.
    complete = found(cli, {}, _PROGRAM, _VARIABLE)
    echo(complete.source_template % complete.source_vars())
