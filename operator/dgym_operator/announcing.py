"""What is wrong with the installation itself: in the log and on the operator's pod, where an administrator looks."""

import logging

from dgym.kube import PODS, EventRecorder, EventType
from dgym_operator.logs import fields
from dgym_operator.reconcile.views import Identity, Object
from dgym_operator.settings import Settings

_log = logging.getLogger(__name__)


class Announcer:
    """Logs, and records Events of the operator's own pod, which exists whatever else is deleted."""

    def __init__(self, settings: Settings, events: EventRecorder) -> None:
        self._events = events
        self._pod = Object(
            metadata=Identity(name=settings.pod_name, namespace=settings.namespace, uid=settings.pod_uid)
        )

    def announce(self, kind: EventType, reason: str, message: str, **about: str) -> None:
        """Log the message and record an Event; a repetition soon after becomes a count on the same Event."""
        level = logging.WARNING if kind == "Warning" else logging.INFO
        _log.log(level, "%s", message, extra=fields(reason=reason, **about))
        self._events.record(PODS, self._pod, type=kind, reason=reason, message=message)
