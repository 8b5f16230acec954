"""Lines of a time sheet: ``mon 09:00-12:20 design``."""

import re
from collections import namedtuple

Entry = namedtuple("Entry", "day minutes task")

_LINE = re.compile(r"(mon|tue|wed|thu|fri|sat|sun) (\d\d):(\d\d)-(\d\d):(\d\d) (\S.*)")


def parse(line):
    """A line as an Entry; work past midnight ends on the next day."""
    match = _LINE.fullmatch(line.strip())
    if match is None:
        raise ValueError("not an entry: {!r}".format(line))
    day, task = match.group(1), match.group(6)
    begin = int(match.group(2)) * 60 + int(match.group(3))
    end = int(match.group(4)) * 60 + int(match.group(5))
    if end < begin:
        end += 24 * 60
    return Entry(day, end - begin, task)


def read(text):
    """All entries of a sheet."""
    return [parse(line) for line in text.splitlines() if line.strip()]
