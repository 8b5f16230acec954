"""Checks of what callers give to an environment: a wrong argument is refused by name before anything starts.

Type annotations do not suffice: many callers pass what they read from a command line or a notebook.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any, NoReturn

from dgym.errors import ArgumentError


def check_choice(name: str, value: Any, known: Iterable[str | None]) -> None:
    """Refuse a value that is none of ``known``."""
    known = tuple(known)
    # A list is unhashable, and a dictionary's `in` would say so in words of its own.
    if not any(value is choice or (isinstance(value, str) and value == choice) for choice in known):
        shown = [f'"{choice}"' if isinstance(choice, str) else str(choice) for choice in known]
        _refuse(name, value, f"{', '.join(shown[:-1])} or {shown[-1]}")


def check_count(name: str, value: Any, *, least: int, optional: bool = False) -> None:
    """Refuse what is not a whole number from ``least`` on; with ``optional`` None is accepted."""
    if optional and value is None:
        return
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        _refuse(name, value, f"a whole number from {least} on{', or None for no limit' if optional else ''}")


def check_seconds(name: str, value: Any) -> None:
    """Refuse what is neither None nor a finite number of seconds above 0."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) < math.inf:
        _refuse(name, value, "a number of seconds above 0, or None for no limit")


def check_tools(value: Any) -> None:
    """Refuse what is not a sequence; a single name would be read letter by letter."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Sequence):
        _refuse("tools", value, 'a sequence of names, {"name": …, "options": …} or Tool objects, such as ["view"]')


def check_python(value: Any) -> None:
    """Refuse what is neither None nor the path of a file or directory."""
    if value is not None and not (isinstance(value, str | Path) and str(value)):
        _refuse("python", value, "the path of an interpreter or a virtual environment, or None")


def check_callable(name: str, value: Any) -> None:
    """Refuse what is neither None nor callable."""
    if value is not None and not callable(value):
        _refuse(name, value, "a function of one text, or None")


def _refuse(name: str, value: Any, valid: str) -> NoReturn:
    raise ArgumentError(f"{name} is {value!r}; it must be {valid}")
