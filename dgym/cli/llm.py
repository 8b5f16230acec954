"""``dgym llm`` and ``dgym init-llm-config``: list, check and configure models."""

import sys
from typing import TYPE_CHECKING, Any

import click

from dgym.cli.options import llm_config_option, output_option
from dgym.cli.output import FAILED, echo, echo_json
from dgym.errors import ModelConfigError

if TYPE_CHECKING:
    from dgym.llm import Check, ModelCatalog


@click.group("llm", no_args_is_help=True)
def llm_command() -> None:
    """List the configured models, or check that they answer."""


@llm_command.command("list")
@llm_config_option
@click.option("--tag", metavar="TAG", help="Only models with this tag.")
@output_option
def list_models(llm_config: str | None, tag: str | None, output: str) -> None:
    """List the models of the configuration, and the problems of their entries. No request is sent."""
    from dgym.llm import load_models

    catalog = load_models(llm_config)
    described = [_describe(catalog, name) for name in catalog.names]
    described = [one for one in described if tag is None or tag in one["tags"]]
    if output == "json":
        echo_json(described)
        return
    if not catalog.path.exists():
        echo(f"{catalog.path} does not exist; `dgym init-llm-config` writes a template.", err=True)
    width = max((len(one["name"]) for one in described), default=0)
    for one in described:
        tags = f"  [{', '.join(one['tags'])}]" if one["tags"] else ""
        echo(f"{one['name']:<{width}}  {one['problem'] or one['about']}{tags}")


def _describe(catalog: "ModelCatalog", name: str) -> dict[str, Any]:
    """Return the settings of a model that may be printed: no keys and no headers."""
    if catalog.is_interactive(name):
        about = "you, at the terminal"
        return {"name": name, "about": about, "model": None, "endpoints": [], "tags": [], "problem": None}
    entry = catalog.entries[name]
    settings = entry.settings
    if settings is None:
        return {"name": name, "about": "", "model": None, "endpoints": [], "tags": [], "problem": entry.problem}
    return {
        "name": name,
        "about": f"{settings.model} at {', '.join(settings.urls)}",
        "model": settings.model,
        "endpoints": list(settings.urls),
        "tags": list(settings.tags),
        "problem": None,
    }


@llm_command.command("check")
@click.argument("model", required=False)
@llm_config_option
@output_option
def check(model: str | None, llm_config: str | None, output: str) -> None:
    """Send one short request to MODEL, or to every configured model, and explain failures.

    Exit status: 0 all answer, 1 some do not, 2 usage or configuration.
    """
    import asyncio

    from dgym.llm import load_models

    catalog = load_models(llm_config)
    names = [model] if model else [name for name in catalog.names if not catalog.is_interactive(name)]
    if not names:
        raise ModelConfigError(f"{catalog.path} has no models; `dgym init-llm-config` writes a template")
    if model and catalog.is_interactive(model):
        echo(f"{model}: you answer yourself, at the terminal")
        return
    checks = asyncio.run(_check_all(catalog, names, alone=model is not None))
    if output == "json":
        echo_json(checks)
    else:
        width = max(len(one.model) for one in checks)
        for one in checks:
            where = f"{one.endpoint}: " if one.endpoint else ""
            echo(f"{one.model:<{width}}  {'ok    ' if one.ok else 'FAILED'}  {where}{one.message}")
    if not all(one.ok for one in checks):
        sys.exit(FAILED)


async def _check_all(catalog: "ModelCatalog", names: list[str], *, alone: bool) -> "list[Check]":
    """Check one model after the other. An invalid entry raises if ``alone``, and is a failed check otherwise."""
    from dgym.llm import Check, check_model

    checks: list[Check] = []
    for name in names:
        try:
            checks += await check_model(catalog, name)
        except ModelConfigError as error:
            if alone:
                raise
            checks.append(Check(model=name, endpoint="", ok=False, message=str(error)))
    return checks


@click.command("init-llm-config")
@click.argument("directory", required=False, type=click.Path(file_okay=False))
@click.option("--force", is_flag=True, help="Overwrite an existing configuration.")
def init_llm_config_command(directory: str | None, force: bool) -> None:
    """Write a commented template of the models' configuration.

    The file is llm.yaml in DIRECTORY. The default is ~/.config/dgym, where dgym finds it without further options. For
    another directory, use --llm-config or the environment variable LLM_CONFIG_FILE_PATH. Only you can read the file.
    """
    from pathlib import Path

    from dgym.llm import FILE_NAME, PATH_VARIABLE, default_path, user_directory, write_template

    path = (Path(directory) if directory is not None else user_directory()) / FILE_NAME
    if not write_template(path, overwrite=force):
        raise click.UsageError(f"{path} exists; --force overwrites it")
    echo(f"Wrote {path}. Edit it, then try it with: dgym llm check")
    if default_path().absolute() != path.absolute():
        echo(f"To use it: export {PATH_VARIABLE}={path.absolute()}")
