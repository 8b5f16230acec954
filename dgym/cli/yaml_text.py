"""Plain data as YAML that a person goes on editing: block style, quotes only where they are needed."""

import re
from collections.abc import Iterator
from typing import Any

_PLAIN = re.compile(r"(?:[A-Za-z/]|\./)(?:[\w ./=+-]*[\w./])?", re.ASCII)
_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def scalar(value: Any) -> str:
    """A string, number, boolean or null."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if not isinstance(value, str):
        return str(value)
    if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return '"' + "".join(map(_character, value)) + '"'


def lines(value: Any) -> Iterator[str]:
    """Mappings and lists, without their own indentation."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _entry(f"{scalar(key)}:", item)
    elif isinstance(value, list | tuple) and value:
        for item in value:
            first, *rest = list(lines(item))
            yield f"- {first}"
            yield from (f"  {line}" for line in rest)
    elif isinstance(value, dict | list | tuple):
        yield "{}" if isinstance(value, dict) else "[]"
    else:
        yield scalar(value)


def comment(text: str) -> str:
    """``text`` on one line, without what would end a comment or drive a terminal."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+", " ", text)


def _entry(key: str, item: Any) -> Iterator[str]:
    if isinstance(item, dict | list | tuple) and item:
        yield key
        yield from (f"  {line}" for line in lines(item))
    else:
        yield f"{key} {next(lines(item))}"


def _character(one: str) -> str:
    if one in _ESCAPES:
        return _ESCAPES[one]
    code = ord(one)
    if 0x20 <= code < 0x7F:
        return one
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
