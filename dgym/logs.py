"""Log lines of operator, agents and sidecars: one JSON object a line, with the same keys in all of them.

``time``, ``level``, ``logger`` and ``message`` first; then the fields: ``namespace``, ``episode``, ``attempt``, ``pod``
(the sandbox's) and ``agent`` (the agent's pod), so that one query finds all lines of an episode.
"""

import logging
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from dgym.terminal import printable, printable_json

_LIMIT = 8192


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON; what is passed in ``extra={"fields": {…}}`` becomes fields of its own.

    Args:
        context: Returns fields that every line has now; those of the record win.
    """

    def __init__(self, context: Callable[[], Mapping[str, Any]] = dict) -> None:
        super().__init__()
        self._context = context

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage()[:_LIMIT],
            **self._context(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)[-_LIMIT:]
        return printable_json(msgspec.json.encode({name: encodable(value) for name, value in line.items()}).decode())


class PrintableFormatter(logging.Formatter):
    """A record as text without terminal escapes: messages quote programs and models."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, and a traceback's lines after it."""
        return printable(super().format(record))


class TextFormatter(PrintableFormatter):
    """A record as a line of text, the fields behind the message."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
        self.converter = time.gmtime

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the base class's name
        """The line without a traceback, which follows it."""
        fields = getattr(record, "fields", {})
        return " ".join([super().formatMessage(record), *(f"{name}={value}" for name, value in fields.items())])


def log_to_stderr(formatter: logging.Formatter, level: str, *, package: str = "") -> None:
    """Log to standard error from ``level`` on, Python's warnings included; all but ``package`` from WARNING on."""
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    handler.setLevel(level)
    others = max(logging.WARNING, logging.getLevelNamesMapping()[level]) if package else level
    logging.basicConfig(level=others, handlers=[handler], force=True)
    if package:
        logging.getLogger(package).setLevel(level)
    logging.captureWarnings(True)


def episode_fields(episode: str, **more: Any) -> dict[str, Any]:
    """The fields of an episode that is named ``namespace/name``."""
    namespace, _, name = episode.rpartition("/")
    return {**({"namespace": namespace} if namespace else {}), "episode": name, **more}


def encodable(value: Any) -> Any:
    """The value; text without halves of surrogate pairs, which programs print and UTF-8 cannot encode."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def fields(**values: Any) -> dict[str, Any]:
    """``extra`` for a call of a logger, without values that are None or empty."""
    return {"fields": {name: value for name, value in values.items() if value not in (None, "")}}
