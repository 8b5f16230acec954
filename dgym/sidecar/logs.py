"""Logs as JSON, a line each, with the episode and the attempt they are about."""

import logging

from dgym.logs import JsonFormatter, episode_fields
from dgym.sidecar.settings import Settings


def configure_logging(settings: Settings) -> None:
    """Send everything to standard error."""
    about = episode_fields(settings.episode, attempt=settings.attempt)
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter(lambda: about))
    logging.basicConfig(level=settings.log_level, handlers=[handler], force=True)
    logging.captureWarnings(True)
