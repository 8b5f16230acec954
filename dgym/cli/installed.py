"""``dgym tools`` and ``dgym version``: what is installed."""

from typing import TYPE_CHECKING, Any

import click

from dgym.cli.completion import complete_tools
from dgym.cli.options import output_option
from dgym.cli.output import echo_json

if TYPE_CHECKING:
    from dgym.tools import Tool


@click.command("tools")
@click.argument("name", required=False, shell_complete=complete_tools)
@output_option
def tools(name: str | None, output: str) -> None:
    """List the tools, or show one with its schema and instructions.

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


@click.command("version")
@output_option
def version(output: str) -> None:
    """Show the versions of dgym and of its wire.

    Operator and agents speak the wire of the previous minor version too.
    """
    from importlib import metadata

    dgym = metadata.version("dgym")
    wire = ".".join(dgym.split(".")[:2])
    if output == "json":
        import json

        click.echo(json.dumps({"dgym": dgym, "wire": wire}))
    else:
        click.echo(f"dgym {dgym}\nwire {wire}")
