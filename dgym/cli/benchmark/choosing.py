"""Select instances of a benchmark: the shared options, the selected tasks, and an EpisodeSet of them."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from dgym.agents import ModelAgent, load_agent
from dgym.api import AgentOverrides, AgentSpec, DebugTask, EpisodeSet, apply_overrides, in_order_of_use
from dgym.benchmarks import bundled, load_bundled
from dgym.benchmarks.datasets import (
    HEALTHY,
    Checkouts,
    ImageNames,
    Imported,
    Row,
    RowError,
    load_adapter,
    make_set,
    make_tasks,
    open_imported,
    read_health,
    select,
)
from dgym.cli.options import complete_agents
from dgym.cli.output import echo, in_one_line
from dgym.errors import ManifestError, PluginError
from dgym.sandbox import cache_directory

COMES_WITH_DGYM = "comes with dgym"
_Agent = TypeVar("_Agent", AgentSpec, AgentOverrides)
_ONLY_BY_A_CALL = {"evalOnReset": False, "evalOnRewrite": False}
_SHORT = {"agent": "agent.name", "model": "agent.model"}
_FORM = "write NAME or NAME:KEY=VALUE,KEY=VALUE, such as debug:agent=debug_agent,tools=[view,pdb]"
_PIECE = re.compile(r"""[^][{}"',]+|"[^"]*"|'[^']*'|.""", re.DOTALL)


def _all(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def decorate(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


split_option = click.option("--split", metavar="NAME", help="The split. [default: the only imported split]")
takes_choice = _all(
    split_option,
    click.option(
        "--filter",
        "filters",
        multiple=True,
        metavar="IDS|FIELD=PATTERN",
        help="Only these instances: ids with commas, or a field of the rows. * matches any text.",
    ),
    click.option("--limit", type=click.IntRange(1), metavar="N", help="Only the first N instances."),
    click.option(
        "--image",
        "template",
        metavar="TEMPLATE",
        help="Template of the names of images, such as me/{{ instance_id }}:latest.",
    ),
    click.option("--registry", metavar="HOST", help="The registry of images, instead of their own."),
    click.option(
        "--repositories",
        metavar="DIR",
        type=click.Path(exists=True, file_okay=False),
        help="Directory of git repositories whose commits are used instead of images.",
    ),
)

takes_episodes = _all(
    click.option("--agent", metavar="NAME", shell_complete=complete_agents, help="The agent of the episodes."),
    click.option("--model", metavar="NAME", help="The agent's model."),
    click.option(
        "--arm",
        "arms",
        multiple=True,
        metavar="NAME:KEY=VALUE,...",
        help="An arm to compare. It changes agent, model, tools or agent.FIELD, such as plain:agent=rewrite_agent.",
    ),
    click.option(
        "--samples", type=click.IntRange(1, 1000), default=1, show_default=True, help="Number of episodes of each task."
    ),
    click.option(
        "--unhealthy", is_flag=True, help="Include the tasks that dgym benchmark health found flaky or broken."
    ),
)


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """Values of the options of ``takes_choice`` and ``takes_episodes``."""

    split: str | None = None
    filters: tuple[str, ...] = ()
    limit: int | None = None
    template: str | None = None
    registry: str | None = None
    repositories: str | None = None
    agent: str | None = None
    model: str | None = None
    arms: tuple[str, ...] = ()
    samples: int = 1
    unhealthy: bool = False


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """The selected tasks.

    Attributes:
        source: The benchmark and split.
        tasks: The tasks.
        instances: The ids of the instances, in the order of ``tasks``.
        whole: True if every row of the split became a task.
        left_out: Number of tasks that were left out because of their health, by health state.
    """

    source: Imported
    tasks: tuple[DebugTask, ...]
    instances: tuple[str, ...]
    whole: bool
    left_out: dict[str, int]


def choose(name: str, choice: Choice, checkouts: Path | None = None) -> Chosen:
    """Return the tasks of the selected instances.

    Args:
        name: A benchmark that comes with dgym or was imported.
        choice: The selection.
        checkouts: Directory to which commits of local repositories are exported. The default is the directory
            ``checkouts`` of the imported benchmark.

    Raises:
        ManifestError: A name, an instance or a row is wrong, or all selected instances are flaky or broken.
    """
    if name in bundled():
        return _choose_bundled(name, choice)
    found = open_imported(name, choice.split)
    adapter = load_adapter(found.adapter)
    rows = found.load()
    chosen = select(rows, adapter.key, choice.filters, choice.limit)
    images = ImageNames(template=choice.template, registry=choice.registry)
    kept: list[Row] = []
    healthy, left_out = _healthy([str(row[adapter.key]) for row in chosen], found, choice)
    for row in chosen:
        if str(row[adapter.key]) not in healthy:
            continue
        try:
            kept.append(adapter.row(row, images))
        except RowError as error:
            raise ManifestError(f"{found.file}: {row[adapter.key]}: {error}") from None
    kept = in_order_of_use(kept, lambda row: row.image)
    where = checkouts or found.directory / "checkouts"
    checkout = None if choice.repositories is None else Checkouts(Path(choice.repositories), where)
    return Chosen(
        source=found,
        tasks=tuple(make_tasks(name, found.split, kept, checkout)),
        instances=tuple(row.instance for row in kept),
        whole=len(kept) == len(rows),
        left_out=left_out,
    )


def _choose_bundled(name: str, choice: Choice) -> Chosen:
    found = open_bundled(name)
    tasks = {task.metadata.name: task for task in load_bundled(name)}
    for option, value in (("--image", choice.template), ("--registry", choice.registry)):
        if value is not None:
            raise ManifestError(f"{option}: the tasks of {name} have no images of their own; leave it out")
    if choice.repositories is not None:
        raise ManifestError(f"--repositories: the tasks of {name} contain their files; leave it out")
    if choice.split not in (None, found.split):
        raise ManifestError(f"benchmark {name!r} has no split {choice.split!r}: {found.split}")
    rows = [{"instance": instance} for instance in tasks]
    chosen = [str(row["instance"]) for row in select(rows, "instance", choice.filters, choice.limit)]
    kept, left_out = _healthy(chosen, found, choice)
    return Chosen(
        source=found,
        tasks=tuple(tasks[instance] for instance in kept),
        instances=tuple(kept),
        whole=False,  # Bundled tasks do not have the label of a split, by which a whole set selects its tasks.
        left_out=left_out,
    )


def _healthy(instances: Sequence[str], found: Imported, choice: Choice) -> tuple[list[str], dict[str, int]]:
    """Return the instances that are not known to be flaky or broken, and the number of others by health state."""
    health = {} if choice.unhealthy else read_health(found.health)
    kept: list[str] = []
    left_out: Counter[str] = Counter()
    for instance in instances:
        known = health.get(instance)
        if known is None or known.state == HEALTHY:
            kept.append(instance)
            continue
        left_out[known.state] += 1
        echo(in_one_line(f"left out: {instance} ({known.state}: {known.message})"), err=True)
    if not kept:
        raise ManifestError(
            f"benchmark {found.name!r}: all selected instances are flaky or broken; --unhealthy includes them"
        )
    return kept, dict(left_out)


def open_bundled(name: str) -> Imported:
    """Return a benchmark that comes with dgym in the form of an imported one."""
    return Imported(
        name=name,
        adapter="",
        split="test",
        source=COMES_WITH_DGYM,
        source_sha256="",
        sha256="",
        rows=len(load_bundled(name)),
        directory=cache_directory() / "benchmarks" / name,
    )


def episode_set(chosen: Chosen, choice: Choice) -> EpisodeSet:
    """Return an EpisodeSet of the selected tasks, with the agent, arms and samples of ``choice``."""
    agent = None if choice.agent is None else AgentSpec(name=choice.agent, model=choice.model)
    source = chosen.source
    made = make_set(
        source.name.replace("_", "-"),
        source.split,
        chosen.tasks,
        whole=chosen.whole,
        agent=agent,
        samples=choice.samples,
        left_out=chosen.left_out,
    )
    made = _with_arms(made, choice.arms)
    return _without_automatic_eval(made) if any(task.spec.scoring.test_patch for task in chosen.tasks) else made


def _without_automatic_eval(made: EpisodeSet) -> EpisodeSet:
    """Switch off automatic test runs of the set's agents, unless their parameters set them.

    The entrypoint of a task with a test patch runs the whole test suite of the repository. That may take longer than
    the episode.
    """
    common = made.spec.template.agent
    name = "" if common is None else common.name
    arms = tuple(
        arm
        if arm.agent.parameters is None and arm.agent.name in (None, name)
        else msgspec.structs.replace(arm, agent=_eval_only_by_call(arm.agent, arm.agent.name or name))
        for arm in made.spec.arms
    )
    template = made.spec.template
    if common is not None:
        template = msgspec.structs.replace(template, agent=_eval_only_by_call(common, name))
    return msgspec.structs.replace(made, spec=msgspec.structs.replace(made.spec, template=template, arms=arms))


def _eval_only_by_call(agent: _Agent, name: str) -> _Agent:
    try:
        found = load_agent(name)
    except PluginError:
        return agent
    if not issubclass(found, ModelAgent):
        return agent
    return msgspec.structs.replace(agent, parameters={**_ONLY_BY_A_CALL, **(agent.parameters or {})})


def _with_arms(episode_set: EpisodeSet, arms: Sequence[str]) -> EpisodeSet:
    """Return the set with the arms of ``--arm``.

    Raises:
        ManifestError: A text does not have the form of ``--arm``, a key is unknown, or a value is not allowed.
    """
    if not arms:
        return episode_set
    names, assignments = [], []
    for number, text in enumerate(arms):
        name, colon, rest = text.partition(":")
        names.append(name)
        for part in _split(rest) if colon else ():
            key, equals, value = part.partition("=")
            if not key.strip() or not equals:
                raise ManifestError(f"--arm {text}: {part!r} is not of the form KEY=VALUE; {_FORM}")
            path = _SHORT.get(key.strip(), key.strip())
            assignments.append(f"set.arms.{number}.{path}={value}")
    listed = json.dumps([{"name": name} for name in names])
    try:
        return apply_overrides(episode_set, [f"set.arms={listed}", *assignments])
    except ManifestError as error:
        raise ManifestError(_of_arms(str(error), names, listed)) from None


def _split(text: str) -> Iterator[str]:
    """Split at commas that are outside of brackets and quotes."""
    part, depth = "", 0
    for piece in _PIECE.findall(text):
        depth += (piece in "[{") - (piece in "]}")
        if piece == "," and not depth:
            yield part
            part = ""
        else:
            part += piece
    yield part


def _of_arms(message: str, names: Sequence[str], listed: str) -> str:
    """Rewrite an error message about ``-p set.arms…`` to refer to ``--arm``."""
    message = message.replace(f"-p set.arms={listed}", f"--arm {' --arm '.join(names)}")
    return re.sub(r"-p set\.arms\.(\d+)\.", lambda found: f"--arm {names[int(found[1])]}:", message)
