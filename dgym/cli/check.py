"""``dgym check`` and ``dgym validate``: faults of tasks and manifests, found with and without running them."""

import asyncio
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

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
from dgym.cli.output import FAILED, echo, echo_json
from dgym.documents import dump
from dgym.env import Opening, check_task
from dgym.episodes import effective_tools
from dgym.errors import FieldPath, ManifestError, PatchError, PluginError, Problem, describe, error_of, show
from dgym.session.verification import Assessment
from dgym.tools import load_tool, load_tools
from dgym.workspace.patches import parse_patch


def check_and_show(
    tasks: Sequence[DebugTask],
    *,
    sandbox: str = "auto",
    engine: str = "auto",
    python: str | None = None,
    build_requirements: bool = False,
    repeats: int = 2,
    output: str = "table",
) -> None:
    """Check the tasks one by one and print the assessments; exit with 1 where a task has problems."""
    assessments = _check_all(tasks, _opening(sandbox, engine, python, build_requirements), repeats)
    if output == "json":
        echo_json(assessments)
    else:
        _show(assessments)
    if any(assessment.problems for assessment in assessments):
        sys.exit(FAILED)


def _check_all(tasks: Sequence[DebugTask], opening: Opening, repeats: int) -> list[Assessment]:
    def progress(text: str) -> None:
        echo(text, err=True)

    async def check() -> list[Assessment]:
        return [await check_task(task, opening, repeats=repeats, progress=progress) for task in tasks]

    return asyncio.run(check())


def _show(assessments: Sequence[Assessment]) -> None:
    for assessment in assessments:
        number = len(assessment.problems)
        verdict = "fine" if not number else "1 problem" if number == 1 else f"{number} problems"
        echo(f"{assessment.task}: {verdict}")
        for kind, texts in (("problem", assessment.problems), ("note", assessment.notes)):
            for text in texts:
                echo(f"  {kind}: {text}".replace("\n", "\n    "))
        found = {"failToPass": assessment.fail_to_pass, "passToPass": assessment.pass_to_pass}
        lists = {name: tests for name, tests in found.items() if tests}
        if lists:
            echo(dump({"scoring": lists}), nl=False)


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


def tasks_to_check(inputs: Inputs) -> list[DebugTask]:
    """The tasks that the command line names.

    Raises:
        ManifestError: There is none.
    """
    tasks = tasks_of([*read_manifests(inputs), *(load_bundle(inputs.bundled) if inputs.bundled else ())])
    if not tasks:
        raise ManifestError("nothing to check: the manifests hold no DebugTask, and no task inside an Episode")
    return tasks


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
