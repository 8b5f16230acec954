"""Events as depots send them: one line each, oldest first."""

from collections import namedtuple

KINDS = ("accepted", "loaded", "held", "released", "delivered", "returned")

Event = namedtuple("Event", "parcel kind place")


class BadEvent(ValueError):
    """A line that is not an event."""


def parse(line):
    """``P7 held Lyon`` as an Event."""
    parts = line.split(None, 2)
    if len(parts) != 3:
        raise BadEvent("expected 'parcel kind place': {!r}".format(line))
    parcel, kind, place = parts
    if kind not in KINDS:
        raise BadEvent("unknown kind of event: {!r}".format(kind))
    return Event(parcel, kind, place.strip())


def read(text):
    """All events of a report; blank lines and comments are skipped."""
    for line in text.splitlines():
        line = line.strip()
        if line and not line.startswith("#"):
            yield parse(line)
