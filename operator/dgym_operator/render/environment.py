"""Jinja for administrators' templates: found by name, sandboxed, every value quoted, bounded in time and size.

A template that does not end would hold up the whole controller. Jinja has no open loops, but it has recursive macros,
nested loops and ``"x" * 10**9``.
"""

import json
import os
import re
import time
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from typing import Any

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

from dgym_operator.render.forms import Blank, blind

RENDER_SECONDS = 2.0
_LONGEST_RANGE = 1000
_LONGEST_SEQUENCE = 64 * 1024
_LARGEST_NUMBER = 2**63
# Left out are those that make long texts of short ones, pass by the quoting, or answer otherwise each time.
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


class Quoted(str):
    """JSON, or the output of a macro, a block or a loop: text of the template with quoted values in it.

    Whatever is made of it is plain text again, which is quoted. Markup would not do: what is joined to markup becomes
    markup itself, escaped for pages and not for YAML.
    """

    __slots__ = ()


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """The environment of all templates. Not for several threads: one render at a time has the clock."""

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
        blind(self)
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
        makes_text = isinstance(__obj, Macro | BlockReference | LoopContext)
        if "caller" in kwargs and not makes_text:
            # Jinja writes what a {% call %} returns without finalize.
            raise SecurityError("{% call %} takes a macro")
        result = super().call(__context, __obj, *args, **kwargs)
        return Quoted(result) if makes_text else result

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """No method of quoted text: ``format`` would return quoted text with what is not."""
        return not isinstance(obj, Quoted) and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """``format`` of plain text; Jinja asks this before ``is_safe_attribute``."""
        return None if isinstance(getattr(value, "__self__", None), Quoted) else super().wrap_str_format(value)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for node in tree.find_all(tuple(_NOT_QUOTED)):
            why = next(text for kind, text in _NOT_QUOTED.items() if isinstance(node, kind))
            raise TemplateSyntaxError(why, node.lineno, name, filename)
        return tree

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


# YAML has no surrogate pairs, refuses control characters, and folds lines at U+0085, U+2028 and U+2029.
_UNSAFE = re.compile(r"[^\x20-\x7e]")


def quoted(value: Any) -> Quoted:
    """The value as JSON of one line of ASCII; what is quoted already (a macro, a parent's block) stays as it is.

    Every ``{{ … }}`` of a template passes through here, so none can be forgotten.
    """
    if isinstance(value, Quoted):
        return value
    if isinstance(value, Markup):
        raise SecurityError("markup is not quoted")
    if isinstance(value, StrictUndefined):
        str(value)  # Raises an error that names what is undefined.
    return Quoted(_UNSAFE.sub(_escape, json.dumps(value, ensure_ascii=False, allow_nan=False, default=_default)))


def _default(value: Any) -> str:
    if isinstance(value, Blank):
        return value.mark
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


@pass_eval_context
def _join(context: EvalContext, value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
    """The values as one text; a list of JSON with commas between stays JSON."""
    items = list(value)
    text = do_join(context, items, d, attribute)
    are_quoted = bool(items) and attribute is None and all(isinstance(each, Quoted) for each in items)
    return Quoted(text) if are_quoted and not str(d).strip(" ,") else text


def literal(value: Any) -> Any:
    """Text (or a list of texts) for ``command``, ``args`` and ``env``, where Kubernetes would expand ``$(NAME)``."""
    if isinstance(value, list | tuple):
        return [literal(item) for item in value]
    return value.replace("$", "$$") if isinstance(value, str) else value


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


SHIPPED = Path(__file__).with_name("templates")
SUFFIX = ".yaml.j2"
_LARGEST = 256 * 1024

Signature = tuple[Path, int, int, int]


class TemplateLoader(BaseLoader):
    """Templates by name, without the suffix; they ``extend`` each other by these names too."""

    def __init__(self, directory: Path | None) -> None:
        self._directories = [SHIPPED] if directory is None else [directory, SHIPPED]

    def get_source(self, environment: Environment, template: str) -> tuple[str, str, Callable[[], bool]]:
        """The text, the path, and whether both are still what would be found."""
        del environment
        signature = self._find(template)
        if signature is None:
            raise TemplateNotFound(template)
        path, _, size, _ = signature
        if size > _LARGEST:
            raise TemplateNotFound(template, f"{path} has {size:,} bytes; a template has at most {_LARGEST:,}")
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise TemplateNotFound(template, f"{path} cannot be read: {error}") from error
        # A ConfigMap's directory changes by renaming a link, so the same path is another file afterwards.
        return text, str(path), lambda: self._find(template) == signature

    def signature(self) -> Hashable:
        """Changes with every change of any template."""
        states = (
            (entry.path, status.st_mtime_ns, status.st_size, status.st_ino)
            for directory in self._directories
            for entry in _entries(directory)
            if entry.name.endswith(SUFFIX) and (status := _status(entry)) is not None
        )
        return tuple(sorted(states))

    def list_templates(self) -> list[str]:
        """All names."""
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
