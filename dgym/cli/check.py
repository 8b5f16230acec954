"""``dgym check``."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from dgym.cli.failures import FAILED
from dgym.cli.options import (
    bundled_option,
    check_python,
    echo_json,
    engine_option,
    entrypoint_option,
    folders_option,
    manifests_argument,
    output_option,
    python_option,
    sandbox_option,
)

if TYPE_CHECKING:
    from dgym.api import DebugTask, Loaded
    from dgym.env.local import Opening
    from dgym.session.verification import Assessment


@click.command("check")
@manifests_argument
@folders_option
@bundled_option
@entrypoint_option
@click.option(
    "--repeat",
    type=click.IntRange(1, 100),
    default=2,
    show_default=True,
    metavar="N",
    help="Runs of the untouched repository, and of the solution; tests that differ between them are flaky.",
)
@sandbox_option
@engine_option
@python_option
@output_option
def command(
    manifests: tuple[str, ...],
    folders: tuple[str, ...],
    bundled: str | None,
    entrypoint: str | None,
    repeat: int,
    sandbox: str,
    engine: str,
    python: str | None,
    output: str,
) -> None:
    """Run tasks untouched and solved, and say what is wrong with them.

    Problems are: tasks that pass already, environments that cannot run the tests, test ids that do not exist, flaky
    tests, and solutions that do not resolve their task. failToPass and passToPass are printed as YAML. A MANIFEST that
    is a directory is a repository, whose tests --entrypoint runs.

    Exit status: 0 nothing is wrong, 1 a task has problems, 2 usage or manifest, 130 Ctrl-C.
    """
    if not manifests and not folders and not bundled:
        raise click.UsageError("name at least one manifest or repository, or a benchmark with --bundled")
    tasks = _tasks(manifests, folders, bundled, entrypoint)
    check_and_show(tasks, sandbox=sandbox, engine=engine, python=check_python(python), repeats=repeat, output=output)


def check_and_show(
    tasks: "Sequence[DebugTask]",
    *,
    sandbox: str = "auto",
    engine: str = "auto",
    python: str | None = None,
    repeats: int = 2,
    output: str = "table",
) -> None:
    """Check one task after the other and print what was found; exit with 1 where a task has problems."""
    assessments = _check_all(tasks, _opening(sandbox, engine, python), repeats)
    if output == "json":
        echo_json(assessments)
    else:
        _show(assessments)
    if any(assessment.problems for assessment in assessments):
        sys.exit(FAILED)


def _check_all(tasks: "Sequence[DebugTask]", opening: "Opening", repeats: int) -> "list[Assessment]":
    import asyncio

    from dgym.env.checking import check_task

    def progress(text: str) -> None:
        click.echo(text, err=True)

    async def check() -> "list[Assessment]":
        return [await check_task(task, opening, repeats=repeats, progress=progress) for task in tasks]

    return asyncio.run(check())


def _show(assessments: "Sequence[Assessment]") -> None:
    from dgym.agents.console import printable
    from dgym.cli import yaml_text

    for assessment in assessments:
        number = len(assessment.problems)
        verdict = "fine" if not number else "1 problem" if number == 1 else f"{number} problems"
        click.echo(printable(f"{assessment.task}: {verdict}"))
        for kind, texts in (("problem", assessment.problems), ("note", assessment.notes)):
            for text in texts:
                click.echo(printable(f"  {kind}: {text}".replace("\n", "\n    ")))
        found = {"failToPass": assessment.fail_to_pass, "passToPass": assessment.pass_to_pass}
        lists = {name: tests for name, tests in found.items() if tests}
        if lists:
            click.echo("\n".join(yaml_text.lines({"scoring": lists})))


def tasks_of(loaded: "Sequence[Loaded]") -> "list[DebugTask]":
    """The tasks of manifests, those inside Episodes among them."""
    from dgym.api import DebugTask, Episode, find_task

    tasks: list[DebugTask] = []
    for item in loaded:
        resource = item.resource
        if isinstance(resource, DebugTask):
            tasks.append(resource)
        elif isinstance(resource, Episode) and resource.spec.task is not None:
            tasks.append(find_task(resource, ()))
    return tasks


def _tasks(
    manifests: Sequence[str], folders: Sequence[str], bundled: str | None, entrypoint: str | None
) -> "list[DebugTask]":
    from dgym.cli.bundles import load_bundle
    from dgym.cli.resources import read_manifests
    from dgym.errors import ManifestError

    loaded = read_manifests(manifests, folders, entrypoint=entrypoint)
    tasks = tasks_of([*loaded, *(load_bundle(bundled) if bundled else ())])
    if not tasks:
        raise ManifestError("nothing to check: the manifests hold no DebugTask, and no task inside an Episode")
    return tasks


def _opening(sandbox: str, engine: str, python: str | None) -> "Opening":
    import msgspec

    from dgym.env.local import Opening

    return msgspec.convert({"sandbox": sandbox, "engine": engine, "python": python}, Opening)
