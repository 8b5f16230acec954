"""``dgym version``."""

import click

from dgym.cli.options import output_option


@click.command("version")
@output_option
def command(output: str) -> None:
    """Show the versions of dgym and of its wire.

    Operator and agents speak the wire of the previous minor version too.
    """
    from importlib.metadata import version

    dgym = version("dgym")
    wire = ".".join(dgym.split(".")[:2])
    if output == "json":
        import json

        click.echo(json.dumps({"dgym": dgym, "wire": wire}))
    else:
        click.echo(f"dgym {dgym}\nwire {wire}")
