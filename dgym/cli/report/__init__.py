"""``dgym report``: the figures of results, as tables, JSON or CSV."""

from pathlib import Path

import click
import msgspec

from dgym.cli.options import complete_agents
from dgym.cli.output import echo_json
from dgym.cli.report.tables import print_comparison, print_episodes, print_pairs, print_report
from dgym.results.report import Price, Run, compare, make_report, read_run

_DIRECTORY = click.Path(file_okay=False, path_type=Path)


@click.command("report")
@click.argument("directories", nargs=-1, metavar="[DIR]...", type=_DIRECTORY)
@click.option("--compare", "others", multiple=True, metavar="DIR", type=_DIRECTORY, help="Compare with these results.")
@click.option("--agent", metavar="NAME", shell_complete=complete_agents, help="Only the results of this agent.")
@click.option(
    "--compare-agent",
    metavar="NAME",
    shell_complete=complete_agents,
    help="The same for what is compared with. [default: --agent]",
)
@click.option("--all-configurations", is_flag=True, help="Count earlier configurations of an episode too.")
@click.option(
    "--price", "prices", multiple=True, metavar="MODEL=IN:OUT", help="Cost of a million input and output tokens."
)
@click.option(
    "--confidence",
    type=click.FloatRange(0.5, 0.9999),
    default=0.95,
    show_default=True,
    metavar="LEVEL",
    help="Of the intervals.",
)
@click.option(
    "--output",
    type=click.Choice(["table", "json", "csv"]),
    default="table",
    show_default=True,
    help="Form of the output; csv: a line for each episode, or for each task when comparing.",
)
def command(
    directories: tuple[Path, ...],
    others: tuple[Path, ...],
    agent: str | None,
    compare_agent: str | None,
    all_configurations: bool,
    prices: tuple[str, ...],
    confidence: float,
    output: str,
) -> None:
    """Show the figures of results, or compare two runs.

    DIR is a results directory, or a part of one; without any it is ./results. Rates are over the episodes that have a
    verdict, with Wilson's interval. --compare matches tasks and tests the difference with McNemar's exact test.
    """
    if compare_agent and not others:
        raise click.UsageError("--compare-agent goes with --compare DIR")
    known_prices = dict(_price(text) for text in prices)
    run = _of_agent(read_run(directories or (Path("results"),), every_configuration=all_configurations), agent)
    if others:
        other = read_run(others, every_configuration=all_configurations)
        _compare(run, _of_agent(other, compare_agent or agent), output, confidence, known_prices)
    else:
        _report(run, output, confidence, known_prices)


def _report(run: Run, output: str, confidence: float, prices: dict[str, Price]) -> None:
    if output == "csv":
        print_episodes(run, prices)
        return
    report = make_report(run, confidence=confidence, prices=prices)
    if output == "json":
        episodes = [{**msgspec.to_builtins(record), "calls": len(record.calls)} for record in run.records]
        echo_json({**msgspec.to_builtins(report), "episodes": episodes})
    else:
        print_report(report)


def _compare(a: Run, b: Run, output: str, confidence: float, prices: dict[str, Price]) -> None:
    comparison = compare(a, b)
    if output == "csv":
        print_pairs(comparison)
        return
    report_a = make_report(a, confidence=confidence, prices=prices)
    report_b = make_report(b, confidence=confidence, prices=prices)
    if output == "json":
        echo_json({"a": report_a, "b": report_b, "comparison": comparison})
    else:
        print_comparison(report_a, report_b, comparison)


def _of_agent(run: Run, agent: str | None) -> Run:
    if agent is None:
        return run
    records = tuple(record for record in run.records if record.agent == agent)
    if not records:
        known = ", ".join(sorted({record.agent for record in run.records})) or "none"
        raise click.BadParameter(f"no result is of the agent {agent!r}; there are results of {known}")
    return msgspec.structs.replace(run, records=records, unfinished=())


def _price(text: str) -> tuple[str, Price]:
    model, _, amounts = text.rpartition("=")
    incoming, colon, outgoing = amounts.partition(":")
    try:
        price = Price(input=float(incoming), output=float(outgoing))
    except ValueError:
        price = Price(input=-1, output=-1)
    if not (model and colon and 0 <= price.input < float("inf") and 0 <= price.output < float("inf")):
        raise click.BadParameter(f"{text!r}: write MODEL=IN:OUT, such as my-model=2.5:10", param_hint="--price")
    return model, price
