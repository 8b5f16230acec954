"""The command line of the operator's image, ``python -m dgym_operator`` or ``dgym-operator``."""

import asyncio
import secrets
import signal
import sys
from pathlib import Path
from random import Random

import click
from pydantic import ValidationError

from dgym.decoding import setting_problems
from dgym.errors import DgymError
from dgym_operator.settings import PREFIX, Settings, settings_table

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group()
def main() -> None:
    """The controller that runs debugging episodes on Kubernetes."""


@main.command()
@click.option(
    "--kubeconfig", type=click.Path(dir_okay=False, path_type=Path), help="Kubeconfig for a run outside a cluster."
)
@click.option("--context", help="Context of the kubeconfig.")
def run(kubeconfig: Path | None, context: str | None) -> None:
    """Watch and serve episodes. Settings come from the environment: see `dgym-operator settings`."""
    from dgym.metric_types import omit_creation_times

    settings = _settings()
    _check_templates(settings)
    omit_creation_times()
    settings.start_logging()
    sys.exit(asyncio.run(_run(settings, kubeconfig, context)))


@main.command()
def crds() -> None:
    """Print the custom resource definitions."""
    import yaml

    from dgym.api import custom_resource_definitions

    click.echo(yaml.safe_dump_all(custom_resource_definitions(), sort_keys=False, allow_unicode=True), nl=False)


@main.command()
@click.argument("manifests", nargs=-1, required=True, type=_FILE)
@click.option(
    "--tasks", multiple=True, type=click.Path(exists=True, dir_okay=False, path_type=Path), help="DebugTasks."
)
@click.option("--template", help="Use this pod template instead of the templates that the Episode and the task name.")
@click.option(
    "-n", "--namespace", default="default", show_default=True, help="Namespace of manifests without a namespace."
)
def render(manifests: tuple[Path, ...], tasks: tuple[Path, ...], template: str | None, namespace: str) -> None:
    """Print the pods that this installation would create for the episodes in MANIFESTS."""
    from dgym_operator.render import render_command

    settings = _settings()
    try:
        text = render_command(manifests, settings=settings, task_paths=tasks, template=template, namespace=namespace)
    except DgymError as error:
        raise click.ClickException(str(error)) from None
    click.echo(text, nl=False)


@main.command("settings")
def show_settings() -> None:
    """Print every setting as a table in Markdown."""
    click.echo(settings_table(), nl=False)


async def _run(settings: Settings, kubeconfig: Path | None, context: str | None) -> int:
    from dgym.kube import AccessError, LeadershipLost, SystemClock, load_access
    from dgym.tracing import start_tracer
    from dgym_operator.app import Operator

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    try:
        access = await load_access(kubeconfig, context)
    except AccessError as error:
        click.echo(f"dgym-operator: {error}", err=True)
        return 1
    tracer = start_tracer("dgym-operator")
    operator = Operator(
        settings,
        access,
        clock=SystemClock(),
        random=Random(),  # noqa: S311 - jitter
        random_bytes=secrets.token_bytes,
        tracer=tracer,
    )
    try:
        await operator.run(stop)
    except BaseExceptionGroup as group:
        lost, other = group.split(LeadershipLost)
        if other is not None:
            raise
        click.echo(f"dgym-operator: {lost and lost.exceptions[0]}", err=True)
        return 1
    finally:
        tracer.close()
    return 0


def _check_templates(settings: Settings) -> None:
    """Exit if a pod template is invalid, so that `helm upgrade --wait` fails instead of every episode."""
    from dgym_operator.render import check_templates

    try:
        check_templates(settings)
    except DgymError as error:
        click.echo(f"dgym-operator: {error}", err=True)
        sys.exit(2)


def _settings() -> Settings:
    try:
        return Settings()
    except ValidationError as error:
        for problem in setting_problems(error.errors(), PREFIX):
            click.echo(f"dgym-operator: {problem}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
