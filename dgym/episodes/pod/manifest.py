"""Reads an assignment: its task, tools and agent, and the header of its trajectory. Pure but for loading the agent."""

from importlib.metadata import version
from typing import Any, TypeVar

import msgspec

from dgym.agents import Agent, Tools, load_agent
from dgym.api import AgentSpec, DebugTask, ToolSpec, digest
from dgym.episodes.job import effective_tools
from dgym.episodes.player import EpisodeRun
from dgym.errors import ManifestError
from dgym.results import TrajectoryHeader
from dgym.wire.assignments import Assignment

T = TypeVar("T")


def read_task(assignment: Assignment) -> DebugTask:
    """The assignment's task.

    Raises:
        ManifestError: It is none.
    """
    return _convert(assignment.task, DebugTask, "task")


def read_tools(assignment: Assignment) -> Tools:
    """The tools that the Episode names."""
    return tuple(
        tool if isinstance(tool, str) else ToolSpec(name=tool.name, options=tool.options) for tool in assignment.tools
    )


def header_of(
    assignment: Assignment, task: DebugTask, tools: Tools, started: str, *, agent: AgentSpec | None = None
) -> TrajectoryHeader:
    """The first line of the attempt's trajectory; without ``agent`` an external driver's."""
    return TrajectoryHeader(
        dgym_version=version("dgym"),
        namespace=assignment.namespace,
        episode=assignment.episode,
        sample=assignment.sample,
        attempt=assignment.attempt,
        task=task.metadata.name,
        task_digest=digest(task, None),
        digest=assignment.episode_uid,
        agent={} if agent is None else msgspec.to_builtins(agent),
        tools=tuple(msgspec.to_builtins(tools)),
        sandbox="pod",
        start_time=started,
    )


def read_run(assignment: Assignment) -> EpisodeRun:
    """The run that ``assignment`` describes.

    Raises:
        ManifestError: The task, the agent or its parameters are wrong, or need a terminal.
        PluginError: There is no such agent.
    """
    task = read_task(assignment)
    spec = _convert(assignment.agent or {}, AgentSpec, "agent")
    agent = _load(spec)
    return EpisodeRun(
        task=task,
        spec=spec,
        agent=agent,
        tools=effective_tools(read_tools(assignment), spec, agent),
        session=f"{assignment.episode}-{assignment.episode_uid[:16]}",
        seed=None if spec.seed is None else spec.seed + assignment.sample,
        deadline_seconds=assignment.remaining_seconds,
    )


def _load(spec: AgentSpec) -> type[Agent]:
    if ":" in spec.name:
        raise ManifestError(f"agent {spec.name!r}: a cluster knows the agents that are installed in its image alone")
    agent = load_agent(spec.name)
    if agent.interactive:
        raise ManifestError(f"agent {spec.name} needs a terminal, which a cluster has not; use dgym run")
    return agent


def _convert(value: dict[str, Any], kind: type[T], what: str) -> T:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise ManifestError(f"{what}: {error}") from None
