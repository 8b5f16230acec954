"""Log formats of the operator, agent pods and sidecars: one JSON object per line, with the same keys everywhere.

The keys are ``time``, ``level``, ``logger`` and ``message``, then the fields ``namespace``, ``episode``, ``attempt``,
``pod`` (the sandbox pod) and ``agent_pod``, so that one query finds all lines of an episode.
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
    """Formats a record as one line of JSON. The fields in ``extra={"fields": {…}}`` are added to the object.

    Args:
        context: Returns fields that are added to every line. Fields of the record have precedence.
    """

    def __init__(self, context: Callable[[], Mapping[str, Any]] = dict) -> None:
        super().__init__()
        self._context = context

    def format(self, record: logging.LogRecord) -> str:
        """Format the record as JSON."""
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
    """Formats a record as text without terminal escapes, because messages contain output of programs and models."""

    def format(self, record: logging.LogRecord) -> str:
        """Format the record and its traceback."""
        return printable(super().format(record))


class TextFormatter(PrintableFormatter):
    """Formats a record as a line of text, with the fields after the message."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
        self.converter = time.gmtime

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the base class's name
        """Format the line, without the traceback."""
        fields = getattr(record, "fields", {})
        return " ".join([super().formatMessage(record), *(f"{name}={value}" for name, value in fields.items())])


def log_to_stderr(formatter: logging.Formatter, level: str, *, package: str = "") -> None:
    """Log records and Python's warnings to standard error.

    Args:
        formatter: Format of the records.
        level: Lowest level that is logged.
        package: If given, ``level`` applies to this package, and other packages are logged from WARNING.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    handler.setLevel(level)
    others = max(logging.WARNING, logging.getLevelNamesMapping()[level]) if package else level
    logging.basicConfig(level=others, handlers=[handler], force=True)
    if package:
        logging.getLogger(package).setLevel(level)
    logging.captureWarnings(True)


def episode_fields(episode: str, **more: Any) -> dict[str, Any]:
    """Return the log fields of an episode with the name ``namespace/name``."""
    namespace, _, name = episode.rpartition("/")
    return {**({"namespace": namespace} if namespace else {}), "episode": name, **more}


def encodable(value: Any) -> Any:
    """Return ``value``. In text, surrogates are replaced, which programs may print and UTF-8 cannot encode."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def fields(**values: Any) -> dict[str, Any]:
    """Return ``extra`` for a call of a logger, with the values that are not None or empty."""
    return {"fields": {name: value for name, value in values.items() if value not in (None, "")}}
