"""Each episode's log, however many episodes one process plays at the same time."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

from dgym.episodes.job import Logged, Report
from dgym.logs import PrintableFormatter

NOTICE = 25
"""The level of log lines that everyone at the terminal sees; between INFO and WARNING."""

_episode: ContextVar[Path | None] = ContextVar("dgym_episode", default=None)
_logger = logging.getLogger("dgym")
_open_logs = 0
_before = (logging.NOTSET, True)


@contextlib.contextmanager
def episode_log(path: Path, report: Report) -> Iterator[logging.Logger]:
    """What dgym logs in this task, and in tasks that it starts, goes into ``path``; what matters is reported too.

    Lines from outside of any episode go into the logs of all.
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
    """The first log takes the package's logger over, so that nothing is printed by handlers of others."""
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
    """Reports what is logged at INFO and above."""

    def __init__(self, report: Report) -> None:
        super().__init__(logging.INFO)
        self._report = report

    def emit(self, record: logging.LogRecord) -> None:
        self._report(Logged(self.format(record), notice=NOTICE <= record.levelno < logging.ERROR))
