"""``dgym validate``."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from dgym.cli.options import folders_option, manifests_argument

if TYPE_CHECKING:
    from dgym.api import AgentSpec, EpisodeSpec, Loaded, ToolSpec
    from dgym.api.task import DebugTaskSpec
    from dgym.problems import Path, Problem


@click.command("validate")
@manifests_argument
@folders_option
def command(manifests: tuple[str, ...], folders: tuple[str, ...]) -> None:
    """Check manifests without running anything.

    All faults of all files are reported, with file, document, field, value and remedy: fields and values, the names of
    agents and tools and their options, and whether patches are patches. References to tasks in other manifests are not
    followed.
    """
    from dgym.cli.resources import read_manifests
    from dgym.problems import describe, error_of

    if not manifests and not folders:
        raise click.UsageError("name at least one manifest")
    loaded = read_manifests(manifests, folders)
    faults = [describe(problem, _place(item)) for item in loaded for problem in _problems(item)]
    if faults:
        raise error_of(faults)
    for item in loaded:
        click.echo(f"{item.file}: document {item.document}: {item.resource.kind} {item.resource.metadata.name}: valid")


def _place(item: "Loaded") -> str:
    return f"{item.file}: document {item.document} ({item.resource.kind} {item.resource.metadata.name})"


def _problems(item: "Loaded") -> "Iterator[Problem]":
    """Problems that loading a manifest does not find: names and options of agents and tools, and patches."""
    from dgym.api import DebugTask, EpisodeSet

    resource = item.resource
    if isinstance(resource, DebugTask):
        yield from _task_problems(resource.spec, ("spec",))
    elif isinstance(resource, EpisodeSet):
        yield from _episode_problems(resource.spec.template, ("spec", "template"))
    else:
        yield from _episode_problems(resource.spec, ("spec",))


def _episode_problems(spec: "EpisodeSpec", path: "Path") -> "Iterator[Problem]":
    from dgym.tools import load_tools

    if spec.task is not None:
        yield from _task_problems(spec.task, (*path, "task"))
    of_tools = [problem for index, tool in enumerate(spec.tools) for problem in _tool(tool, (*path, "tools", index))]
    yield from of_tools or _failure((*path, "tools"), load_tools, spec.tools)
    if spec.agent is not None:
        yield from _agent(spec, spec.agent, (*path, "agent"))


def _tool(tool: "str | ToolSpec", path: "Path") -> "Iterator[Problem]":
    from dgym.tools import load_tool

    name, options = (tool, {}) if isinstance(tool, str) else (tool.name, tool.options)
    return _failure(path, load_tool, name, options)


def _agent(spec: "EpisodeSpec", named: "AgentSpec", path: "Path") -> "Iterator[Problem]":
    from dgym.agents import load_agent
    from dgym.episodes.job import effective_tools
    from dgym.errors import PluginError
    from dgym.problems import Problem

    try:
        agent = load_agent(named.name)
    except PluginError as error:
        yield Problem((*path, "name"), str(error))
    else:
        yield from _failure((*path, "parameters"), effective_tools, spec.tools, named, agent)


def _task_problems(spec: "DebugTaskSpec", path: "Path") -> "Iterator[Problem]":
    yield from _patch_problems(spec.solution, (*path, "solution"))
    yield from _patch_problems(spec.scoring.test_patch, (*path, "scoring", "testPatch"))


def _patch_problems(patch: str | None, path: "Path") -> "Iterator[Problem]":
    from dgym.errors import PatchError
    from dgym.problems import Problem, show
    from dgym.workspace.patches import parse_patch

    if patch is None:
        return
    try:
        if not parse_patch(patch.encode("utf-8", "surrogateescape")):
            yield Problem(path, f"{show(patch)} changes nothing; remove it, or give the output of git diff")
    except PatchError as error:
        yield Problem(path, f"{show(patch)} is no patch: {error}; give the output of git diff")


def _failure(path: "Path", check: Callable[..., Any], *arguments: Any) -> "Iterator[Problem]":
    """The problem that ``check`` reports by an exception, if it reports one."""
    from dgym.errors import ManifestError, PluginError
    from dgym.problems import Problem

    try:
        check(*arguments)
    except (ManifestError, PluginError) as error:
        yield Problem(path, str(error))
