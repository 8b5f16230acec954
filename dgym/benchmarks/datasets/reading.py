"""Rows of files: JSON lines, a JSON list, parquet. What is wrong is named with its file and line."""

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dgym.errors import ManifestError, PluginError


def read_rows(source: Path) -> Iterator[dict[str, Any]]:
    """The rows of ``source``, one at a time.

    Raises:
        ManifestError: It is not such a file, or is cut off.
        PluginError: It is parquet, and pyarrow is not installed.
    """
    if not source.is_file():
        raise ManifestError(f"{source}: there is no such file; give JSON lines, a JSON list or parquet")
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
