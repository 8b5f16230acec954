"""``dgym migrate``: a manifest from a configuration of debug-gym."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dgym.cli.completion import complete_agents

if TYPE_CHECKING:
    from dgym.cli.migrate.manifest import Converted


@click.command("migrate")
@click.argument("config", metavar="CONFIG.yaml", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--output",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where the manifest goes. [default: standard output]",
)
@click.option(
    "--agent", metavar="NAME", shell_complete=complete_agents, help="Only this section. [default: all of them]"
)
@click.option("--force", is_flag=True, help="Overwrite a file that exists.")
def command(config: Path, output: Path | None, agent: str | None, force: bool) -> None:
    """Convert a configuration of debug-gym to a manifest.

    Every section becomes an Episode, or for a benchmark an EpisodeSet. What has no counterpart, or another meaning,
    stands on standard error and in the manifest's first lines; docs/migrating.md says what became of each key.
    """
    from dgym.api import loads
    from dgym.cli.migrate.manifest import convert, describe, manifest_text
    from dgym.cli.migrate.section import Fate, read_sections
    from dgym.cli.yaml_text import write_text

    converted = convert(read_sections(config, agent), config=config, output=output)
    text = manifest_text(converted, config=config)
    loads(text, source=f"the manifest made of {config}")
    if output is None:
        click.echo(text, nl=False)
    else:
        write_text(output, text, force=force)
        click.echo(f"wrote {output}", err=True)
    for fate in Fate:
        found = describe(converted, fate)
        if found:
            click.echo("\n".join([f"{fate}:", *(f"  {line}" for line in found)]), err=True)
    _print_next(output, converted)


def _print_next(output: Path | None, converted: "Converted") -> None:
    import shlex

    manifest = shlex.quote(str(output)) if output is not None else "MANIFEST"
    options = "".join(f" --allow-local-path {shlex.quote(path)}" for path in converted.outside)
    options += f" --results {shlex.quote(converted.results)}" if converted.results else ""
    print(f"Next: dgym run {manifest}{options}", file=sys.stderr)
