"""``dgym check``: run tasks to find their problems."""

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import click

from dgym.api import (
    DebugTask,
    Episode,
    Loaded,
    find_task,
)
from dgym.cli.manifests import load_bundle, read_manifests
from dgym.cli.options import (
    Inputs,
    output_option,
    repeat_option,
    takes_inputs,
    takes_opening,
)
from dgym.cli.output import FAILED, echo, echo_json, write_text
from dgym.cli.proposal import with_environments
from dgym.documents import dump, end_of_field, indent_of, read_yaml
from dgym.env import Opening, check_task
from dgym.errors import FieldPath, ManifestError
from dgym.sandbox.local import find_version
from dgym.session.scoring import Assessment

_LISTED = 20
"""Maximum number of test names that are printed."""


@click.command("check")
@takes_inputs("manifests", "folders", "bundled", "entrypoint", "local_paths")
@repeat_option(
    "Number of runs without and with the solution. Tests whose outcome differs between equal runs are flaky."
)
@takes_opening()
@click.option("--write", is_flag=True, help="Write failToPass and passToPass into the manifests.")
@click.option("--yes", is_flag=True, help="Install a missing Python with uv without asking.")
@output_option
def check_command(
    inputs: Inputs,
    repeat: int,
    write: bool,
    yes: bool,
    opening: Opening,
    output: str,
) -> None:
    """Run tasks with and without their solution, and list their problems.

    Problems are: tasks that pass already, tests that lack a module, plugin, program or extension, test ids that do not
    exist, flaky tests, and solutions that do not resolve their task. Tests that need a network, a database or a display
    do not count. Short lists of failToPass and passToPass are printed as YAML. A MANIFEST that is a directory is a
    repository. It gets the environment that dgym init proposes, and --entrypoint runs its tests.

    Exit status: 0 no problems, 1 a task has problems, 2 usage or manifest, 130 Ctrl-C.
    """
    loaded = read_manifests(inputs)
    if opening.sandbox != "container":  # dgym installs nothing in a container.
        loaded = with_environments(loaded, inputs.entrypoint, opening.python)
    tasks = tasks_of([*loaded, *(load_bundle(inputs.bundled) if inputs.bundled else ())])
    if not tasks:
        raise ManifestError(
            "nothing to check: the manifests contain neither a DebugTask nor an Episode with an inline task"
        )
    assessments = check_all(tasks, opening, repeat, yes=yes)
    if output == "json":
        echo_json(assessments)
    else:
        show_assessments(assessments, lists=not write)
    if write:
        for item in loaded:
            if tasks_of([item]) and Path(item.file).is_file():
                _write_lists(item, assessments)
    if any(assessment.problems for assessment in assessments):
        sys.exit(FAILED)


def check_all(tasks: Sequence[DebugTask], opening: Opening, repeats: int, *, yes: bool) -> list[Assessment]:
    """Check the tasks one after the other. ``yes`` installs a missing Python without a question."""
    if opening.installs:
        offer_pythons(tasks, yes=yes)

    def progress(text: str) -> None:
        echo(text, err=True)

    async def check() -> list[Assessment]:
        return [await check_task(task, opening, repeats=repeats, progress=progress) for task in tasks]

    return asyncio.run(check())


def offer_pythons(tasks: Iterable[DebugTask], *, yes: bool = False) -> None:
    """Install missing Pythons of tasks with uv, if the user agrees or ``yes`` is True.

    Nothing happens if uv is missing, or if there is neither ``yes`` nor a terminal. The sandbox then reports the
    missing Python and how to install it.
    """
    for version in dict.fromkeys(task.spec.declared_environment().python for task in tasks if task.spec.image is None):
        if version is not None and not _is_found(version) and (uv := shutil.which("uv")) is not None:
            question = f"Python {version} was not found on this machine. Run 'uv python install {version}'?"
            if yes or (sys.stdin.isatty() and click.confirm(question, default=True, err=True)):
                # The status is ignored, because the sandbox looks for the interpreter again.
                command = [uv, "python", "install", version]
                subprocess.run(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False)


def _is_found(version: str) -> bool:
    with suppress(ManifestError):
        find_version(version)
        return True
    return False


def show_assessments(assessments: Sequence[Assessment], *, lists: bool = True) -> None:
    """Print each assessment. With ``lists``, also print the tests that count, if there are at most 20."""
    for assessment in assessments:
        number = len(assessment.problems)
        summary = "fine" if not number else "1 problem" if number == 1 else f"{number} problems"
        echo(f"{assessment.task}: {summary}")
        for kind, texts in (("problem", assessment.problems), ("note", assessment.notes)):
            for text in texts:
                echo(f"  {kind}: {text}".replace("\n", "\n    "))
        found = {"failToPass": assessment.fail_to_pass, "passToPass": assessment.pass_to_pass}
        named = {name: tests for name, tests in found.items() if tests}
        if lists and 0 < sum(map(len, named.values())) <= _LISTED:
            echo(dump({"scoring": named}), nl=False)
        elif named:
            echo(f"  {_counted(assessment)}")
            if lists:
                echo("  --write puts these names into the manifest, --output json prints them")


def _counted(assessment: Assessment) -> str:
    lacking = {test for requirement in assessment.unmet for test in requirement.tests}
    counts = [f"{len(assessment.fail_to_pass)} failToPass", f"{len(assessment.pass_to_pass)} passToPass"]
    return ", ".join([*counts, *([f"{len(lacking)} left out"] if lacking else [])])


def _write_lists(loaded: Loaded, assessments: Sequence[Assessment]) -> None:
    """Write the names of the tests that count into a manifest. Comments stay."""
    (name,) = (task.metadata.name for task in tasks_of([loaded]))
    assessment = next(one for one in assessments if one.task == name)
    path = Path(loaded.file)
    if not assessment.pass_to_pass and not assessment.fail_to_pass:
        raise ManifestError(f"{path}: nothing was written: no test of {name} passes or fails")
    text = with_scoring(path.read_text("utf-8"), loaded.document, assessment.fail_to_pass, assessment.pass_to_pass)
    write_text(path, text, force=True)
    echo(f"wrote {_counted(assessment)} into {path}")


def with_scoring(text: str, number: int, fail_to_pass: Sequence[str], pass_to_pass: Sequence[str]) -> str:
    """Return the manifest ``text`` with these lists in document ``number``. Nothing else changes.

    Raises:
        ManifestError: The document cannot be changed line by line.
    """
    document = next(document for document in read_yaml(text) if document.number == number)
    where: FieldPath = ("spec", "task") if document.value["kind"] == "Episode" else ("spec",)
    spec = document.value["spec"]["task"] if len(where) > 1 else document.value["spec"]
    lines = text.split("\n")
    wanted = {name: list(tests) for name, tests in (("failToPass", fail_to_pass), ("passToPass", pass_to_pass))}
    first = document.line_of((*where, next(iter(spec))))
    if first is None or "{" in lines[first - 1].partition(":")[0]:
        raise ManifestError("the manifest is not in YAML's block form; add spec.scoring by hand")
    indent = indent_of(lines[first - 1])
    scoring = spec.get("scoring") or {}
    at = document.line_of((*where, "scoring")) if scoring else None
    for name in sorted(wanted, key=lambda name: -(document.line_of((*where, "scoring", name)) or 0)):
        if name in scoring:
            line = (document.line_of((*where, "scoring", name)) or 1) - 1
            del lines[line : end_of_field(lines, line)]
    inner = " " * (indent_of(lines[at]) if at is not None and scoring.keys() - wanted.keys() else indent + 2)
    new = [f"{inner}{line}" for line in dump({name: tests for name, tests in wanted.items() if tests}).splitlines()]
    if at is None:
        at = _place_of_scoring(lines, first - 1, indent)
        new = [f"{' ' * indent}scoring:", *new]
    lines[at:at] = new
    changed = "\n".join(lines)
    document = next((document for document in read_yaml(changed) if document.number == number), document)
    found = document.value["spec"]["task"] if len(where) > 1 else document.value["spec"]
    others = {name: value for name, value in scoring.items() if name not in wanted}
    expected = {**spec, "scoring": {**others, **{name: tests for name, tests in wanted.items() if tests}}}
    if document.problems or found != expected:
        raise ManifestError("spec.scoring cannot be changed line by line; write failToPass and passToPass by hand")
    return changed


def _place_of_scoring(lines: list[str], first: int, indent: int) -> int:
    """Return the index at which to insert the block ``scoring``, at or after ``first``.

    The block replaces the commented one that ``dgym init`` writes, which is deleted from ``lines``. Without such a
    comment, the block goes before the first field.
    """
    comment = f"{' ' * indent}# scoring:"
    for index in range(first, len(lines)):
        if lines[index].rstrip() == comment:
            end = index + 1
            while end < len(lines) and lines[end].startswith(f"{' ' * indent}#   "):
                end += 1
            del lines[index:end]
            return index
    return first


def tasks_of(loaded: Sequence[Loaded]) -> list[DebugTask]:
    """Return the DebugTasks and the inline tasks of Episodes."""
    tasks: list[DebugTask] = []
    for item in loaded:
        resource = item.resource
        if isinstance(resource, DebugTask):
            tasks.append(resource)
        elif isinstance(resource, Episode) and resource.spec.task is not None:
            tasks.append(find_task(resource, ()))
    return tasks
