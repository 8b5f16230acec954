"""``dgym tools``."""

from typing import TYPE_CHECKING, Any

import click

from dgym.cli.options import echo_json, output_option
from dgym.cli.suggestions import complete_tools

if TYPE_CHECKING:
    from dgym.tools import Tool


@click.command("tools")
@click.argument("name", required=False, shell_complete=complete_tools)
@output_option
def command(name: str | None, output: str) -> None:
    """List the tools, or show one with its schema and instructions.

    NAME is an installed tool or a dotted path, package.module:Class.
    """
    from dgym.tools import available_tools, load_tool

    tools = [load_tool(one) for one in ([name] if name else available_tools())]
    if output == "json":
        described = [_describe(tool) for tool in tools]
        echo_json(described[0] if name else described)
    elif name:
        _show(tools[0])
    else:
        width = max((len(tool.name) for tool in tools), default=0)
        for tool in tools:
            click.echo(f"{tool.name:<{width}}  {tool.description.strip().splitlines()[0]}")


def _describe(tool: "Tool") -> dict[str, Any]:
    return {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "instructions": tool.instructions,
    }


def _show(tool: "Tool") -> None:
    import json

    click.echo(f"{tool.name}\n\n{tool.instructions.rstrip()}\n\nSchema of the arguments:")
    click.echo(json.dumps(tool.parameters, indent=2))
