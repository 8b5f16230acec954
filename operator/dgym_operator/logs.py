"""Logs: one JSON object a line for collectors, or plain text for a terminal.

What a line is about travels as fields (``extra={"fields": {…}}``), never inside the message, so that all lines of one
episode are found by one query: ``namespace``, ``episode``, ``attempt``.
"""

import logging
import time
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

_LIMIT = 8192


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line: dict[str, Any] = {
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage()[:_LIMIT],
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)[-_LIMIT:]
        return msgspec.json.encode({name: _encodable(value) for name, value in line.items()}).decode()


class TextFormatter(logging.Formatter):
    """A record as a person reads it, the fields behind the message."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
        self.converter = time.gmtime

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the base class's name
        """The line without a traceback, which follows it."""
        fields = getattr(record, "fields", {})
        return " ".join([super().formatMessage(record), *(f"{name}={value}" for name, value in fields.items())])


def configure_logging(level: str, style: Literal["json", "text"]) -> None:
    """Send everything to standard error; libraries speak up from warnings on."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    logging.basicConfig(
        level=max(logging.WARNING, logging.getLevelNamesMapping()[level]), handlers=[handler], force=True
    )
    logging.getLogger("dgym_operator").setLevel(level)


def fields(**values: Any) -> dict[str, Any]:
    """``extra`` for a call of a logger; what is None or empty is left out."""
    return {"fields": {name: value for name, value in values.items() if value not in (None, "")}}


def _encodable(value: Any) -> Any:
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
