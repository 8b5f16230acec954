"""``dgym benchmark estimate``: estimate pods, images, bytes to pull, CPU hours, tokens and cost before a set runs.

Each figure names its basis: counted, measured in earlier results, or assumed.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import click
import msgspec

from dgym.api import DebugTask, PlannedEpisode, expand, parse_quantity
from dgym.cli.benchmark.choosing import Choice, choose, episode_set, takes_choice, takes_episodes
from dgym.cli.options import llm_config_option, output_option
from dgym.cli.output import add_row, echo_json, show_table, table
from dgym.llm import load_models
from dgym.results import EpisodeRow
from dgym.results.report import Price, read_run

Basis = Literal["counted", "measured", "assumed", "unknown"]
Unit = Literal["count", "bytes", "decimal"]

DEFAULT_IMAGE_BYTES = 2_500_000_000
DEFAULT_STEP_SECONDS = 15.0
_HOUR = 3600
SimilarEpisodes = Sequence[Sequence[EpisodeRow]]
"""For each planned episode, the earlier episodes that its estimate is based on. Empty without earlier episodes."""
_TOKENS = ("input_tokens", "output_tokens")


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One figure, its basis and a text about its source. ``value`` is None if the figure is unknown."""

    value: float | None
    basis: Basis
    source: str


class Estimate(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The figures of a set.

    Attributes:
        pods: Number of pods: one for each episode, without retries.
        images: Number of different images.
        pull_bytes: Compressed size of the images, pulled to one node.
        pod_hours: Hours that pods run.
        cpu_hours: Hours that CPUs are busy in the pods.
        input_tokens: Input tokens of the model.
        output_tokens: Output tokens of the model.
        cost: Cost in the currency of the prices.
        image_names: The images in the order of use.
    """

    pods: Figure
    images: Figure
    pull_bytes: Figure
    pod_hours: Figure
    cpu_hours: Figure
    input_tokens: Figure
    output_tokens: Figure
    cost: Figure
    image_names: tuple[str, ...]


@click.command("estimate")
@click.argument("name")
@takes_choice
@takes_episodes
@click.option(
    "--history",
    multiple=True,
    metavar="RESULTS",
    type=click.Path(exists=True, file_okay=False),
    help="Earlier results of the same agent and model, for the hours and tokens.",
)
@click.option(
    "--image-size",
    "gigabytes",
    type=click.FloatRange(0, min_open=True),
    default=DEFAULT_IMAGE_BYTES / 1e9,
    show_default=True,
    metavar="GB",
    help="Assumed compressed size of each image.",
)
@click.option(
    "--step-seconds",
    type=click.FloatRange(0, min_open=True),
    default=DEFAULT_STEP_SECONDS,
    show_default=True,
    metavar="S",
    help="Assumed duration of a step without --history.",
)
@llm_config_option
@output_option
def estimate_command(
    name: str,
    history: tuple[str, ...],
    gigabytes: float,
    step_seconds: float,
    llm_config: str | None,
    output: str,
    **choice: Any,
) -> None:
    """Estimate a set before it is run: pods, images, bytes to pull, hours, tokens and money.

    Each figure has its source: counted, measured in earlier results, or assumed. Nothing is run.
    """
    instances = Choice(**choice)
    chosen = choose(name, instances)
    found = estimate(
        expand(episode_set(chosen, instances), chosen.tasks),
        history=read_run([Path(path) for path in history]).records if history else (),
        prices=_prices(llm_config),
        image_bytes=round(gigabytes * 1e9),
        step_seconds=step_seconds,
    )
    if output == "json":
        echo_json(found)
    else:
        _show(found)


def _prices(llm_config: str | None) -> Mapping[str, Price]:
    prices = {}
    for name, entry in load_models(llm_config).entries.items():
        settings = entry.settings
        if settings is not None and (settings.input_price is not None or settings.output_price is not None):
            prices[name] = Price(input=float(settings.input_price or 0), output=float(settings.output_price or 0))
    return prices


def _show(found: Estimate) -> None:
    drawn = table(("FIGURE", "ESTIMATE", "BASIS", "FROM"), numbers=("ESTIMATE",), breaking=("FROM",))
    rows: tuple[tuple[str, Figure, Unit], ...] = (
        ("pods", found.pods, "count"),
        ("images", found.images, "count"),
        ("to pull", found.pull_bytes, "bytes"),
        ("pod hours", found.pod_hours, "decimal"),
        ("CPU hours", found.cpu_hours, "decimal"),
        ("input tokens", found.input_tokens, "count"),
        ("output tokens", found.output_tokens, "count"),
        ("cost", found.cost, "decimal"),
    )
    for title, figure, unit in rows:
        add_row(drawn, (title, in_units(figure, unit), figure.basis, figure.source))
    show_table(drawn)


def estimate(
    planned: Sequence[PlannedEpisode],
    *,
    history: Iterable[EpisodeRow] = (),
    prices: Mapping[str, Price] | None = None,
    image_bytes: int = DEFAULT_IMAGE_BYTES,
    step_seconds: float = DEFAULT_STEP_SECONDS,
) -> Estimate:
    """Estimate the episodes of a set.

    Args:
        planned: All episodes of the set.
        history: Episodes of earlier results. Only counted episodes of the same agent and model are used.
        prices: Prices by name of the model.
        image_bytes: Assumed compressed size of each image.
        step_seconds: Assumed duration of a step, used if some episode has no earlier results.
    """
    names = tuple(dict.fromkeys(each.task.spec.image for each in planned if each.task.spec.image is not None))
    similar = _similar_episodes(planned, [row for row in history if row.reason.is_counted])
    pods, cpus = _times(planned, similar, step_seconds)
    incoming, outgoing = _tokens(similar)
    return Estimate(
        pods=Figure(value=len(planned), basis="counted", source="episodes of the set; each retry is one more pod"),
        images=_image_count(planned, names),
        pull_bytes=_pull_bytes(len(names), image_bytes),
        pod_hours=pods,
        cpu_hours=cpus,
        input_tokens=incoming,
        output_tokens=outgoing,
        cost=_cost(planned, similar, prices or {}),
        image_names=names,
    )


def _image_count(planned: Sequence[PlannedEpisode], names: Sequence[str]) -> Figure:
    has_default = any(each.task.spec.image is None for each in planned)
    source = "images of the tasks" + (", and dgym's own" if has_default else "")
    return Figure(value=len(names) + has_default, basis="counted", source=source)


def _pull_bytes(images: int, image_bytes: int) -> Figure:
    if not images:
        return Figure(value=0, basis="counted", source="no task has an image; compressed, on one node")
    source = f"{image_bytes / 1e9:.3g} GB (assumed) for each of {images} images; compressed, on one node"
    return Figure(value=images * image_bytes, basis="assumed", source=source)


def _times(planned: Sequence[PlannedEpisode], similar: SimilarEpisodes, step_seconds: float) -> tuple[Figure, Figure]:
    if all(similar):
        pods = sum(_mean(map(_pod_seconds, same)) for same in similar)
        busy = sum(
            _mean(map(_busy_seconds, same)) * _cpus(each.task) for each, same in zip(planned, similar, strict=True)
        )
        source = _measured_text(similar)
        return (
            Figure(value=pods / _HOUR, basis="measured", source=source),
            Figure(value=busy / _HOUR, basis="measured", source=f"{source}, without the waits for models"),
        )
    seconds = [_longest_seconds(each, step_seconds) for each in planned]
    cpus = sum(each * _cpus(episode.task) for each, episode in zip(seconds, planned, strict=True))
    source = f"at most: maxSteps, {step_seconds:g} s each (--step-seconds), within activeDeadlineSeconds"
    return (
        Figure(value=sum(seconds) / _HOUR, basis="assumed", source=source),
        Figure(value=cpus / _HOUR, basis="assumed", source=f"{source}; the task's CPUs, or 1, all of the time"),
    )


def _longest_seconds(each: PlannedEpisode, step_seconds: float) -> float:
    spec = each.episode.spec
    steps = spec.agent.max_steps if spec.agent is not None else 0
    if not steps:
        return spec.active_deadline_seconds
    return min(steps * step_seconds + each.task.spec.entrypoint_timeout_seconds, spec.active_deadline_seconds)


def _pod_seconds(row: EpisodeRow) -> float:
    return row.seconds + (row.stages.prepare + row.stages.score if row.stages is not None else 0)


def _busy_seconds(row: EpisodeRow) -> float:
    stages = row.stages
    return row.seconds if stages is None else stages.prepare + stages.tools + stages.score


def _cpus(task: DebugTask) -> float:
    resources = task.spec.resources
    quantity = resources.limits.get("cpu") or resources.requests.get("cpu")
    return float(parse_quantity(quantity)) if quantity else 1.0


def _tokens(similar: SimilarEpisodes) -> tuple[Figure, Figure]:
    if all(similar):
        source = _measured_text(similar)
        incoming = sum(_mean(row.input_tokens for row in same) for same in similar)
        outgoing = sum(_mean(row.output_tokens for row in same) for same in similar)
        return (
            Figure(value=incoming, basis="measured", source=source),
            Figure(value=outgoing, basis="measured", source=source),
        )
    unknown = Figure(value=None, basis="unknown", source="no earlier results of this agent and model (--history)")
    return unknown, unknown


def _cost(planned: Sequence[PlannedEpisode], similar: SimilarEpisodes, prices: Mapping[str, Price]) -> Figure:
    total, assumed, sources = 0.0, False, set()
    for each, same in zip(planned, similar, strict=True):
        agent = each.episode.spec.agent
        if agent is None or agent.model is None:
            continue
        price = prices.get(agent.model)
        paid = [row.price for row in same if row.price is not None]
        if price is not None and same:
            incoming, outgoing = (_mean(getattr(row, name) for row in same) for name in _TOKENS)
            total += (incoming * price.input + outgoing * price.output) / 1e6
            sources.add("tokens of earlier episodes, at the prices of llm.yaml")
        elif same and len(paid) == len(same):
            total += _mean(paid)
            sources.add("prices stored with earlier episodes")
        elif price is not None and agent.token_budget is not None:
            total += agent.token_budget * max(price.input, price.output) / 1e6
            assumed = True
            sources.add("at most: tokenBudget, at the higher price of llm.yaml")
        else:
            missing = "no prices in llm.yaml" if price is None else "no earlier results (--history)"
            return Figure(value=None, basis="unknown", source=f"{missing} of model {agent.model}")
    if not sources:
        return Figure(value=0, basis="counted", source="the agent does not use a model")
    return Figure(value=total, basis="assumed" if assumed else "measured", source="; ".join(sorted(sources)))


def _similar_episodes(planned: Sequence[PlannedEpisode], rows: Sequence[EpisodeRow]) -> SimilarEpisodes:
    """Return earlier episodes of the same agent, model and task or, if none are found, of the same agent and model."""
    by_agent: defaultdict[tuple[str, str], list[EpisodeRow]] = defaultdict(list)
    by_task: defaultdict[tuple[str, str, str], list[EpisodeRow]] = defaultdict(list)
    for row in rows:
        by_agent[row.agent, row.model].append(row)
        by_task[row.agent, row.model, row.task].append(row)
    found = []
    for each in planned:
        agent = each.episode.spec.agent
        key = (agent.name, agent.model or "") if agent is not None else ("", "")
        found.append(by_task.get((*key, each.task.metadata.name)) or by_agent.get(key, []))
    return found


def _measured_text(similar: SimilarEpisodes) -> str:
    return f"means of {len({row.path for same in similar for row in same})} earlier episodes of this agent and model"


def _mean(values: Iterable[float]) -> float:
    each = tuple(values)
    return sum(each) / len(each)


def in_short(found: Estimate) -> str:
    """Return the main figures in one line."""
    marks = {"assumed": " (assumed)"}
    pull, hours = found.pull_bytes, found.cpu_hours
    return (
        f"{in_units(found.pods, 'count')} pods, {in_units(found.images, 'count')} images, "
        f"{in_units(pull, 'bytes')} to pull{marks.get(pull.basis, '')}, "
        f"{in_units(hours, 'decimal')} CPU hours{marks.get(hours.basis, '')}"
    )


def in_units(figure: Figure, unit: Unit) -> str:
    """Format the value for people. An unknown value is ``-``."""
    if figure.value is None:
        return "-"
    if unit == "bytes":
        return f"{figure.value / 1e9:,.1f} GB"
    return f"{figure.value:,.0f}" if unit == "count" else f"{figure.value:,.2f}"
