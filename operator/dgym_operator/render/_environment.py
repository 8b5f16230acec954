"""The Jinja environment for administrators' templates: sandboxed, with quoted values and limits for time and size.

A template that does not terminate would block the whole controller. Jinja has no infinite loops, but it has recursive
macros, nested loops and expressions such as ``"x" * 10**9``.
"""

import json
import os
import re
import time
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import (
    BaseLoader,
    Environment,
    StrictUndefined,
    TemplateNotFound,
    TemplateSyntaxError,
    nodes,
    pass_eval_context,
)
from jinja2.exceptions import SecurityError
from jinja2.filters import do_join
from jinja2.nodes import EvalContext
from jinja2.runtime import BlockReference, Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from markupsafe import Markup

RENDER_SECONDS = 2.0
_LONGEST_RANGE = 1000
_LONGEST_SEQUENCE = 64 * 1024
_LARGEST_NUMBER = 2**63
# Excluded are filters that can make long texts from short ones, bypass the quoting, or are not deterministic.
_FILTERS = (
    *("abs", "attr", "count", "d", "default", "dictsort", "first", "float", "groupby", "int", "items", "last"),
    *("length", "list", "lower", "map", "max", "min", "reject", "rejectattr", "replace", "reverse", "round", "select"),
    *("selectattr", "sort", "string", "sum", "title", "trim", "unique", "upper"),
)


_NOT_QUOTED: dict[type[nodes.Node], str] = {
    nodes.FilterBlock: "{% filter %} blocks are not quoted; use a filter in {{ … }}",
    nodes.AssignBlock: "{% set %} blocks are not quoted; use a macro",
    nodes.EvalContextModifier: "{% autoescape %} does not quote; remove it",
}
# YAML does not have surrogate pairs, refuses control characters, and folds lines at U+0085, U+2028 and U+2029.
_UNSAFE = re.compile(r"[^\x20-\x7e]")
SHIPPED = Path(__file__).with_name("templates")
SUFFIX = ".yaml.j2"
_LARGEST_TEMPLATE = 256 * 1024
Signature = tuple[Path, int, int, int]


class BlankUsed(Exception):
    """A template used a blank value in another way than to write it."""


class Blank:
    """A placeholder for a value. It can only be written, alone or as an item of a list or a mapping.

    All other operations raise ``BlankUsed``.
    """

    __slots__ = ("mark",)

    def __init__(self, mark: str) -> None:
        self.mark = mark

    def _look(self, *_arguments: Any) -> NoReturn:
        raise BlankUsed

    __str__ = __repr__ = __format__ = __bytes__ = _look
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __hash__ = _look
    __len__ = __iter__ = __contains__ = __getitem__ = __reversed__ = __length_hint__ = _look
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _look
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = _look
    __neg__ = __pos__ = __abs__ = __int__ = __float__ = __complex__ = __index__ = __round__ = __trunc__ = _look
    __call__ = __html__ = _look

    def __getattr__(self, _name: str) -> NoReturn:
        raise BlankUsed


def _blind(test: Any) -> Callable[..., Any]:
    def blinded(*arguments: Any, **named: Any) -> Any:
        if any(isinstance(each, Blank) for each in (*arguments, *named.values())):
            raise BlankUsed
        return test(*arguments, **named)

    # Jinja reads from this attribute which further arguments to pass.
    if hasattr(test, "jinja_pass_arg"):
        blinded.jinja_pass_arg = test.jinja_pass_arg  # type: ignore[attr-defined]
    return blinded


class Quoted(str):
    """Text that must not be quoted again: JSON, or the output of a macro, a block or a loop.

    The result of an operation on it is a plain string, which is quoted. ``markupsafe.Markup`` is not suitable: text
    that is joined to it becomes markup too, and is escaped for HTML instead of YAML.
    """

    __slots__ = ()


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """The environment of all templates. It is not thread-safe, because only one render at a time can use the clock."""

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self, loader: BaseLoader, *, clock: Callable[[], float] = time.thread_time) -> None:
        super().__init__(
            loader=loader,
            undefined=StrictUndefined,
            finalize=quoted,
            autoescape=False,
            trim_blocks=True,
            lstrip_blocks=True,
            cache_size=64,
        )
        self._clock = clock
        self._deadline = float("inf")
        self.filters = {name: self.filters[name] for name in _FILTERS}
        self.filters.update(json=quoted, tojson=quoted, literal=literal, join=_join)
        # Several Jinja tests only check the type of a value. Without the wrapper they would not raise for a blank.
        self.tests = {name: _blind(test) for name, test in self.tests.items()}
        self.globals.clear()
        self.globals.update(range=_range, dict=dict)

    def start_clock(self) -> None:
        """Start the time limit of a render."""
        self._deadline = self._clock() + RENDER_SECONDS

    def check_clock(self) -> None:
        """Raise ``SecurityError`` if the render takes too long."""
        if self._clock() > self._deadline:
            raise SecurityError(f"it takes longer than {RENDER_SECONDS:g} s")

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 - the name in Jinja
        """Call a function or a macro. Raises ``SecurityError`` if the time is over."""
        __self.check_clock()
        makes_text = isinstance(__obj, Macro | BlockReference | LoopContext)
        if "caller" in kwargs and not makes_text:
            # Jinja writes the result of a {% call %} without ``finalize``, so it would not be quoted.
            raise SecurityError("{% call %} takes a macro")
        result = super().call(__context, __obj, *args, **kwargs)
        return Quoted(result) if makes_text else result

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Forbid all methods of quoted text: ``format`` would insert values that are not quoted."""
        return not isinstance(obj, Quoted) and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Forbid ``format`` of quoted text. Jinja calls this method before ``is_safe_attribute``."""
        return None if isinstance(getattr(value, "__self__", None), Quoted) else super().wrap_str_format(value)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for node in tree.find_all(tuple(_NOT_QUOTED)):
            why = next(text for kind, text in _NOT_QUOTED.items() if isinstance(node, kind))
            raise TemplateSyntaxError(why, node.lineno, name, filename)
        return tree

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Multiply. Raises ``SecurityError`` if the result is too large."""
        self.check_clock()
        sequences = [each for each in (left, right) if isinstance(each, str | list | tuple)]
        numbers = [abs(each) for each in (left, right) if isinstance(each, int | float)]
        if sequences and numbers and len(sequences[0]) * numbers[0] > _LONGEST_SEQUENCE:
            raise SecurityError(f"repeating produces more than {_LONGEST_SEQUENCE:,} items or characters")
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


def quoted(value: Any) -> Quoted:
    """Return the value as JSON in one line of ASCII. Text that is already quoted is not changed.

    Jinja calls this for every ``{{ … }}`` of a template (``finalize``).
    """
    if isinstance(value, Quoted):
        return value
    if isinstance(value, Markup):
        raise SecurityError("markup is not quoted")
    if isinstance(value, StrictUndefined):
        str(value)  # Raises an error with the name of the undefined variable.
    return Quoted(_UNSAFE.sub(_escape, json.dumps(value, ensure_ascii=False, allow_nan=False, default=mark_of)))


def mark_of(value: Any) -> str:
    """Return the mark of a blank. For use as the default function of JSON encoders.

    Raises:
        TypeError: The value is not a blank and not a JSON value.
    """
    if isinstance(value, Blank):
        return value.mark
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


@pass_eval_context
def _join(context: EvalContext, value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
    """Join the values. If all of them are quoted and the separator is a comma or a space, the result is quoted too."""
    items = list(value)
    text = do_join(context, items, d, attribute)
    are_quoted = bool(items) and attribute is None and all(isinstance(each, Quoted) for each in items)
    return Quoted(text) if are_quoted and not str(d).strip(" ,") else text


def literal(value: Any) -> Any:
    """Escape a text or a list of texts for ``command``, ``args`` and ``env``, where Kubernetes expands ``$(NAME)``."""
    if isinstance(value, list | tuple):
        return [literal(item) for item in value]
    return value.replace("$", "$$") if isinstance(value, str) else value


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


class TemplateLoader(BaseLoader):
    """Loads templates by name without the suffix. ``{% extends %}`` uses these names too."""

    def __init__(self, directory: Path | None) -> None:
        self._directories = [SHIPPED] if directory is None else [directory, SHIPPED]

    def get_source(self, environment: Environment, template: str) -> tuple[str, str, Callable[[], bool]]:
        """Return the text, the path, and a function that returns True while both are up to date."""
        del environment
        signature = self._find(template)
        if signature is None:
            raise TemplateNotFound(template)
        path, _, size, _ = signature
        if size > _LARGEST_TEMPLATE:
            raise TemplateNotFound(template, f"{path} has {size:,} bytes; a template has at most {_LARGEST_TEMPLATE:,}")
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise TemplateNotFound(template, f"{path} cannot be read: {error}") from error
        # The kubelet updates a ConfigMap volume by renaming a symbolic link, so the same path becomes another file.
        return text, str(path), lambda: self._find(template) == signature

    def signature(self) -> Hashable:
        """Return a value that changes with every change of a template."""
        states = (
            (entry.path, status.st_mtime_ns, status.st_size, status.st_ino)
            for directory in self._directories
            for entry in _entries(directory)
            if entry.name.endswith(SUFFIX) and (status := _status(entry)) is not None
        )
        return tuple(sorted(states))

    def list_templates(self) -> list[str]:
        """Return the names of all templates, sorted."""
        found = {path.name for directory in self._directories for path in directory.glob(f"*{SUFFIX}")}
        return sorted(name.removesuffix(SUFFIX) for name in found)

    def _find(self, name: str) -> Signature | None:
        if not name or "/" in name or "\0" in name or name.startswith("."):
            return None
        for directory in self._directories:
            path = directory / f"{name}{SUFFIX}"
            try:
                status = path.stat()
            except OSError:
                continue
            return path, status.st_mtime_ns, status.st_size, status.st_ino
        return None


def _entries(directory: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            return list(entries)
    except OSError:
        return []


def _status(entry: os.DirEntry[str]) -> os.stat_result | None:
    try:
        return entry.stat()
    except OSError:
        return None
