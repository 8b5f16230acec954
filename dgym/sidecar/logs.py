"""Logs as JSON, a line each, with the episode and the attempt they are about."""

import logging
from datetime import UTC, datetime
from typing import Any

import msgspec

from dgym.sidecar.settings import Settings

_LIMIT = 8192


class JsonFormatter(logging.Formatter):
    """A record as one line; what is passed in ``extra={"fields": {…}}`` becomes fields of its own."""

    def __init__(self, **fields: Any) -> None:
        super().__init__()
        self._fields = fields

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage()[:_LIMIT],
            **self._fields,
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)[-_LIMIT:]
        line = {name: _text(value) for name, value in line.items()}
        return msgspec.json.encode(line).decode()


def configure_logging(settings: Settings) -> None:
    """Send everything to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter(episode=settings.episode, attempt=settings.attempt))
    logging.basicConfig(level=settings.log_level, handlers=[handler], force=True)


def _text(value: Any) -> Any:
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
