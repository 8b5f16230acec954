"""Formulas as tokens."""

import re
from collections import namedtuple

Token = namedtuple("Token", "kind text at")

_PATTERN = re.compile(r"\s*(?:(?P<number>\d+(?:\.\d+)?)|(?P<name>[A-Za-z_]\w*)|(?P<sign>[-+*/^(),]))")


def tokenize(text):
    """The tokens of a formula and an end."""
    tokens = []
    at = 0
    text = text.rstrip()
    while at < len(text):
        match = _PATTERN.match(text, at)
        if match is None:
            raise SyntaxError("cannot read {!r} at {}".format(text[at], at))
        kind = match.lastgroup
        tokens.append(Token(kind, match.group(kind), match.start(kind)))
        at = match.end()
    tokens.append(Token("end", "", at))
    return tokens
