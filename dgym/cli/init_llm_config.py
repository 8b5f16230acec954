"""``dgym init-llm-config``."""

from pathlib import Path

import click


@click.command("init-llm-config")
@click.argument("directory", required=False, type=click.Path(file_okay=False, path_type=Path))
@click.option("--force", is_flag=True, help="Overwrite a configuration that is there.")
def command(directory: Path | None, force: bool) -> None:
    """Write a commented template of the models' configuration.

    It is llm.yaml in DIRECTORY. Without DIRECTORY it is in ~/.config/dgym, where it is found by itself; elsewhere it is
    found by --llm-config or the environment variable LLM_CONFIG_FILE_PATH. Only you can read the file.
    """
    from dgym.llm.loading import FILE_NAME, PATH_VARIABLE, default_path, user_directory, write_template

    path = (directory or user_directory()) / FILE_NAME
    if not write_template(path, overwrite=force):
        raise click.UsageError(f"{path} is there already; --force overwrites it")
    click.echo(f"Wrote {path}. Edit it, then try it with: dgym llm check")
    if default_path().absolute() != path.absolute():
        click.echo(f"To use it: export {PATH_VARIABLE}={path.absolute()}")
