"""A trajectory as a page shows it: its steps with what the model thought and said, and what it observed."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dgym import agents
from dgym.decoding import DECODE_ERRORS
from dgym.llm import Message
from dgym.results import TrajectoryHeader
from dgym.ui.library import decode_header
from dgym.wire import Breakpoint, Frame, Observation, ToolCall

READ_BYTES = 64 * 1024**2
"""Bytes of a trajectory that pages read; a 50-step episode has about 1 MiB at most."""


class Usage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The tokens of one request."""

    input_tokens: int = 0
    output_tokens: int = 0


class Exchange(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What the model answered, of all that a trajectory records of a request."""

    text: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    usage: Usage = Usage()
    seconds_model: float = 0.0
    seconds_queue: float = 0.0
    tries: int = 1


class Turn(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A step, and the exchanges that led to its call."""

    seq: int
    call: ToolCall | None
    observation: Observation
    elapsed_seconds: float = 0.0
    exchanges: tuple[Any, ...] = ()

    @property
    def replies(self) -> tuple[Exchange, ...]:
        """The exchanges that have the fields of dgym's own agents."""
        return tuple(reply for each in self.exchanges if (reply := _reply(each)) is not None)

    @property
    def tool(self) -> str:
        """The tool's name; of a call that could not be read, and of the reset, what they are."""
        return "reset" if self.call is None else self.call.tool or "(not a call)"

    @property
    def short(self) -> str:
        """The call in one line, without long values."""
        if self.call is None:
            return "reset"
        values = [_in_short(value) for value in self.call.arguments.values()]
        return " ".join([self.tool, *(value for value in values if value)])[:_SHORT_CHARACTERS]


def _reply(exchange: Any) -> Exchange | None:
    try:
        return msgspec.convert(exchange, Exchange)
    except msgspec.ValidationError:
        return None


def _recorded(exchange: Any) -> agents.Exchange | None:
    try:
        return msgspec.convert(exchange, agents.Exchange)
    except msgspec.ValidationError:
        return None


_SHORT_CHARACTERS = 160
_VALUE_CHARACTERS = 60


def _in_short(value: Any) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    first = text.strip().split("\n", 1)[0]
    return f"{first[:_VALUE_CHARACTERS]}…" if len(first) > _VALUE_CHARACTERS or first != text.strip() else first


class Story(msgspec.Struct, frozen=True, kw_only=True):
    """A trajectory as read. ``problem`` names what could not be read; the steps end before it."""

    header: TrajectoryHeader = TrajectoryHeader()
    turns: tuple[Turn, ...] = ()
    problem: str = ""

    def requests(self) -> "Requests":
        """The requests to the model, as far as they can be put together."""
        exchanges = [[_recorded(each) for each in turn.exchanges] for turn in self.turns]
        sent = agents.sent_requests(itertools.chain.from_iterable(exchanges))
        made = [[each for each in itertools.islice(sent, len(before)) if each is not None] for before in exchanges]
        asked = agents.asking_steps(exchanges)
        return Requests(
            by_seq={turn.seq: requests for turn, requests in zip(self.turns, made, strict=True)},
            asked_at={
                turn.seq: self.turns[place].seq
                for turn, place in zip(self.turns, asked, strict=True)
                if place is not None
            },
        )


class Requests(msgspec.Struct, frozen=True):
    """The requests before each step, and the step whose reply has a step's call, by ``seq``."""

    by_seq: Mapping[int, Sequence[agents.SentRequest]]
    asked_at: Mapping[int, int]

    def messages(self, turns: Sequence[Turn]) -> list[tuple[int, Message]]:
        """Every message of the requests before ``turns``, with its number."""
        requests = [request for turn in turns for request in self.by_seq[turn.seq]]
        numbers = {number for request in requests for number in request.numbers}
        return [(number, requests[0].known[number]) for number in sorted(numbers)]


def read_story(data: bytes | None) -> Story:
    """The steps in the bytes of a trajectory; a last line that is cut short is left out."""
    if data is None:
        return Story(problem="There is no trajectory.")
    lines = data.split(b"\n")
    lines.pop()
    if not lines:
        return Story(problem="The trajectory has no header.")
    turns: list[Turn] = []
    problem = f"Only the first {READ_BYTES:,} bytes of the trajectory are shown." if len(data) >= READ_BYTES else ""
    for number, line in enumerate(lines[1:], start=2):
        try:
            turns.append(_DECODER.decode(line))
        except DECODE_ERRORS as error:
            problem = f"Line {number} of the trajectory is not a step: {error}"
            break
    return Story(header=decode_header(lines[0]), turns=tuple(turns), problem=problem)


_DECODER = msgspec.json.Decoder(Turn)


class Knowledge(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent had learned before a step: evaluations, files seen, breakpoints, and where its program stood."""

    scores: tuple[tuple[int, str], ...] = ()
    files: tuple[str, ...] = ()
    breakpoints: tuple[Breakpoint, ...] = ()
    frame: Frame | None = None
    rewrites: int = 0


def knowledge(turns: Sequence[Turn]) -> Knowledge:
    """What the observations of ``turns`` showed."""
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
