"""The interface of adapters: the base class, the ``Row`` that an adapter returns, and the lookup of adapters.

Rows are read from files (JSON Lines, a JSON list, parquet) and selected by their ids or fields.
"""

import importlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from dgym.api import DEFAULT_ENTRYPOINT, Evaluation, InlineFile
from dgym.errors import DgymError, ManifestError, PluginError, nearest

GROUP = "dgym.benchmarks"
_NAME = re.compile(r"\{\{\s*(\w+)\s*\}\}")


class RowError(DgymError):
    """A row of a data set cannot be converted to a task. The message contains the field and the problem."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One instance of a benchmark in the common form of all adapters.

    Scoring uses ``evaluation``, or else the pytest tests in ``fail_to_pass`` and ``pass_to_pass``.

    Attributes:
        instance: The id in the data set.
        repository: ``owner/name``.
        revision: The commit of the repository from which the agent starts.
        test_patch: A patch that is applied in the verifier only.
        solution: The gold patch.
        entrypoint: The command that the agent's ``eval`` runs.
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
    """Options for the names of images.

    ``template`` replaces the template of the adapter and may contain ``{{ name }}`` placeholders. ``registry`` replaces
    the registry.
    """

    template: str | None = None
    registry: str | None = None

    def name(self, given: str | None, template: str, values: Mapping[str, str]) -> str:
        """The name of the image: ``given`` by the row, or from the template, with ``registry`` if it is set.

        Raises:
            RowError: The template contains an unknown placeholder.
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
    """The fields of a row. Each method checks the type, and raises ``RowError`` if it is wrong."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self._data = data

    def text(self, name: str) -> str:
        """A required text that is not empty."""
        value = self._data.get(name)
        if not isinstance(value, str) or not value.strip():
            raise RowError(f"{name} {_problem(self._data, name, 'a text')}")
        return value

    def optional(self, name: str) -> str:
        """An optional text, empty if the field is missing."""
        value = self._data.get(name)
        if value is not None and not isinstance(value, str):
            raise RowError(f"{name} {_problem(self._data, name, 'a text')}")
        return value or ""

    def names(self, name: str) -> tuple[str, ...]:
        """A list of texts without duplicates. The value may be a JSON text."""
        value = self.value(name)
        if not isinstance(value, list) or not all(isinstance(one, str) and one for one in value):
            raise RowError(f"{name} {_problem(self._data, name, 'a list of texts')}")
        return tuple(dict.fromkeys(value))

    def value(self, name: str) -> Any:
        """A value of any type, None if the field is missing. A text is parsed as JSON."""
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
    """One kind of data set. A subclass defines at least ``name``, ``summary`` and ``row``.

    Attributes:
        name: The name of the adapter.
        summary: One line of help.
        splits: The names of the data set's splits.
        key: The field with the id of an instance.
    """

    name: ClassVar[str]
    summary: ClassVar[str] = ""
    splits: ClassVar[tuple[str, ...]] = ("test",)
    key: ClassVar[str] = "instance_id"

    def rows(self, source: Path) -> Iterator[dict[str, Any]]:
        """The rows of ``source``. The default implementation reads JSON Lines, a JSON list, or parquet with pyarrow.

        An adapter for another format, such as a directory, overrides this method.

        Raises:
            ManifestError: The source cannot be read. The message contains the position.
        """
        return read_rows(source)

    def row(self, data: Mapping[str, Any], images: ImageNames) -> Row:
        """Convert a row of the data set.

        Raises:
            RowError: The row cannot be converted to a task.
        """
        raise NotImplementedError


@cache
def _installed() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def adapter_names() -> list[str]:
    """The names of the installed adapters, sorted."""
    return sorted(_installed())


def load_adapter(name: str) -> Adapter:
    """The adapter with this name.

    Raises:
        ManifestError: The adapter is not installed.
        PluginError: The adapter cannot be loaded.
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


def read_rows(source: Path) -> Iterator[dict[str, Any]]:
    """The rows of the file ``source``.

    Raises:
        ManifestError: The file does not exist, has another format, or is truncated.
        PluginError: The file is parquet, and pyarrow is not installed.
    """
    if not source.is_file():
        raise ManifestError(f"{source}: the file does not exist; give JSON lines, a JSON list or parquet")
    with source.open("rb") as file:
        magic = file.read(4)
    if magic == b"PAR1":
        yield from _parquet(source)
    elif magic.lstrip()[:1] == b"[":
        yield from _list(source)
    else:
        yield from _lines(source)


def _lines(source: Path) -> Iterator[dict[str, Any]]:
    with source.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield _object(line, f"{source}, line {number}", whole=line.endswith(b"\n"))


def _object(text: bytes, where: str, *, whole: bool) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        cut = "" if whole else " (the file ends within it: is it truncated?)"
        raise ManifestError(f"{where}: not JSON: {error}{cut}") from None
    if not isinstance(value, dict):
        raise ManifestError(f"{where}: a row is an object of fields, not of type {type(value).__name__}")
    return value


def _list(source: Path) -> Iterator[dict[str, Any]]:
    try:
        rows = json.loads(source.read_bytes())
    except ValueError as error:
        raise ManifestError(f"{source}: not JSON: {error} (is it truncated?)") from None
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise ManifestError(f"{source}, row {number}: a row is an object of fields, not {type(row).__name__}")
        yield row


def _parquet(source: Path) -> Iterator[dict[str, Any]]:
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise PluginError(f"{source}: parquet needs pyarrow: pip install 'dgym[parquet]' ({error})") from error
    try:
        for batch in parquet.ParquetFile(source).iter_batches(batch_size=64):
            yield from batch.to_pylist()
    except (ValueError, OSError) as error:  # pyarrow's ArrowInvalid is a ValueError
        raise ManifestError(f"{source}: not whole parquet: {error}") from None


def select(
    rows: Sequence[Mapping[str, Any]], key: str, filters: Sequence[str] = (), limit: int | None = None
) -> list[Mapping[str, Any]]:
    """The rows that match all filters, at most ``limit`` rows.

    A filter is ``FIELD=PATTERN``, or a comma-separated list of ids, which may contain ``*``.

    Raises:
        ManifestError: An id or a field does not exist, or no row matches.
    """
    found = list(rows)
    for one in filters:
        found = _filtered(found, rows, key, one)
    if not found:
        given = f"--filter {' '.join(filters)}: no instance matches" if filters else "the benchmark has no instances"
        raise ManifestError(given)
    return found if limit is None else found[:limit]


def _filtered(
    found: list[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]], key: str, text: str
) -> list[Mapping[str, Any]]:
    field, equals, pattern = text.partition("=")
    if equals:
        known = sorted({name for row in rows for name in row})
        if field not in known:
            raise ManifestError(f"--filter {text}: rows have no field {field!r}; they have {', '.join(known)}")
        return [row for row in found if fnmatchcase(str(row.get(field, "")), pattern)]
    wanted = [one.strip() for one in text.split(",") if one.strip()]
    identifiers = [str(row[key]) for row in rows]
    for one in wanted:
        if not any(fnmatchcase(identifier, one) for identifier in identifiers):
            guess = nearest(one, identifiers)
            hint = f"did you mean {guess!r}?" if guess else f"there are {len(identifiers)}, such as {identifiers[0]!r}"
            raise ManifestError(f"--filter {text}: instance {one!r} does not exist; {hint}")
    return [row for row in found if any(fnmatchcase(str(row[key]), one) for one in wanted)]
