"""``dgym check`` and ``dgym validate``: faults of tasks and manifests, found with and without running them."""

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import msgspec

from dgym.agents import load_agent
from dgym.api import (
    AgentSpec,
    DebugTask,
    DebugTaskSpec,
    Episode,
    EpisodeSet,
    EpisodeSetSpec,
    EpisodeSpec,
    Loaded,
    ToolSpec,
    find_task,
)
from dgym.cli.manifests import load_bundle, place_of, read_manifests
from dgym.cli.options import Inputs
from dgym.cli.output import FAILED, echo, echo_json, write_text
from dgym.documents import dump, read_yaml
from dgym.env import Opening, check_task
from dgym.episodes import effective_tools
from dgym.errors import FieldPath, ManifestError, PatchError, PluginError, Problem, describe, error_of, show
from dgym.sandbox.local import find_version
from dgym.session.verification import Assessment
from dgym.tools import load_tool, load_tools
from dgym.workspace.patches import parse_patch

_LISTED = 20
"""Names of tests printed at most."""


def check_and_show(
    tasks: Sequence[DebugTask],
    *,
    sandbox: str = "auto",
    engine: str = "auto",
    python: str | None = None,
    build_requirements: bool = False,
    repeats: int = 2,
    yes: bool = False,
    output: str = "table",
    write_to: Sequence[Loaded] = (),
) -> None:
    """Check the tasks one by one and print the assessments; exit with 1 where a task has problems.

    ``write_to`` are the manifests into which ``failToPass`` and ``passToPass`` are written.
    """
    assessments = check_all(tasks, _opening(sandbox, engine, python, build_requirements), repeats, yes=yes)
    if output == "json":
        echo_json(assessments)
    else:
        show_assessments(assessments, lists=not write_to)
    for loaded in write_to:
        _write_lists(loaded, assessments)
    if any(assessment.problems for assessment in assessments):
        sys.exit(FAILED)


def check_all(tasks: Sequence[DebugTask], opening: Opening, repeats: int, *, yes: bool) -> list[Assessment]:
    """The assessments of the tasks, one after the other; ``yes`` agrees to the installation of a missing Python."""
    if opening.python is None and opening.sandbox != "container":
        offer_pythons(tasks, yes=yes)

    def progress(text: str) -> None:
        echo(text, err=True)

    async def check() -> list[Assessment]:
        return [await check_task(task, opening, repeats=repeats, progress=progress) for task in tasks]

    return asyncio.run(check())


def offer_pythons(tasks: Iterable[DebugTask], *, yes: bool = False) -> None:
    """Install the Pythons of tasks that this machine lacks, if uv is there and the user agrees or ``yes`` is given.

    Without a terminal, uv or consent nothing happens: the sandbox reports what was looked for and how to install it.
    """
    for version in dict.fromkeys(task.spec.declared_environment().python for task in tasks if task.spec.image is None):
        if version is not None and not _is_found(version) and (uv := shutil.which("uv")) is not None:
            question = f"There is no Python {version} on this machine. Run 'uv python install {version}'?"
            if yes or (sys.stdin.isatty() and click.confirm(question, default=True, err=True)):
                # Its status does not matter: the interpreter is looked for again.
                command = [uv, "python", "install", version]
                subprocess.run(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False)


def _is_found(version: str) -> bool:
    with suppress(ManifestError):
        find_version(version)
        return True
    return False


def show_assessments(assessments: Sequence[Assessment], *, lists: bool = True) -> None:
    """Print each assessment; with ``lists`` also the tests that count, where these are few."""
    for assessment in assessments:
        number = len(assessment.problems)
        verdict = "fine" if not number else "1 problem" if number == 1 else f"{number} problems"
        echo(f"{assessment.task}: {verdict}")
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
    """How many tests are in which list."""
    lacking = {test for lack in assessment.lacks for test in lack.tests}
    counts = [f"{len(assessment.fail_to_pass)} failToPass", f"{len(assessment.pass_to_pass)} passToPass"]
    return ", ".join([*counts, *([f"{len(lacking)} left out"] if lacking else [])])


def _write_lists(loaded: Loaded, assessments: Sequence[Assessment]) -> None:
    """Put the names of the tests that count into a manifest, whose comments stay."""
    (name,) = (task.metadata.name for task in tasks_of([loaded]))
    assessment = next(one for one in assessments if one.task == name)
    path = Path(loaded.file)
    if not assessment.pass_to_pass and not assessment.fail_to_pass:
        raise ManifestError(f"{path}: nothing was written: no test of {name} passes or fails")
    text = with_scoring(path.read_text("utf-8"), loaded.document, assessment.fail_to_pass, assessment.pass_to_pass)
    write_text(path, text, force=True)
    echo(f"wrote {_counted(assessment)} into {path}")


def with_scoring(text: str, number: int, fail_to_pass: Sequence[str], pass_to_pass: Sequence[str]) -> str:
    """The manifest ``text`` with these lists in its document of this number; the rest stays as it is.

    Raises:
        ManifestError: The document has a form that cannot be changed line by line.
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
    """Where the block goes: in place of the commented one that ``dgym init`` writes, or before the first field."""
    comment = f"{' ' * indent}# scoring:"
    for index in range(first, len(lines)):
        if lines[index].rstrip() == comment:
            end = index + 1
            while end < len(lines) and lines[end].startswith(f"{' ' * indent}#   "):
                end += 1
            del lines[index:end]
            return index
    return first


def end_of_field(lines: Sequence[str], start: int) -> int:
    """The line after the field that begins at ``start``; comments and empty lines may be between its items."""
    end = start + 1
    for number, line in enumerate(lines[start + 1 :], start=start + 2):
        text, deeper = line.strip(), indent_of(line) - indent_of(lines[start])
        if not text or text.startswith("#"):
            continue
        if deeper < 0 or (deeper == 0 and not text.startswith("- ")):
            break
        end = number
    return end


def indent_of(line: str) -> int:
    """The number of spaces that the line begins with."""
    return len(line) - len(line.lstrip(" "))


def tasks_of(loaded: Sequence[Loaded]) -> list[DebugTask]:
    """The tasks of manifests, including those inside Episodes."""
    tasks: list[DebugTask] = []
    for item in loaded:
        resource = item.resource
        if isinstance(resource, DebugTask):
            tasks.append(resource)
        elif isinstance(resource, Episode) and resource.spec.task is not None:
            tasks.append(find_task(resource, ()))
    return tasks


def tasks_to_check(loaded: Sequence[Loaded], bundled: str | None) -> tuple[list[DebugTask], list[Loaded]]:
    """The tasks of manifests and of the benchmark ``bundled``, and the documents of files that hold one.

    Raises:
        ManifestError: There is none.
    """
    tasks = tasks_of([*loaded, *(load_bundle(bundled) if bundled else ())])
    if not tasks:
        raise ManifestError("nothing to check: the manifests hold no DebugTask, and no task inside an Episode")
    return tasks, [item for item in loaded if tasks_of([item]) and Path(item.file).is_file()]


def _opening(sandbox: str, engine: str, python: str | None, build_requirements: bool) -> Opening:
    chosen = {"sandbox": sandbox, "engine": engine, "python": python, "build_requirements": build_requirements}
    return msgspec.convert(chosen, Opening)


def validate_manifests(inputs: Inputs) -> None:
    """Print a line for each valid resource.

    Raises:
        ManifestError: With the faults of all files.
    """
    loaded = read_manifests(inputs)
    faults = [describe(problem, place_of(item)) for item in loaded for problem in _problems(item)]
    if faults:
        raise error_of(faults)
    for item in loaded:
        echo(f"{item.file}: document {item.document}: {item.resource.kind} {item.resource.metadata.name}: valid")


def _problems(item: Loaded) -> Iterator[Problem]:
    """Problems that loading leaves unseen: missing repositories, agents, tools, prompt templates, and patches."""
    resource, base = item.resource, Path(item.file).absolute().parent
    if isinstance(resource, DebugTask):
        yield from _task_problems(resource.spec, ("spec",))
    elif isinstance(resource, EpisodeSet):
        yield from _set_problems(resource.spec, base)
    elif isinstance(resource, Episode):
        yield from _episode_problems(resource.spec, ("spec",), base)


def _set_problems(spec: EpisodeSetSpec, base: Path) -> Iterator[Problem]:
    common = list(_episode_problems(spec.template, ("spec", "template"), base))
    yield from common
    known = {problem.message for problem in common}
    for index, arm in enumerate(spec.arms):
        for problem in _episode_problems(arm.applied_to(spec.template), ("spec", "arms", index), base):
            if problem.message not in known:
                yield problem


def _episode_problems(spec: EpisodeSpec, path: FieldPath, base: Path) -> Iterator[Problem]:
    if spec.task is not None:
        yield from _task_problems(spec.task, (*path, "task"))
    of_tools = [
        problem for index, tool in enumerate(spec.tools) for problem in _tool_problems(tool, (*path, "tools", index))
    ]
    yield from of_tools or _failure((*path, "tools"), load_tools, spec.tools)
    if spec.agent is not None:
        yield from _agent_problems(spec, spec.agent, (*path, "agent"), base)


def _tool_problems(tool: str | ToolSpec, path: FieldPath) -> Iterator[Problem]:
    name, options = (tool, {}) if isinstance(tool, str) else (tool.name, tool.options)
    return _failure(path, load_tool, name, options)


def _agent_problems(spec: EpisodeSpec, named: AgentSpec, path: FieldPath, base: Path) -> Iterator[Problem]:
    try:
        agent = load_agent(named.name)
    except PluginError as error:
        yield Problem((*path, "name"), str(error))
    else:
        of_tools = list(_failure((*path, "parameters"), effective_tools, spec.tools, named, agent))
        yield from of_tools or _failure((*path, "parameters"), agent.check_files, named.parameters, base)


def _task_problems(spec: DebugTaskSpec, path: FieldPath) -> Iterator[Problem]:
    if spec.source is None and spec.image is None:
        remedy = "give source, or an image that holds the repository"
        yield Problem((*path, "source"), f"is missing, and so is image: the task has no repository; {remedy}")
    yield from _patch_problems(spec.solution, (*path, "solution"))
    yield from _patch_problems(spec.scoring.test_patch, (*path, "scoring", "testPatch"))


def _patch_problems(patch: str | None, path: FieldPath) -> Iterator[Problem]:
    if patch is None:
        return
    try:
        if not parse_patch(patch.encode("utf-8", "surrogateescape")):
            yield Problem(path, f"{show(patch)} changes nothing; remove it, or give the output of git diff")
    except PatchError as error:
        yield Problem(path, f"{show(patch)} is no patch: {error}; give the output of git diff")


def _failure(path: FieldPath, check: Callable[..., Any], *arguments: Any) -> Iterator[Problem]:
    """The problem that ``check`` raises, if any."""
    try:
        check(*arguments)
    except (ManifestError, PluginError) as error:
        yield Problem(path, str(error))
