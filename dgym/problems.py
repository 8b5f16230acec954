"""What is wrong with a manifest, said so that its author can repair it without reading our code."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from dgym.errors import ManifestError

Path = tuple[str | int, ...]


class Problem(msgspec.Struct, frozen=True):
    """One fault: the field it is in, what is wrong with which value, and (after a semicolon) the remedy."""

    path: Path
    message: str
    line: int | None = None


def render_path(path: Sequence[str | int]) -> str:
    """``spec.tools[0].name``; keys that hold dots or slashes are bracketed: ``metadata.labels["dgym.dev/set"]``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part.replace("_", "").replace("-", "").isalnum():
            text += f".{part}" if text else part
        else:
            text += f'["{part}"]'
    return text


def show(value: Any) -> str:
    """The offending value, short enough for a line of an error message."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]}… ({len(text)} characters)"


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that was probably meant; None when none is near."""
    import difflib

    folded = {name.replace("_", "").replace("-", "").lower(): name for name in known}
    matches = difflib.get_close_matches(word.replace("_", "").replace("-", "").lower(), folded, n=1, cutoff=0.65)
    return folded[matches[0]] if matches else None


def describe(problem: Problem, where: str) -> str:
    """One line: place, line number, field, fault and remedy."""
    place = where if problem.line is None else f"{where}, line {problem.line}"
    field = render_path(problem.path)
    return f"{place}: {field}: {problem.message}" if field else f"{place}: {problem.message}"


def error_of(lines: Sequence[str]) -> ManifestError:
    """All faults in one exception."""
    if len(lines) == 1:
        return ManifestError(lines[0])
    return ManifestError("\n  ".join([f"{len(lines)} problems:", *lines]))
