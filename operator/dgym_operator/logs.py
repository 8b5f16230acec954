"""Logs: one JSON object a line for collectors, or plain text for a terminal.

What a line is about travels as fields (``extra={"fields": {…}}``), never inside the message, so that all lines of one
episode are found by one query: ``namespace``, ``episode``, ``attempt``.
"""

import logging
import time
from typing import Any, Literal

from dgym.logs import JsonFormatter, log_to_stderr


class TextFormatter(logging.Formatter):
    """A record as a line of text, the fields behind the message."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
        self.converter = time.gmtime

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the base class's name
        """The line without a traceback, which follows it."""
        fields = getattr(record, "fields", {})
        return " ".join([super().formatMessage(record), *(f"{name}={value}" for name, value in fields.items())])


def configure_logging(level: str, style: Literal["json", "text"]) -> None:
    """Log to standard error: the operator from ``level`` on, libraries from warnings on."""
    log_to_stderr(JsonFormatter() if style == "json" else TextFormatter(), level)
    logging.getLogger().setLevel(max(logging.WARNING, logging.getLevelNamesMapping()[level]))
    logging.getLogger("dgym_operator").setLevel(level)


def fields(**values: Any) -> dict[str, Any]:
    """``extra`` for a call of a logger, without values that are None or empty."""
    return {"fields": {name: value for name, value in values.items() if value not in (None, "")}}
