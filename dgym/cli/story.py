"""The story of an episode for a terminal: what the agent thought, did and saw, step by step, and how it ended."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import indent

import msgspec

from dgym.agents import Exchange
from dgym.cli.output import UsageFailure, echo
from dgym.decoding import DECODE_ERRORS
from dgym.episodes import describe_exchange, describe_step
from dgym.results import Attempt, EpisodeFolder, StoredResult, TrajectoryHeader, read_trajectory, trajectory_lines
from dgym.terminal import printable_line
from dgym.wire import Step

_PATCH_LINES = 200


class _ToldStep(Step, frozen=True, kw_only=True, rename="camel"):
    """A line of a trajectory; what was said before the step is lenient, because people edit trajectories."""

    exchanges: tuple[Exchange, ...] = ()


def show_stories(directories: Sequence[str]) -> None:
    """Print the stories of the newest attempts below each directory.

    Raises:
        UsageFailure: A directory holds no attempt.
        ManifestError: A trajectory cannot be read.
    """
    for directory in directories:
        attempts = newest_attempts(Path(directory))
        if not attempts:
            raise UsageFailure(f"{directory}: no episode is stored there; give a directory of dgym run or dgym results")
        for attempt in attempts:
            show_story(attempt)


def newest_attempts(directory: Path) -> list[Attempt]:
    """The attempt that ``directory`` is, else the newest of each episode below it that has a trajectory."""
    if directory.name.isdecimal() and (directory / "trajectory.jsonl").is_file():
        return [Attempt(directory)]
    attempts = [path.parent for path in directory.rglob("trajectory.jsonl") if path.parent.name.isdecimal()]
    folders = sorted({path.parent for path in attempts})
    found = ([each for each in EpisodeFolder(folder).attempts() if each.trajectory.is_file()] for folder in folders)
    return [each[-1] for each in found if each]


def show_story(attempt: Attempt) -> None:
    """Print the story of one attempt. Lines of the agent and of programs are indented: they cannot forge a heading."""
    trajectory = read_trajectory(attempt.trajectory)
    for line in _beginning(trajectory.header, attempt):
        echo(line)
    for step in _steps(attempt.trajectory, len(trajectory.steps)):
        echo(f"\n{_heading(step)}")
        for exchange in step.exchanges:
            if text := describe_exchange(exchange):
                echo(text)
        echo(describe_step(step))
    if trajectory.torn:
        echo("\nThe last line of the trajectory is cut short: the process that wrote it was killed.")
    echo()
    for line in _end(attempt.load(), attempt):
        echo(line)


def _steps(path: Path, count: int) -> Iterator[_ToldStep]:
    lines = (line for line in itertools.islice(trajectory_lines(path), 1, None) if line.strip())
    for line in itertools.islice(lines, count):
        try:
            yield msgspec.json.decode(line, type=_ToldStep)
        except DECODE_ERRORS:
            step = msgspec.json.decode(line, type=Step)
            yield _ToldStep(seq=step.seq, call=step.call, observation=step.observation)


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
