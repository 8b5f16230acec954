"""The story of an episode for a terminal: what the agent thought, did and saw, step by step, and how it ended."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from textwrap import indent

import msgspec

from dgym.agents import Exchange, SentRequest, asking_steps, message_parts, sent_requests
from dgym.cli.output import UsageFailure, echo
from dgym.decoding import DECODE_ERRORS
from dgym.episodes import describe_exchange, describe_step
from dgym.llm import Message
from dgym.results import Attempt, EpisodeFolder, StoredResult, TrajectoryHeader, read_trajectory, trajectory_lines
from dgym.terminal import printable_line
from dgym.wire import Step

_PATCH_LINES = 200
_BEGINNING = 100
"""Characters of a message that its line shows."""


class _StepLine(Step, frozen=True, kw_only=True, rename="camel"):
    """A line of a trajectory; what was said before the step is lenient, because people edit trajectories."""

    exchanges: tuple[Exchange | None, ...] = ()


def show_stories(directories: Sequence[str], *, step: int | None = None) -> None:
    """Print the stories of the newest attempts below each directory, or their step number ``step`` in full.

    Raises:
        UsageFailure: A directory holds no attempt, or an attempt has no such step.
        ManifestError: A trajectory cannot be read.
    """
    for directory in directories:
        attempts = newest_attempts(Path(directory))
        if not attempts:
            raise UsageFailure(f"{directory}: no episode is stored there; give a directory of dgym run or dgym results")
        for attempt in attempts:
            show_story(attempt, only=step)


def newest_attempts(directory: Path) -> list[Attempt]:
    """The attempt that ``directory`` is, else the newest of each episode below it that has a trajectory."""
    if directory.name.isdecimal() and (directory / "trajectory.jsonl").is_file():
        return [Attempt(directory)]
    attempts = [path.parent for path in directory.rglob("trajectory.jsonl") if path.parent.name.isdecimal()]
    folders = sorted({path.parent for path in attempts})
    found = ([each for each in EpisodeFolder(folder).attempts() if each.trajectory.is_file()] for folder in folders)
    return [each[-1] for each in found if each]


def show_story(attempt: Attempt, *, only: int | None = None) -> None:
    """Print the story of one attempt, or its step number ``only`` with every message of the request that led to it.

    Lines of the agent and of programs are indented: they cannot forge a heading.
    """
    trajectory = read_trajectory(attempt.trajectory)
    steps = list(_steps(attempt.trajectory, len(trajectory.steps)))
    requests = sent_requests(exchange for step in steps for exchange in step.exchanges)
    answered = [(step, list(itertools.islice(requests, len(step.exchanges)))) for step in steps]
    for line in _beginning(trajectory.header, attempt):
        echo(line)
    if only is not None:
        _show_in_full(answered, only, attempt)
        return
    for step, made in answered:
        _show_step(step, made, in_full=False)
    if trajectory.torn:
        echo("\nThe last line of the trajectory is cut short: the process that wrote it was killed.")
    echo()
    for line in _end(attempt.load(), attempt):
        echo(line)


def _show_in_full(answered: Sequence[tuple[_StepLine, list[SentRequest | None]]], only: int, attempt: Attempt) -> None:
    chosen = [index for index, (step, _) in enumerate(answered) if step.seq == only]
    if not chosen:
        last = answered[-1][0].seq if answered else 0
        raise UsageFailure(f"--step {only}: {attempt.path} has no such step; give one from 0 to {last}")
    step, made = answered[chosen[0]]
    asked = asking_steps([each.exchanges for each, _ in answered])[chosen[0]]
    if asked is not None and asked != chosen[0]:
        echo(f"\nThe call of step {only} is in the reply to the request of step {answered[asked][0].seq}:")
        _show_step(*answered[asked], in_full=True)
    _show_step(step, made, in_full=True)


def _show_step(step: _StepLine, requests: Iterable[SentRequest | None], *, in_full: bool) -> None:
    echo(f"\n{_heading(step)}")
    for exchange, request in zip(step.exchanges, requests, strict=True):
        if request is not None:
            for line in _request(request, in_full=in_full):
                echo(line)
        if exchange is not None and (text := describe_exchange(exchange)):
            echo(text)
    echo(describe_step(step))


def _request(request: SentRequest, *, in_full: bool) -> Iterator[str]:
    """How large a request was, and its messages: the new ones in a line each, or all of them with their text."""
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


_MARGIN = "    "


def _size(number: int, message: Message) -> str:
    return f"message {number}, {message.role}, {len(message.content):,} characters"


def _parts(message: Message) -> list[str]:
    return [f"{name}: {text}" if name else text for name, text in message_parts(message)]


def _steps(path: Path, count: int) -> Iterator[_StepLine]:
    lines = (line for line in itertools.islice(trajectory_lines(path), 1, None) if line.strip())
    for line in itertools.islice(lines, count):
        try:
            yield msgspec.json.decode(line, type=_StepLine)
        except DECODE_ERRORS:
            step = msgspec.json.decode(line, type=Step)
            yield _StepLine(seq=step.seq, call=step.call, observation=step.observation, exchanges=(None,))


def _beginning(header: TrajectoryHeader, attempt: Attempt) -> Iterator[str]:
    agent = " ".join(str(header.agent[key]) for key in ("name", "model") if header.agent.get(key))
    arm = f", arm {header.arm}" if header.arm else ""
    yield printable_line(f"═══ {header.episode}: task {header.task}, agent {agent or 'driven from outside'}{arm}")
    yield printable_line(f"    attempt {attempt.number}, {header.start_time or 'no time known'}, {attempt.path}")


def _heading(step: Step) -> str:
    tool = "reset" if step.call is None else step.call.tool or "no call"
    refused = "" if step.observation.ok else ", refused"
    return printable_line(f"─── {step.seq} · {tool} · {step.observation.duration_seconds:.1f} s{refused}")


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
