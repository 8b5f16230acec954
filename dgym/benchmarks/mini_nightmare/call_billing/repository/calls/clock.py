"""Times as exchanges write them: 2024-03-01T23:30:00+05:30."""

import re
from datetime import datetime, timedelta, timezone

_STAMP = re.compile(r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(Z|[+-]\d\d:\d\d)")


def parse_offset(text):
    """``+05:30`` as a time zone."""
    if text == "Z":
        return timezone.utc
    hours, minutes = text.split(":")
    return timezone(timedelta(hours=int(hours), minutes=int(minutes)))


def parse(text):
    """A time stamp as a moment that knows its offset."""
    match = _STAMP.fullmatch(text)
    if match is None:
        raise ValueError("not a time stamp: {!r}".format(text))
    numbers = [int(group) for group in match.groups()[:6]]
    return datetime(*numbers, tzinfo=parse_offset(match.group(7)))
