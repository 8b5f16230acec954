"""Logs of an agent pod: JSON lines on standard error, and each episode's own log for the results store."""

import logging
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from dgym.episodes.events import NOTICE
from dgym.logs import JsonFormatter, PrintableFormatter, encodable, log_to_stderr

_LINE_CHARACTERS = 8192
_LOG_BYTES = 1024**2
_CUT = "… the log's beginning was left out …\n"


class EpisodeLog:
    """The last mebibyte of what is logged while one episode is played."""

    def __init__(self, **fields: Any) -> None:
        self.fields = fields
        self._lines: deque[str] = deque()
        self._size = 0
        self._cut = False

    def add(self, line: str) -> None:
        """Append a line; the oldest go when there are too many."""
        self._lines.append(line)
        self._size += len(line)
        while self._size > _LOG_BYTES:
            self._size -= len(self._lines.popleft())
            self._cut = True

    def text(self) -> str:
        """All that is kept."""
        return (_CUT if self._cut else "") + "".join(self._lines)


_current: ContextVar[EpisodeLog | None] = ContextVar("dgym_pod_episode", default=None)


@contextmanager
def logging_into(log: EpisodeLog) -> Iterator[None]:
    """What this task and those it starts log is the episode's."""
    token = _current.set(log)
    try:
        yield
    finally:
        _current.reset(token)


class _EpisodeHandler(logging.Handler):
    """Adds each line to the log of the episode whose task logs it."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        formatter = PrintableFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
        formatter.converter = time.gmtime
        self.setFormatter(formatter)

    def emit(self, record: logging.LogRecord) -> None:
        log = _current.get()
        if log is not None:
            log.add(encodable(self.format(record)[:_LINE_CHARACTERS]) + "\n")


def configure_logging(*, level: str, pod: str) -> None:
    """Send everything to standard error, and what belongs to an episode to its log, whatever the level."""
    logging.addLevelName(NOTICE, "NOTICE")
    own = {"agent": pod} if pod else {}

    def context() -> dict[str, Any]:
        log = _current.get()
        return {**own, **log.fields} if log is not None else own

    log_to_stderr(JsonFormatter(context), level)
    package = logging.getLogger("dgym")
    package.setLevel(logging.DEBUG)
    package.addHandler(_EpisodeHandler())
