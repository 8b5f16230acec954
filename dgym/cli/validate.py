"""``dgym validate``."""

import click

from dgym.cli.options import folders_option, manifests_argument


@click.command("validate")
@manifests_argument
@folders_option
def command(manifests: tuple[str, ...], folders: tuple[str, ...]) -> None:
    """Check manifests without running anything.

    All faults of all files are reported, with file, document, field, value and remedy. References to tasks in other
    manifests are not followed.
    """
    from dgym.cli.resources import read_manifests

    if not manifests and not folders:
        raise click.UsageError("name at least one manifest")
    for item in read_manifests(manifests, folders):
        click.echo(f"{item.file}: document {item.document}: {item.resource.kind} {item.resource.metadata.name}: valid")
