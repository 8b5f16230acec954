"""Arguments as a model wrote them: JSON, nearly always."""

import json
from typing import Any

import msgspec


def read_object(text: str) -> tuple[dict[str, Any] | None, str]:
    """The object, or None and what is wrong, to be put after "is".

    A line break inside a string is let through: models write code that way, and nothing else can be meant.
    """
    try:
        found = decode_leniently(text.encode("utf-8", "replace"))
    except RecursionError:
        return None, "nested too deeply"
    except ValueError as error:
        return None, f"not valid JSON: {error}"
    if not isinstance(found, dict):
        return None, f"not a JSON object but {_kind(found)}"
    return found, ""


def decode_leniently(data: bytes) -> Any:
    """JSON as msgspec reads it, and what only looser readers accept: line breaks in strings, halves of characters.

    Raises:
        ValueError: Neither reads it.
    """
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        loose = json.loads(data.decode("utf-8", "replace"), strict=False, parse_constant=_refuse)
    # Half of a surrogate pair could be neither stored nor sent.
    return msgspec.json.decode(json.dumps(loose, ensure_ascii=False).encode("utf-8", "replace"))


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _kind(value: Any) -> str:
    names = {list: "a list", str: "a string", int: "a number", float: "a number", bool: "true or false"}
    return names.get(type(value), "null")
