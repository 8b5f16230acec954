"""``dgym agent``: show the first request that an agent sends to its model."""

import json
from typing import TYPE_CHECKING, Any

import click

from dgym.cli.options import (
    Inputs,
    complete_agents,
    complete_overrides,
    complete_paths,
    llm_config_option,
    output_option,
    takes_opening,
)
from dgym.cli.output import echo, echo_document
from dgym.errors import ManifestError

if TYPE_CHECKING:
    from pathlib import Path

    from dgym.api import Loaded
    from dgym.env import Opening
    from dgym.episodes import Job

_STAND_IN = "MODEL"
"""The model name in the request if neither ``-p agent.model`` nor the manifest sets a model."""


@click.group("agent", no_args_is_help=True)
def agent_command() -> None:
    """Show the first request that an agent sends to its model."""


@agent_command.command("show")
@click.argument("name", metavar="NAME", shell_complete=complete_agents)
@click.option(
    "--task",
    metavar="TASK",
    shell_complete=complete_paths,
    help="A manifest, a repository or a bundled task. [default: the first task of mini_nightmare]",
)
@click.option(
    "-p",
    "assignments",
    multiple=True,
    metavar="PATH=VALUE",
    shell_complete=complete_overrides,
    help="Change a field of the episode's spec, such as agent.model=gpt-4.1.",
)
@takes_opening("sandbox", "engine", "python")
@llm_config_option
@output_option
def show(
    name: str,
    task: str | None,
    assignments: tuple[str, ...],
    opening: "Opening",
    llm_config: str | None,
    output: str,
) -> None:
    """Print the first request that the agent NAME sends: system message, user message and tools.

    The task's sandbox is started and its tests run as at the start of an episode. Nothing is sent to the model, and
    results are not stored. Without -p agent.model=NAME, the request is that of a model without settings. --output json
    prints the body of the request as it would be sent.
    """
    import asyncio
    from pathlib import Path
    from tempfile import TemporaryDirectory

    from dgym.agents import load_agent
    from dgym.episodes import RunOptions, first_request

    if not load_agent(name).uses_model:
        raise click.UsageError(f"agent {name} does not use a model, so it does not send a request")
    options = RunOptions(opening=opening, llm_config=llm_config)
    with TemporaryDirectory(prefix="dgym-show-") as directory:
        job = _first_job(name, task, assignments, options, Path(directory) / "llm.json")
        body = asyncio.run(first_request(job)).decode()
    if output == "json":
        echo_document(body)
    else:
        _print(json.loads(body))


def _first_job(name: str, task: str | None, assignments: tuple[str, ...], options: Any, stand_in: "Path") -> "Job":
    import msgspec

    from dgym.api import Episode, EpisodeSet
    from dgym.cli.manifests import override
    from dgym.cli.run import make_plan
    from dgym.llm import load_models

    loaded = override(_load(task), (f"agent.name={name}", *assignments))
    episodes = [item.resource for item in loaded if isinstance(item.resource, Episode | EpisodeSet)]
    specs = [one.spec if isinstance(one, Episode) else one.spec.template for one in episodes]
    if all(spec.agent is None or spec.agent.model is None for spec in specs):
        stand_in.write_text(json.dumps({_STAND_IN: {"model": _STAND_IN}}), encoding="utf-8")
        options = msgspec.structs.replace(options, llm_config=str(stand_in))
        loaded = override(loaded, (f"agent.model={_STAND_IN}",))
    jobs = make_plan(loaded, options).jobs
    if not jobs:
        raise ManifestError(f"--task {task}: the manifest does not contain an episode; give a DebugTask or an Episode")
    job = jobs[0]
    if job.agent.model is not None and load_models(job.options.llm_config).is_interactive(job.agent.model):
        raise click.UsageError("the model human does not get requests; name a model of the configuration")
    if len(jobs) > 1:
        echo(f"{job.episode}, the first of {len(jobs)} episodes:", err=True)
    return job


def _load(task: str | None) -> "list[Loaded]":
    from pathlib import Path

    from dgym.api import DebugTask, Loaded
    from dgym.benchmarks import bundled_tasks
    from dgym.cli.manifests import PREFIX, read_manifests
    from dgym.episodes import episodes_for

    if task is not None and Path(task).exists():
        loaded = read_manifests(Inputs(manifests=(task,)))
    else:
        known = [Loaded(one, PREFIX, 1) for one in bundled_tasks()]
        loaded = [item for item in known if task in (None, item.resource.metadata.name)][:1]
        if not loaded:
            names = ", ".join(item.resource.metadata.name for item in known)
            raise ManifestError(f"--task {task}: no such file and no bundled task; bundled tasks are {names}")
    if all(isinstance(item.resource, DebugTask) for item in loaded):
        loaded = [*loaded, *episodes_for(loaded)]
    return loaded


def _print(body: dict[str, Any]) -> None:
    """Print the request in readable form: messages as text, parameters of tools and other fields as JSON."""
    for message in body.pop("input" if "input" in body else "messages", []):
        content = message.get("content")
        text = "".join(part.get("text", "") for part in content) if isinstance(content, list) else content
        echo(f"── {message.get('role')} ──\n{text}\n")
    for tool in body.pop("tools", []):
        function = tool.get("function", tool)
        echo(f"── tool {function.get('name')} ──\n{function.get('description')}")
        echo(f"{json.dumps(function.get('parameters'), ensure_ascii=False)}\n")
    echo(f"── other fields ──\n{json.dumps(body, ensure_ascii=False)}")
