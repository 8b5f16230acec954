"""Records of calls: number, start and end, separated by semicolons."""

from collections import namedtuple

from calls.clock import parse

Call = namedtuple("Call", "number start seconds")


def read(lines):
    """The calls of a log, in the order of their beginning."""
    calls = []
    for line in lines:
        line = line.strip()
        if not line:
            continue
        number, start, end = (field.strip() for field in line.split(";"))
        begin = parse(start)
        seconds = int((parse(end) - begin).total_seconds())
        if seconds < 0:
            raise ValueError("a call that ends before it begins: {}".format(line))
        calls.append(Call(number, begin, seconds))
    return sorted(calls, key=lambda call: call.start)
