"""``dgym validate``: check manifests without running anything."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

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
)
from dgym.cli.manifests import place_of, read_manifests
from dgym.cli.options import Inputs, takes_inputs
from dgym.cli.output import echo
from dgym.episodes import effective_tools
from dgym.errors import FieldPath, ManifestError, PatchError, PluginError, Problem, describe, error_of, show
from dgym.tools import load_tool, load_tools
from dgym.workspace.patches import parse_patch


@click.command("validate")
@takes_inputs("manifests", "folders", "local_paths")
def validate_command(inputs: Inputs) -> None:
    """Check manifests without running anything.

    All problems of all files are reported, with file, document, field, value and remedy. Fields and values, the names
    of agents and tools and their options, and the format of patches are checked. References to tasks in other manifests
    are not checked.
    """
    loaded = read_manifests(inputs)
    faults = [describe(problem, place_of(item)) for item in loaded for problem in _problems(item)]
    if faults:
        raise error_of(faults)
    for item in loaded:
        echo(f"{item.file}: document {item.document}: {item.resource.kind} {item.resource.metadata.name}: valid")


def _problems(item: Loaded) -> Iterator[Problem]:
    """Yield problems that loading does not check: repositories, agents, tools, prompt templates and patches."""
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
        remedy = "give source, or an image that contains the repository"
        yield Problem((*path, "source"), f"is missing, and image is missing too: the task needs a repository; {remedy}")
    yield from _patch_problems(spec.solution, (*path, "solution"))
    yield from _patch_problems(spec.scoring.test_patch, (*path, "scoring", "testPatch"))


def _patch_problems(patch: str | None, path: FieldPath) -> Iterator[Problem]:
    if patch is None:
        return
    try:
        if not parse_patch(patch.encode("utf-8", "surrogateescape")):
            yield Problem(path, f"{show(patch)} does not change anything; remove it, or give the output of git diff")
    except PatchError as error:
        yield Problem(path, f"{show(patch)} is not a patch: {error}; give the output of git diff")


def _failure(path: FieldPath, check: Callable[..., Any], *arguments: Any) -> Iterator[Problem]:
    """Yield the problem that ``check`` raises, if it raises one."""
    try:
        check(*arguments)
    except (ManifestError, PluginError) as error:
        yield Problem(path, str(error))
