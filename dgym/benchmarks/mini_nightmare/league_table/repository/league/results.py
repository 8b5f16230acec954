"""Results as they are reported: ``1; Reds 2:1 Blues``."""

import re
from collections import namedtuple

Match = namedtuple("Match", "day home away home_goals away_goals")

_LINE = re.compile(r"(\d+); (.+) (\d+):(\d+) (.+)")


def parse(line):
    """A line as a Match."""
    found = _LINE.fullmatch(line)
    if found is None:
        raise ValueError("not a result: {!r}".format(line))
    day, home, home_goals, away_goals, away = found.groups()
    return Match(int(day), home, away, int(home_goals), int(away_goals))


def read(text):
    """The matches of a report, in the order of their days."""
    lines = (line.strip() for line in text.splitlines())
    return sorted(parse(line) for line in lines if line)
