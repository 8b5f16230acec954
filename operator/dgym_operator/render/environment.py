"""Jinja as administrators may use it: a sandbox whose every value is quoted, bounded in time and size.

A template that does not end would hold up the whole controller. There are no open loops in Jinja, but there are
recursive macros, nested loops and ``"x" * 10**9``.
"""

import time
from collections.abc import Callable
from typing import Any

from jinja2 import BaseLoader, StrictUndefined
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from dgym_operator.render.quoting import literal, quoted

RENDER_SECONDS = 2.0
_LONGEST_RANGE = 1000
_LONGEST_SEQUENCE = 64 * 1024
_LARGEST_NUMBER = 2**63
# Left out are those that make long texts of short ones, pass by the quoting, or answer otherwise each time.
_FILTERS = (
    *("abs", "attr", "count", "d", "default", "dictsort", "first", "float", "groupby", "int", "items", "join", "last"),
    *("length", "list", "lower", "map", "max", "min", "reject", "rejectattr", "replace", "reverse", "round", "select"),
    *("selectattr", "sort", "string", "sum", "title", "trim", "unique", "upper"),
)


class Environment(ImmutableSandboxedEnvironment):
    """The environment of all templates. Not for several threads: one render at a time has the clock."""

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self, loader: BaseLoader, *, clock: Callable[[], float] = time.thread_time) -> None:
        super().__init__(
            loader=loader,
            undefined=StrictUndefined,
            finalize=quoted,
            autoescape=True,
            trim_blocks=True,
            lstrip_blocks=True,
            cache_size=64,
        )
        self._clock = clock
        self._deadline = float("inf")
        self.filters = {name: self.filters[name] for name in _FILTERS}
        self.filters.update(json=quoted, tojson=quoted, literal=literal)
        self.globals.clear()
        self.globals.update(range=_range, dict=dict)

    def start_clock(self) -> None:
        """Begin a render."""
        self._deadline = self._clock() + RENDER_SECONDS

    def check_clock(self) -> None:
        """``SecurityError`` when the render takes too long."""
        if self._clock() > self._deadline:
            raise SecurityError(f"it takes longer than {RENDER_SECONDS:g} s")

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 - as Jinja has it
        """Call a function or a macro, if there is time left."""
        __self.check_clock()
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Multiply, unless what comes of it is large."""
        self.check_clock()
        sequences = [each for each in (left, right) if isinstance(each, str | list | tuple)]
        numbers = [abs(each) for each in (left, right) if isinstance(each, int | float)]
        if sequences and numbers and len(sequences[0]) * numbers[0] > _LONGEST_SEQUENCE:
            raise SecurityError(f"repeating gives more than {_LONGEST_SEQUENCE:,} items or characters")
        if operator == "**" and any(number > _LONGEST_RANGE for number in numbers):
            raise SecurityError(f"powers are taken of numbers up to {_LONGEST_RANGE}")
        result = super().call_binop(context, operator, left, right)
        if isinstance(result, int) and abs(result) > _LARGEST_NUMBER:
            raise SecurityError("numbers are at most 2**63")
        return result


def _range(*bounds: int) -> range:
    numbers = range(*bounds)
    if len(numbers) > _LONGEST_RANGE:
        raise SecurityError(f"a range has at most {_LONGEST_RANGE} numbers")
    return numbers
