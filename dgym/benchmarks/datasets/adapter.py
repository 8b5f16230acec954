"""What an adapter is, what it says of a row, and how adapters are found."""

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from dgym.api import DEFAULT_ENTRYPOINT, Evaluation, InlineFile
from dgym.benchmarks.datasets.reading import read_rows
from dgym.errors import DgymError, ManifestError, PluginError, nearest

GROUP = "dgym.benchmarks"
_NAME = re.compile(r"\{\{\s*(\w+)\s*\}\}")


class RowError(DgymError):
    """A row of a data set cannot become a task; the message names the field and what is wrong with it."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One instance of a benchmark, as every adapter describes it.

    ``instance``: the id in the data set. ``revision``: the commit of ``repository`` (owner/name) that the agent starts
    from. ``test_patch``: applied in the verifier only. ``solution``: the gold patch. ``entrypoint``: what the agent's
    own eval runs. ``scoring`` is by ``evaluation``, or by the tests of pytest in ``fail_to_pass`` and ``pass_to_pass``.
    """

    instance: str
    instructions: str
    image: str | None = None
    working_directory: str = "/workspace"
    repository: str = ""
    revision: str = ""
    evaluation: Evaluation | None = None
    fail_to_pass: tuple[str, ...] = ()
    pass_to_pass: tuple[str, ...] = ()
    test_patch: str = ""
    solution: str = ""
    entrypoint: str = DEFAULT_ENTRYPOINT
    activate: str | None = None
    setup_commands: tuple[str, ...] = ()
    files: tuple[InlineFile, ...] = ()
    hidden_files: tuple[InlineFile, ...] = ()
    read_only_patterns: tuple[str, ...] = ()
    timeout_seconds: int = 1800
    difficulty: str = ""


class ImageNames(msgspec.Struct, frozen=True, kw_only=True):
    """How images are named: ``template`` with ``{{ name }}``s in place of the adapter's, and another registry."""

    template: str | None = None
    registry: str | None = None

    def name(self, given: str | None, template: str, values: Mapping[str, str]) -> str:
        """The image: the row's own name, or that of the template; in ``registry`` where one is named.

        Raises:
            RowError: The template has a name that is not known.
        """
        image = given if given and self.template is None else _NAME.sub(
            lambda found: _value(found[1], values), self.template or template
        )  # fmt: skip
        if self.registry is None:
            return image
        first, slash, rest = image.partition("/")
        is_host = bool(slash) and ("." in first or ":" in first or first == "localhost")
        return f"{self.registry.rstrip('/')}/{rest if is_host else image}"


def _value(name: str, values: Mapping[str, str]) -> str:
    if name not in values:
        raise RowError(f"the template of images has {name!r}; known are {', '.join(sorted(values))}")
    return values[name]


class Fields:
    """The fields of a row, each checked when it is read."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self._data = data

    def text(self, name: str) -> str:
        """A text that is there and not empty."""
        value = self._data.get(name)
        if not isinstance(value, str) or not value.strip():
            raise RowError(f"{name} {_problem(self._data, name, 'a text')}")
        return value

    def optional(self, name: str) -> str:
        """A text; empty where there is none."""
        value = self._data.get(name)
        if value is not None and not isinstance(value, str):
            raise RowError(f"{name} {_problem(self._data, name, 'a text')}")
        return value or ""

    def names(self, name: str) -> tuple[str, ...]:
        """A list of texts, perhaps written as JSON; each once."""
        value = self.value(name)
        if not isinstance(value, list) or not all(isinstance(one, str) and one for one in value):
            raise RowError(f"{name} {_problem(self._data, name, 'a list of texts')}")
        return tuple(dict.fromkeys(value))

    def value(self, name: str) -> Any:
        """A value, perhaps written as JSON; None where there is none."""
        value = self._data.get(name)
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value)
        except ValueError as error:
            raise RowError(f"{name} is not JSON: {error}") from None


def _problem(data: Mapping[str, Any], name: str, wanted: str) -> str:
    if name in data:
        value = data[name]
        return "is empty" if value in ("", None) else f"is of type {type(value).__name__}, not {wanted}"
    guess = nearest(name, data)
    return f"is missing (there is {guess!r})" if guess else "is missing"


class Adapter:
    """One kind of data set. A subclass has ``name``, ``summary`` and ``row``; others may stay as they are."""

    name: ClassVar[str]
    summary: ClassVar[str] = ""
    splits: ClassVar[tuple[str, ...]] = ("test",)
    key: ClassVar[str] = "instance_id"

    def rows(self, source: Path) -> Iterator[dict[str, Any]]:
        """The rows of a file (JSON lines, a JSON list, or parquet with pyarrow), or of a directory.

        Raises:
            ManifestError: The file cannot be read; the message says where.
        """
        return read_rows(source)

    def row(self, data: Mapping[str, Any], images: ImageNames) -> Row:
        """What a row means.

        Raises:
            RowError: It cannot become a task.
        """
        raise NotImplementedError


@cache
def _installed() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def adapter_names() -> list[str]:
    """The names of the installed adapters."""
    return sorted(_installed())


def load_adapter(name: str) -> Adapter:
    """The adapter of that name.

    Raises:
        ManifestError: There is none.
        PluginError: It cannot be loaded.
    """
    entry = _installed().get(name)
    if entry is None:
        guess = nearest(name, _installed())
        hint = f"did you mean {guess!r}?" if guess else f"there are: {', '.join(adapter_names())}"
        raise ManifestError(f"no adapter of benchmarks is named {name!r}; {hint}")
    try:
        found = entry.load()()
    except Exception as error:
        raise PluginError(f"adapter {name!r} ({entry.value}) cannot be loaded: {error}") from error
    if not isinstance(found, Adapter):
        raise PluginError(f"adapter {name!r} ({entry.value}) is not a dgym.benchmarks.datasets.Adapter")
    return found
