"""``dgym results``: fetch the stored files of episodes of a cluster, and print the story of an episode.

The story has requests, reasoning, calls and observations step by step, and at the end the outcome.
"""

import asyncio
import contextlib
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import indent
from urllib.parse import unquote, urlsplit

import click
import msgspec

from dgym.agents import Exchange, SentRequest, asking_steps, message_parts, read_exchanges, sent_before
from dgym.api import child_name
from dgym.cli.cluster.connection import EpisodeView, SetView, connect, find_all, selector_of_children
from dgym.cli.cluster.results import ResultsReader, open_results
from dgym.cli.options import ClusterPlace, complete_directories, takes_cluster_place
from dgym.cli.output import FAILED, UsageFailure, echo
from dgym.episodes import describe_exchange, describe_step
from dgym.kube import EPISODES, Client
from dgym.llm import Message
from dgym.results import (
    FILES,
    Attempt,
    StoredResult,
    TimedStep,
    TrajectoryHeader,
    find_episodes,
    is_attempt,
    read_trajectory,
    record_left_out,
)
from dgym.terminal import printable_line

_AT_A_TIME = 4
_PATCH_LINES = 200
_BEGINNING = 100
"""Number of characters of a message that its line shows."""
_MARGIN = "    "
RecordedStep = tuple[TimedStep, list[Exchange | None], list[SentRequest | None]]
"""A step, the exchanges that led to its call, and their requests."""


@click.command("results")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option(
    "--directory",
    metavar="DIR",
    default="results",
    show_default=True,
    shell_complete=complete_directories,
    help="Directory for the results.",
)
@click.option("--story", is_flag=True, help="Print what happened, step by step; NAME may be a directory of results.")
@click.option(
    "--step",
    type=click.IntRange(min=0),
    metavar="N",
    help="With --story: print only step N, with every message that the model received before it.",
)
@takes_cluster_place()
def results_command(
    names: tuple[str, ...],
    directory: str,
    story: bool,
    step: int | None,
    place: ClusterPlace,
) -> None:
    """Fetch results, patches and trajectories of Episodes of a cluster.

    NAME is the name of an Episode, or of an EpisodeSet, whose Episodes are fetched, including deleted ones.
    episode/NAME and episodeset/NAME distinguish equal names. Results are read from the results store if it is a
    directory on this machine, else through a port-forward to the operator. `dgym report DIR` reads the fetched results.

    With --story the terminal shows the newest attempt of each Episode: the requests to the model (one line for each new
    message), the thoughts, calls and observations of the agent, and the end. --step shows one step, and the whole
    request before it. If every NAME is a directory, such as results/local/EPISODE, nothing is fetched.

    Exit status: 0, 1 some results are not stored yet, or the cluster refuses or cannot be reached, 2 usage or a name
    that does not exist, 130 Ctrl-C.
    """
    if step is not None and not story:
        raise click.UsageError("--step requires --story")
    if story and all(Path(name).is_dir() for name in names):
        show_stories(names, step=step)
        return
    for name in names:
        # A name in a cluster has at most one slash, as in episode/NAME.
        if story and name.count("/") > 1 and not Path(name).is_dir():
            raise click.UsageError(f"{name}: this directory does not exist; give a results directory of dgym run")
    target = Path(directory)
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageFailure(f"--directory {target}: {error.strerror or error}; choose another") from error
    fetched = asyncio.run(fetch(names, target, place))
    for each in fetched:
        if story and each.attempts:
            show_stories([str(each.attempts[-1])], step=step)
        else:
            echo(_line(each))
    stored = [each for each in fetched if each.attempts]
    if stored:
        echo(f"{len(stored)} of {len(fetched)} in {target}; dgym report {target} shows their figures")
    if len(stored) < len(fetched) or not fetched:
        echo("Some results are not stored yet; the same command fetches the rest later.", err=True)
        sys.exit(FAILED)


class EpisodeToFetch(msgspec.Struct, frozen=True):
    """An episode to fetch. ``uid`` and ``uri`` are empty for a deleted Episode, of which only the name is known."""

    namespace: str
    episode: str
    uid: str = ""
    uri: str = ""


class Fetched(msgspec.Struct, frozen=True):
    """The fetched directories of an episode's attempts in their order, and the newest result."""

    episode: str
    attempts: tuple[Path, ...]
    result: StoredResult | None = None


async def fetch(names: Sequence[str], directory: Path, place: ClusterPlace) -> list[Fetched]:
    """Fetch the results of the named Episodes and of all Episodes of the named EpisodeSets.

    Args:
        names: Names as in ``find_all``.
        directory: The results directory to write to.
        place: Where the Episodes are.

    Raises:
        UsageFailure: A name does not exist.
        ClusterError: The cluster cannot be reached, refuses a request, or does not have an operator pod.
    """
    async with connect(place) as client:
        found = await find_all(client, names)
        wanted = await _wanted(client, found)
        for each in found:
            if isinstance(each, SetView):
                record_left_out(directory, each.metadata.name, each.metadata.annotations)
        done = {each: _copied(each, directory) for each in wanted}
        remote = [each for each in wanted if not done[each]]
        if remote:
            async with open_results(client, place.system_namespace) as reader:
                done |= await _fetch_all(reader, remote, directory)
    return [_fetched(each, done[each]) for each in wanted]


async def _wanted(client: Client, views: Sequence[EpisodeView | SetView]) -> list[EpisodeToFetch]:
    wanted: dict[str, EpisodeToFetch] = {}
    for found in views:
        if isinstance(found, EpisodeView):
            wanted[found.metadata.name] = _of_episode(found, client.namespace)
        else:
            for each in await _of_set(client, found):
                wanted.setdefault(each.episode, each)
    return list(wanted.values())


def _of_episode(view: EpisodeView, namespace: str) -> EpisodeToFetch:
    uri = view.status.outcome.result_uri if view.status.outcome is not None else ""
    return EpisodeToFetch(namespace, view.metadata.name, view.metadata.uid, uri)


async def _of_set(client: Client, view: SetView) -> list[EpisodeToFetch]:
    """Return the Episodes of a set, sorted by index. Episodes that were deleted after their end are included."""
    selector = selector_of_children(view.metadata.name)
    where = {"namespace": client.namespace, "label_selector": selector}
    living = [_of_episode(view, client.namespace) for view in await client.list(EPISODES, decode=EpisodeView, **where)]
    known = {each.episode: each for each in living}
    arms = [arm.name for arm in view.spec.arms]
    past = (child_name(view.metadata.name, index, arms) for index in indexes(view.status.completed_indexes))
    for name in past:
        known.setdefault(name, EpisodeToFetch(client.namespace, name))
    return sorted(known.values(), key=lambda each: (len(each.episode), each.episode))


def indexes(text: str) -> list[int]:
    """Expand intervals: ``0-2,7`` gives 0, 1, 2, 7."""
    found: list[int] = []
    for part in text.split(",") if text else []:
        first, _, last = part.partition("-")
        found.extend(range(int(first), int(last or first) + 1))
    return found


def _copied(wanted: EpisodeToFetch, directory: Path) -> tuple[Path, ...]:
    """Copy the attempt if the results store is a directory on this machine. Otherwise return an empty tuple."""
    address = urlsplit(wanted.uri)
    source = Path(unquote(address.path))
    if address.scheme != "file" or not source.name.isdecimal():
        return ()
    result = Attempt(source).load()
    if result is None or (result.namespace, result.episode) != (wanted.namespace, wanted.episode):
        return ()
    target = directory / wanted.namespace / wanted.episode / wanted.uid / source.name
    target.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        with contextlib.suppress(FileNotFoundError, shutil.SameFileError):
            shutil.copyfile(source / name, target / name)
    return (target,)


async def _fetch_all(
    reader: ResultsReader, wanted: Sequence[EpisodeToFetch], directory: Path
) -> dict[EpisodeToFetch, tuple[Path, ...]]:
    gate = asyncio.Semaphore(_AT_A_TIME)
    done: dict[EpisodeToFetch, tuple[Path, ...]] = {}

    async def fetch_one(each: EpisodeToFetch) -> None:
        async with gate:
            files = await reader.files(each.namespace, each.episode)
            # An earlier Episode may have had the same name, so files of another UID are skipped if the UID is known.
            files = [file for file in files if not each.uid or file.path.split("/")[2] == each.uid]
            for file in files:
                await reader.save(file, directory)
            attempts = {directory / file.path.rpartition("/")[0] for file in files}
            done[each] = tuple(sorted(attempts, key=lambda path: int(path.name)))

    async with asyncio.TaskGroup() as group:
        for each in wanted:
            group.create_task(fetch_one(each))
    return done


def _fetched(wanted: EpisodeToFetch, attempts: tuple[Path, ...]) -> Fetched:
    results = (Attempt(path).load() for path in reversed(attempts))
    return Fetched(wanted.episode, attempts, next((each for each in results if each is not None), None))


def _line(each: Fetched) -> str:
    if not each.attempts:
        return f"{each.episode}: nothing is stored yet"
    newest = each.attempts[-1]
    result = each.result
    if result is None:
        return f"{each.episode}: no result yet, {newest}"
    return f"{each.episode}: {result.reason} {result.score}/{result.max_score}, {newest}"


def show_stories(directories: Sequence[str], *, step: int | None = None) -> None:
    """Print the stories of the newest attempts below each directory, or only their step ``step`` in full.

    Raises:
        UsageFailure: A directory does not contain an attempt, or an attempt does not have that step.
        ManifestError: A trajectory cannot be read.
    """
    for directory in directories:
        attempts = newest_attempts(Path(directory))
        if not attempts:
            raise UsageFailure(f"{directory} does not contain an episode; give a directory of dgym run or dgym results")
        for attempt in attempts:
            show_story(attempt, only=step)


def newest_attempts(directory: Path) -> list[Attempt]:
    """Return the attempt in ``directory``, or else the newest attempt with a trajectory of each episode below it."""
    if directory.name.isdecimal() and is_attempt(directory):
        return [Attempt(directory)]
    episodes = sorted(find_episodes(directory), key=lambda attempts: attempts[0].path.parent)
    found = ([each for each in attempts if each.trajectory.is_file()] for attempts in episodes)
    return [each[-1] for each in found if each]


def show_story(attempt: Attempt, *, only: int | None = None) -> None:
    """Print the story of one attempt, or only step ``only`` with every message of the request that led to it.

    Output of the agent and of programs is indented, so that it cannot imitate a heading.
    """
    trajectory = read_trajectory(attempt.trajectory)
    exchanges = [read_exchanges(step.exchanges) for step in trajectory.steps]
    recorded = list(zip(trajectory.steps, exchanges, sent_before(exchanges), strict=True))
    for line in _beginning(trajectory.header, attempt):
        echo(line)
    if only is not None:
        _show_in_full(recorded, only, attempt)
        return
    for each in recorded:
        _show_step(each, in_full=False)
    if trajectory.torn:
        echo("\nThe last line of the trajectory is cut short: the process that wrote it was killed.")
    echo()
    for line in _end(attempt.load(), attempt):
        echo(line)


def _show_in_full(recorded: Sequence[RecordedStep], only: int, attempt: Attempt) -> None:
    numbers = [step.seq for step, _, _ in recorded]
    if only not in numbers:
        last = numbers[-1] if numbers else 0
        raise UsageFailure(f"--step {only}: {attempt.path} has no such step; give one from 0 to {last}")
    chosen = numbers.index(only)
    asked = asking_steps(exchanges for _, exchanges, _ in recorded)[chosen]
    if asked is not None and asked != chosen:
        echo(f"\nThe call of step {only} is in the reply to the request of step {numbers[asked]}:")
        _show_step(recorded[asked], in_full=True)
    _show_step(recorded[chosen], in_full=True)


def _show_step(recorded: RecordedStep, *, in_full: bool) -> None:
    step, exchanges, requests = recorded
    echo(f"\n{_heading(step)}")
    for exchange, request in zip(exchanges, requests, strict=True):
        if request is not None:
            for line in _request(request, in_full=in_full):
                echo(line)
        if exchange is not None and (text := describe_exchange(exchange)):
            echo(text)
    echo(describe_step(step))


def _request(request: SentRequest, *, in_full: bool) -> Iterator[str]:
    """Yield the size of a request and its messages: a line for each new one or, with ``in_full``, the text of all."""
    usage = request.exchange.usage
    new = sum(number in request.new for number in request.numbers)
    estimated = "" if usage.exact else " (estimated)"
    replaced = f", {request.removed} replaced by stubs" if request.removed else ""
    yield (
        f"request: {len(request.numbers)} messages, {new} of them new{replaced};"
        f" {usage.input_tokens:,} tokens{estimated}, {usage.cached_tokens:,} of them cached"
    )
    if in_full or request.exchange.tools:
        yield printable_line(f"{_MARGIN}tools: {', '.join(request.tools) or 'none'}")
    for number, message in zip(request.numbers, request.messages, strict=True):
        is_new = number in request.new
        if in_full:
            yield f"{_MARGIN}{'new ' if is_new else ''}{_size(number, message)}"
            yield indent("\n".join(_parts(message)), _MARGIN * 2)
        elif is_new:
            beginning = " ".join(" ".join(_parts(message))[: 4 * _BEGINNING].split())[:_BEGINNING]
            yield printable_line(f"{_MARGIN}{_size(number, message)}: {beginning}")


def _size(number: int, message: Message) -> str:
    return f"message {number}, {message.role}, {len(message.content):,} characters"


def _parts(message: Message) -> list[str]:
    return [f"{name}: {text}" if name else text for name, text in message_parts(message)]


def _beginning(header: TrajectoryHeader, attempt: Attempt) -> Iterator[str]:
    agent = " ".join(str(header.agent[key]) for key in ("name", "model") if header.agent.get(key))
    arm = f", arm {header.arm}" if header.arm else ""
    yield printable_line(f"═══ {header.episode}: task {header.task}, agent {agent or 'driven from outside'}{arm}")
    yield printable_line(f"    attempt {attempt.number}, {header.start_time or 'no time known'}, {attempt.path}")


def _heading(step: TimedStep) -> str:
    refused = "" if step.observation.ok else ", refused"
    return printable_line(f"─── {step.seq} · {step.shown_tool} · {step.observation.duration_seconds:.1f} s{refused}")


def _end(result: StoredResult | None, attempt: Attempt) -> Iterator[str]:
    if result is None:
        yield "═══ no result yet"
        return
    score = f"{result.score} of {result.max_score} passed" if result.max_score else "nothing was scored"
    yield printable_line(f"═══ {result.reason}: {score}, {result.steps} steps, {result.duration_seconds:.0f} s")
    if result.input_tokens or result.output_tokens:
        cost = f", cost {result.price}" if result.price is not None else ""
        yield f"    {result.input_tokens:,} tokens in, {result.output_tokens:,} out{cost}"
    for text in (result.message, *result.notes):
        if text.strip():
            yield indent(text.strip(), "    ")
    patch = result.patch or attempt.read_patch().decode("utf-8", "replace")
    lines = patch.splitlines()
    if lines:
        yield "    the agent's changes:"
        yield indent("\n".join(lines[:_PATCH_LINES]), "      ")
    if len(lines) > _PATCH_LINES:
        yield f"      … {len(lines) - _PATCH_LINES:,} more lines in {attempt.patch}"
