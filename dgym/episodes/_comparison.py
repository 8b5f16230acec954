"""Run a recorded trajectory again in a new session and compare the observations."""

import difflib
import re
from collections.abc import Iterator, Sequence

import msgspec

from dgym.api import DebugTask, ToolSpec
from dgym.env import AsyncRepoEnv, LocalEpisodes, Opening
from dgym.errors import ManifestError
from dgym.results import TimedStep, Trajectory, TrajectoryHeader
from dgym.session import EpisodeLimits
from dgym.wire import Observation, Step

_SHOWN_LINES = 40


class StepDifference(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A difference between a recorded step and its new execution.

    Attributes:
        seq: Number of the step.
        tool: Name of the tool.
        field: The field that differs.
        text: Description of the difference; for texts a unified diff.
    """

    seq: int
    tool: str
    field: str
    text: str


class ReplayComparison(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The number of steps that were run again, and the differences."""

    steps: int
    differences: tuple[StepDifference, ...]


def _tools(header: TrajectoryHeader) -> tuple[str | ToolSpec, ...]:
    try:
        return msgspec.convert(header.tools, tuple[str | ToolSpec, ...])
    except msgspec.ValidationError as error:
        raise ManifestError(f"the trajectory of {header.episode}: its tools are not a list of tools: {error}") from None


def _limits(header: TrajectoryHeader) -> EpisodeLimits:
    limits = {"max_steps": header.agent.get("maxSteps", 50), "max_rewrites": header.agent.get("maxRewrites")}
    try:
        return msgspec.convert({**limits, "deadline_seconds": None}, EpisodeLimits)
    except msgspec.ValidationError as error:
        raise ManifestError(f"the trajectory of {header.episode}: its agent's limits are wrong: {error}") from None


async def run_again(trajectory: Trajectory[TimedStep], task: DebugTask, opening: Opening) -> ReplayComparison:
    """Execute the recorded calls in a new session of ``task`` with the recorded tools and limits.

    Addresses, process ids, durations and similar values are ignored in the comparison.

    Raises:
        ManifestError: The trajectory is one of the solution agent, which does more than calls, or its tools or limits
            are wrong.
    """
    header = trajectory.header
    if header.agent.get("name") == "solution":
        raise ManifestError(
            f"the trajectory of {header.episode} is the solution agent's, which applies the gold patch without a call;"
            " run the agent again instead"
        )
    episodes = LocalEpisodes(task, tools=_tools(header), limits=_limits(header), opening=opening)
    async with AsyncRepoEnv.over(episodes) as env:
        evaluated = bool(trajectory.steps) and trajectory.steps[0].observation.score is not None
        await env.reset(options={"eval": evaluated})
        for step in trajectory.steps:
            if step.call is None:
                continue
            _, _, terminated, truncated, _ = await env.step(step.call)
            if terminated or truncated:
                break
        again = env.trajectory()
    return ReplayComparison(steps=len(again) - 1, differences=tuple(compare(trajectory.steps, again)))


def compare(recorded: Sequence[Step], again: Sequence[Step]) -> Iterator[StepDifference]:
    """Yield the differences between two executions of the same calls."""
    for before, after in zip(recorded, again, strict=False):
        yield from _compare_step(before, after)
    if len(again) < len(recorded):
        missed = recorded[len(again)]
        text = f"the episode ended before step {missed.seq}"
        yield StepDifference(seq=missed.seq, tool=_tool(missed), field="endReason", text=text)


def _compare_step(before: Step, after: Step) -> Iterator[StepDifference]:
    old, new = before.observation, after.observation
    old_text, new_text = normalize(old.text), normalize(new.text)
    if old_text != new_text:
        yield StepDifference(seq=before.seq, tool=_tool(before), field="text", text=_diff(old_text, new_text))
    for field in ("ok", "exit_status", "score", "end_reason"):
        if getattr(old, field) != getattr(new, field):
            text = f"{_plain(old, field)} -> {_plain(new, field)}"
            yield StepDifference(seq=before.seq, tool=_tool(before), field=field, text=text)


def _tool(step: Step) -> str:
    return step.call.tool if step.call is not None else "reset"


def _plain(observation: Observation, field: str) -> str:
    return msgspec.json.encode(getattr(observation, field)).decode()


def _diff(before: str, after: str) -> str:
    lines = list(difflib.unified_diff(before.splitlines(), after.splitlines(), "recorded", "now", lineterm="", n=1))
    rest = len(lines) - _SHOWN_LINES
    return "\n".join([*lines[:_SHOWN_LINES], f"… {rest} more lines"] if rest > 0 else lines)


_RULES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\b0x[0-9a-fA-F]{4,16}\b"), "0xADDRESS"),
    (re.compile(r"\b(pid|PID|process|Process)([ =:]+)\d+"), r"\1\2PID"),
    (re.compile(r"\b\d+(?:\.\d+)? ?(?:s|ms|us|µs|seconds?|milliseconds?)\b"), "DURATION"),
    (re.compile(r"\(\d+:\d\d:\d\d(?:\.\d+)?\)"), "(DURATION)"),
    (re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"), "TIME"),
    (re.compile(r"/tmp/pytest-of-[\w.-]+/pytest-\d+"), "/tmp/PYTEST"),  # noqa: S108 - text, not a path that is used
)
_SEPARATOR = re.compile(r"([\s'\":,()])")


def normalize(text: str) -> str:
    """Replace addresses, process ids, durations, times and temporary paths in ``text`` by placeholders."""
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    text = "\n".join(_normalize_last_line(line) for line in text.split("\n"))
    return "".join(_without_place(piece) for piece in _SEPARATOR.split(text))


def _normalize_last_line(line: str) -> str:
    """Normalize the last line of pytest, because the number of '=' depends on the width of the duration."""
    inner = line.strip("=")
    is_ruler = line.startswith("=") and line.endswith("=") and inner.startswith(" ") and inner.endswith(" ")
    return f"==={inner}===" if is_ruler and "DURATION" in inner else line


def _without_place(word: str) -> str:
    """Replace the path of a temporary workspace by the path in a container."""
    start = word.find("/")
    begin = word.rfind("/dgym-", start + 1) if start >= 0 else -1
    if begin < 0:
        return word
    name, slash, rest = word[begin + 1 :].partition("/")
    if not all(character.isalnum() or character in "_.-" for character in name) or name == "dgym-":
        return word
    below = slash + rest
    if below == "/workspace" or below.startswith("/workspace/"):
        below = below.removeprefix("/workspace")
    return f"{word[:start]}/workspace{below}"
