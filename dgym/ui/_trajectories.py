"""A trajectory for a page: its steps with the replies of the model and the observations, and diagrams of its time."""

import io
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
from markupsafe import Markup

from dgym.agents import Exchange, SentRequest, asking_steps, read_exchanges, sent_before
from dgym.api import STANDARD_TOOLS
from dgym.llm import Message
from dgym.results import UNREADABLE, StoredResult, TimedStep, TrajectoryHeader, parse_trajectory
from dgym.terminal import printable_line
from dgym.wire import Breakpoint, Frame

READ_BYTES = 64 * 1024**2
"""Maximum number of bytes of a trajectory that pages read. An episode of 50 steps has at most about 1 MiB."""
WIDTH = 1000.0
_NARROWEST = 1.5
_MOST_STEPS = 2_000
_TOOLS = ("reset", *STANDARD_TOOLS)


class Turn(TimedStep, frozen=True, kw_only=True, rename="camel"):
    """A step with the exchanges before its call."""

    @property
    def recorded(self) -> list[Exchange | None]:
        """The exchanges, with None for each that cannot be decoded."""
        return read_exchanges(self.exchanges)

    @property
    def replies(self) -> tuple[Exchange, ...]:
        """The exchanges that can be decoded."""
        return tuple(exchange for exchange in self.recorded if exchange is not None)

    @property
    def tool(self) -> str:
        """The name of the tool, ``reset`` for the reset, or ``(not a call)`` if the call could not be parsed."""
        return "reset" if self.call is None else self.call.tool or UNREADABLE

    @property
    def short(self) -> str:
        """The call as one line with shortened values."""
        if self.call is None:
            return "reset"
        values = [_in_short(value) for value in self.call.arguments.values()]
        return " ".join([self.tool, *(value for value in values if value)])[:_SHORT_CHARACTERS]


_SHORT_CHARACTERS = 160

_VALUE_CHARACTERS = 60


def _in_short(value: Any) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    first = text.strip().split("\n", 1)[0]
    return f"{first[:_VALUE_CHARACTERS]}…" if len(first) > _VALUE_CHARACTERS or first != text.strip() else first


class Story(msgspec.Struct, frozen=True, kw_only=True):
    """A trajectory. ``problem`` describes the first part that could not be read. The steps end before it."""

    header: TrajectoryHeader = TrajectoryHeader()
    turns: tuple[Turn, ...] = ()
    problem: str = ""

    def requests(self) -> "ModelRequests":
        """The requests to the model, as far as they can be reconstructed."""
        exchanges = [turn.recorded for turn in self.turns]
        made = [[each for each in before if each is not None] for before in sent_before(exchanges)]
        asked = asking_steps(exchanges)
        return ModelRequests(
            by_seq={turn.seq: requests for turn, requests in zip(self.turns, made, strict=True)},
            asked_at={
                turn.seq: self.turns[place].seq
                for turn, place in zip(self.turns, asked, strict=True)
                if place is not None
            },
        )


class ModelRequests(msgspec.Struct, frozen=True):
    """Requests to the model, by ``seq`` of a step.

    ``by_seq`` has the requests before each step. ``asked_at`` has the ``seq`` of the step with the exchange whose reply
    contains the step's call.
    """

    by_seq: Mapping[int, Sequence[SentRequest]]
    asked_at: Mapping[int, int]

    def messages(self, turns: Sequence[Turn]) -> list[tuple[int, Message]]:
        """All messages of the requests before ``turns``, with their numbers."""
        requests = [request for turn in turns for request in self.by_seq[turn.seq]]
        numbers = {number for request in requests for number in request.numbers}
        return [(number, requests[0].known[number]) for number in sorted(numbers)]


def read_story(data: bytes | None) -> Story:
    """Read a trajectory from its bytes. An incomplete last line is skipped."""
    if data is None:
        return Story(problem="The attempt has no trajectory.")
    found = parse_trajectory(io.BytesIO(data), Turn)
    problem = f"Only the first {READ_BYTES:,} bytes of the trajectory are shown." if len(data) >= READ_BYTES else ""
    if found.problem:
        where = f"Line {found.problem_line} of the trajectory" if found.problem_line else "The file"
        problem = f"{where} is {found.problem}"
    return Story(header=found.header, turns=found.steps, problem=problem)


class Knowledge(msgspec.Struct, frozen=True, kw_only=True):
    """Information in the observations before a step: scores by step, files, breakpoints, and the current frame."""

    scores: tuple[tuple[int, str], ...] = ()
    files: tuple[str, ...] = ()
    breakpoints: tuple[Breakpoint, ...] = ()
    frame: Frame | None = None
    rewrites: int = 0


def collect_knowledge(turns: Sequence[Turn]) -> Knowledge:
    """Collect the knowledge from the observations of ``turns``."""
    scores: list[tuple[int, str]] = []
    files: dict[str, None] = {}
    breakpoints: tuple[Breakpoint, ...] = ()
    frame, rewrites = None, 0
    for turn in turns:
        seen = turn.observation
        if seen.score is not None:
            scores.append((turn.seq, f"{seen.score.score}/{seen.score.max_score}"))
        for name in (seen.focus_file, seen.frame.file if seen.frame is not None else None):
            if name:
                files.setdefault(name)
        if seen.breakpoints is not None:
            breakpoints = seen.breakpoints
        frame = seen.frame or (frame if turn.tool != "eval" else None)
        rewrites += seen.diff is not None
    return Knowledge(scores=tuple(scores), files=tuple(files), breakpoints=breakpoints, frame=frame, rewrites=rewrites)


class Stage(NamedTuple):
    """The name of a stage, its duration in seconds, and its position in the diagram."""

    name: str
    seconds: float
    x: float
    width: float


def stage_bar(story: Story, result: StoredResult | None) -> list[Stage]:
    """The stages of an attempt: preparation, model, queue, tools, agent and scoring.

    Model, queue, tools and agent alternate during an attempt. The diagram shows their totals.
    """
    if not story.turns:
        return []
    end = story.turns[-1].elapsed_seconds
    prepare = story.turns[0].elapsed_seconds
    tools = sum(turn.observation.duration_seconds for turn in story.turns[1:])
    replies = [reply for turn in story.turns for reply in turn.replies]
    model = sum(reply.seconds_model for reply in replies)
    queue = sum(reply.seconds_queue for reply in replies)
    agent = max(0.0, end - prepare - tools - model - queue)
    score = 0.0 if result is None or result.wall_seconds is None else max(0.0, result.wall_seconds - end)
    amounts = {"prepare": prepare, "model": model, "queue": queue, "tools": tools, "agent": agent, "score": score}
    total = sum(amounts.values())
    stages, x = [], 0.0
    for name, seconds in amounts.items():
        if seconds > 0:
            width = seconds / total * WIDTH
            stages.append(Stage(name, seconds, round(x, 2), round(width, 2)))
            x += width
    return stages


def step_strip(turns: Sequence[Turn], link: Callable[[int], str | None]) -> Markup:
    """A bar for each step. Its width is the time since the previous step, and its colour is that of its tool."""
    shown = turns[:_MOST_STEPS]
    if len(shown) < 2:
        return Markup("")
    spans = [max(0.0, after.elapsed_seconds - before.elapsed_seconds) for before, after in pairwise(shown)]
    total = sum(spans) or 1.0
    narrowest = min(_NARROWEST, WIDTH / len(spans))
    scale = max(0.0, WIDTH - narrowest * len(spans)) / total
    bars, x = [], 0.0
    for turn, span in zip(shown[1:], spans, strict=True):
        width = narrowest + span * scale
        bars.append(_bar(turn, x, width, link(turn.seq)))
        x += width
    return _STRIP.format(Markup("").join(bars))


_STRIP = Markup(
    '<svg class="strip" viewBox="0 0 1000 28" preserveAspectRatio="none" role="img" aria-label="Steps">{}</svg>'
)


def _bar(turn: Turn, x: float, width: float, link: str | None) -> Markup:
    kind = turn.tool if turn.tool in _TOOLS else "other"
    failed = "" if turn.observation.ok else " refused"
    title = printable_line(f"{turn.seq} {turn.short}")
    bar = Markup('<rect class="t-{}{}" x="{}" y="0" width="{}" height="28"><title>{}</title></rect>').format(
        kind, failed, f"{x:.2f}", f"{width:.2f}", title
    )
    return bar if link is None else Markup('<a href="{}" tabindex="-1">{}</a>').format(link, bar)
