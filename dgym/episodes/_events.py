"""Reports of a running episode: events, its log, and descriptions of its steps for users who watch it."""

import asyncio
import contextlib
import logging
import textwrap
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path

import msgspec

from dgym.agents import Exchange
from dgym.logs import PrintableFormatter
from dgym.results import StoredResult
from dgym.wire import Step, ToolCall


class Started(msgspec.Struct, frozen=True):
    """The attempt started. ``path`` is the directory of its files."""

    path: str


class Stepped(msgspec.Struct, frozen=True):
    """Step ``seq`` was recorded."""

    seq: int
    tool: str
    ok: bool
    seconds: float


class Waits(msgspec.Struct, frozen=True):
    """The episode waits for its model. ``text`` is the reason; empty: it no longer waits."""

    text: str


class Logged(msgspec.Struct, frozen=True):
    """A line of the episode's log. A ``notice`` is shown even without verbose output: a warning or a slow operation."""

    text: str
    notice: bool = False


class Narrated(msgspec.Struct, frozen=True):
    """A description of a step or of an exchange with the model. Only reported by verbose jobs."""

    text: str


class Finished(msgspec.Struct, frozen=True):
    """The episode has ended and its result is stored."""

    result: StoredResult


Event = Started | Stepped | Waits | Logged | Narrated | Finished
Report = Callable[[Event], None]


NOTICE = 25
"""Level of log lines that are always shown at the terminal. Between INFO and WARNING."""

_episode: ContextVar[Path | None] = ContextVar("dgym_episode", default=None)
_logger = logging.getLogger("dgym")
_open_logs = 0
_before = (logging.NOTSET, True)


@contextlib.contextmanager
def episode_log(path: Path, report: Report) -> Iterator[logging.Logger]:
    """Write the log records of dgym in this task and its child tasks to ``path``. Report those of INFO and above.

    Records from outside of any episode are written to the logs of all open episodes.
    """
    to_file = logging.FileHandler(path, encoding="utf-8")
    formatter = PrintableFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    formatter.converter = time.gmtime
    to_file.setFormatter(formatter)
    handlers = (to_file, _ReportHandler(report))
    token = _episode.set(path)
    _borrow_logger()
    for handler in handlers:
        handler.addFilter(lambda _: _episode.get() in (path, None))
        _logger.addHandler(handler)
    try:
        yield logging.getLogger("dgym.episodes.episode")
    except asyncio.CancelledError:
        _logger.info("interrupted; the episode has no result and will run again")
        raise
    finally:
        for handler in handlers:
            _logger.removeHandler(handler)
            handler.close()
        _return_logger()
        _episode.reset(token)


def _borrow_logger() -> None:
    """Take over the package's logger while logs are open, so that handlers of other code print nothing."""
    global _open_logs, _before
    if _open_logs == 0:
        _before = (_logger.level, _logger.propagate)
        _logger.setLevel(logging.DEBUG)
        logging.addLevelName(NOTICE, "NOTICE")
        _logger.propagate = False
    _open_logs += 1


def _return_logger() -> None:
    global _open_logs
    _open_logs -= 1
    if _open_logs == 0:
        _logger.setLevel(_before[0])
        _logger.propagate = _before[1]


class _ReportHandler(logging.Handler):
    """Reports log records of level INFO and above."""

    def __init__(self, report: Report) -> None:
        super().__init__(logging.INFO)
        self._report = report

    def emit(self, record: logging.LogRecord) -> None:
        self._report(Logged(self.format(record), notice=NOTICE <= record.levelno < logging.ERROR))


_LINES = 40
_INDENT = "    "


def describe_exchange(exchange: Exchange) -> str:
    """Describe the model's reasoning and text. The call is described with the step."""
    parts = [("reasoning", exchange.reasoning), ("says", exchange.text), ("refuses", exchange.refusal)]
    described = [f"{title}:\n{_block(text)}" for title, text in parts if text.strip()]
    return "\n".join(described)


def describe_step(step: Step) -> str:
    """Describe the call, the observation and the score."""
    observation = step.observation
    # A call that could not be parsed is left out: the observation describes the error.
    lines = [f"call: {describe_call(step.call)}"] if step.call is not None and step.call.tool else []
    lines += ["observation:", _block(observation.text)]
    if observation.score is not None:
        lines.append(f"score: {observation.score.score} of {observation.score.max_score}")
    return "\n".join(lines)


def describe_call(call: ToolCall) -> str:
    """Format a call, such as ``pdb command="b calc.py:3"``. Long arguments follow on separate lines."""
    shown, below = [], []
    for name, value in call.arguments.items():
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode("utf-8", "replace")
        if "\n" in text.strip("\n") or len(text) > 100:
            below.append(f"\n{_INDENT}{name}:\n{textwrap.indent(text.rstrip(chr(10)), _INDENT * 2)}")
        else:
            shown.append(f"{name}={text.rstrip(chr(10))!r}" if isinstance(value, str) else f"{name}={text}")
    return " ".join([call.tool, *shown]) + "".join(below)


def _block(text: str) -> str:
    """Indent ``text``. The middle of a long text is left out."""
    lines = text.strip("\n").splitlines()
    if len(lines) > _LINES:
        half = _LINES // 2
        lines = [*lines[:half], f"[… {len(lines) - 2 * half} lines …]", *lines[-half:]]
    return textwrap.indent("\n".join(lines), _INDENT)
