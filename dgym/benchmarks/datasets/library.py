"""The imported data sets: rows as JSON lines in the cache directory, pinned by their checksum."""

import hashlib
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from dgym.benchmarks.datasets.adapter import Adapter, ImageNames, RowError, load_adapter
from dgym.benchmarks.datasets.fetching import Progress, fetch, named, unpacked
from dgym.decoding import DECODE_ERRORS
from dgym.errors import ManifestError, nearest
from dgym.sandbox.local import cache_directory

_INDEX = "index.json"
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?")
_SHOWN = 10


class _Split(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    source: str
    source_sha256: str
    sha256: str
    rows: int


class _Index(msgspec.Struct, frozen=True, kw_only=True):
    adapter: str
    splits: dict[str, _Split]


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """One imported split of a benchmark."""

    name: str
    adapter: str
    split: str
    source: str
    source_sha256: str
    sha256: str
    rows: int
    directory: Path

    @property
    def file(self) -> Path:
        """The rows, as JSON lines."""
        return self.directory / f"{self.split}.jsonl"

    @property
    def health(self) -> Path:
        """What ``dgym benchmark health`` found."""
        return self.directory / f"{self.split}.health.json"

    def load(self) -> list[dict[str, Any]]:
        """Every row.

        Raises:
            ManifestError: The file is not what was imported.
        """
        data = self.file.read_bytes() if self.file.is_file() else b""
        if hashlib.sha256(data).hexdigest() != self.sha256:
            raise ManifestError(f"{self.file}: is not what was imported; import {self.name} again")
        return [msgspec.json.decode(line) for line in data.splitlines()]


def imported() -> list[Imported]:
    """Every imported split, by name."""
    found = []
    for file in sorted(_root().glob(f"*/{_INDEX}")):
        index = _read_index(file)
        if index is not None:
            found += [_entry(file.parent, index, split) for split in sorted(index.splits)]
    return found


def open_imported(name: str, split: str | None = None) -> Imported:
    """The split, or the only one.

    Raises:
        ManifestError: The benchmark was not imported, or has no such split.
    """
    found = [one for one in imported() if one.name == name]
    if not found:
        known = sorted({one.name for one in imported()})
        guess = nearest(name, known)
        hint = f"did you mean {guess!r}? Else" if guess else "it"
        raise ManifestError(f"no benchmark {name!r} was imported; {hint} comes by: dgym benchmark import {name} --from")
    chosen = [one for one in found if split is None or one.split == split]
    if len(chosen) != 1:
        splits = ", ".join(one.split for one in found)
        what = f"has no split {split!r}" if split else "has several splits; name one with --split"
        raise ManifestError(f"benchmark {name!r} {what}: {splits}")
    return chosen[0]


def import_rows(
    name: str,
    adapter_name: str,
    source: str,
    *,
    split: str,
    sha256: str | None = None,
    revision: str | None = None,
    progress: Progress,
) -> Imported:
    """Read every row of ``source`` (a path or a URL), check it, and keep it.

    Tar and zip archives are unpacked; with ``revision``, a full commit id, ``source`` is a git repository.

    Raises:
        ManifestError: The source cannot be read, has another checksum, or rows cannot become tasks. Nothing is kept.
    """
    if _NAME.fullmatch(name) is None:
        raise ManifestError(f"{name!r} cannot name a benchmark; use lower-case letters, digits and '-'")
    adapter = load_adapter(adapter_name)
    if split not in adapter.splits:
        raise ManifestError(f"adapter {adapter_name!r} has no split {split!r}; it has {', '.join(adapter.splits)}")
    directory = _root() / name
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        file = fetch(source, revision, Path(scratch), progress)
        found = _digest(file)
        if sha256 is not None and found != sha256:
            raise ManifestError(
                f"{named(source, revision)}: its SHA-256 is {found}, not {sha256}; nothing was imported"
            )
        digest, count = _keep(_checked(adapter, unpacked(file, Path(scratch)), progress), directory, split)
    old = _read_index(directory / _INDEX)
    splits = old.splits if old is not None and old.adapter == adapter_name else {}
    new = _Split(source=named(source, revision), source_sha256=found, sha256=digest, rows=count)
    index = _Index(adapter=adapter_name, splits={**splits, split: new})
    (directory / _INDEX).write_bytes(msgspec.json.format(msgspec.json.encode(index)))
    return _entry(directory, index, split)


def _keep(rows: Iterator[Mapping[str, Any]], directory: Path, split: str) -> tuple[str, int]:
    """Write the rows once all of them are good; their SHA-256 and number."""
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=directory, suffix=".part") as part:
        digest, count = hashlib.sha256(), 0
        for row in rows:
            line = msgspec.json.encode(row) + b"\n"
            digest.update(line)
            part.write(line)
            count += 1
        part.flush()
        shutil.copyfile(part.name, directory / f"{split}.new")
    (directory / f"{split}.new").replace(directory / f"{split}.jsonl")
    (directory / f"{split}.health.json").unlink(missing_ok=True)
    return digest.hexdigest(), count


def _checked(adapter: Adapter, file: Path, progress: Progress) -> Iterator[Mapping[str, Any]]:
    """The rows, each of which can become a task.

    Raises:
        ManifestError: Some cannot; the first of them are named.
    """
    faults: list[str] = []
    seen: dict[str, int] = {}
    for number, row in enumerate(adapter.rows(file), start=1):
        instance = str(row.get(adapter.key) or "")
        where = f"row {number}" + (f" ({instance})" if instance else "")
        try:
            adapter.row(row, ImageNames())
            if instance in seen:
                raise RowError(f"{adapter.key} is that of row {seen[instance]}, too")
        except RowError as error:
            faults.append(f"{file}: {where}: {error}")
        seen.setdefault(instance, number)
        if number % 500 == 0:
            progress(f"{number:,} rows")
        yield row
    if not seen:
        raise ManifestError(f"{file}: holds no row")
    if faults:
        more = f"\n  and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else ""
        listed = "\n  ".join(faults[:_SHOWN])
        raise ManifestError(
            f"{len(faults)} of {len(seen)} rows cannot become tasks; nothing was imported\n  {listed}{more}"
        )


def _digest(source: Path) -> str:
    if not source.exists():
        raise ManifestError(f"{source}: there is no such file or directory")
    if source.is_file():
        with source.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()
    total = hashlib.sha256()
    for file in sorted(path for path in source.rglob("*") if path.is_file() and ".git" not in path.parts):
        total.update(f"{file.relative_to(source)}\0{hashlib.sha256(file.read_bytes()).hexdigest()}\0".encode())
    return total.hexdigest()


def _root() -> Path:
    return cache_directory() / "benchmarks"


def _read_index(file: Path) -> _Index | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=_Index)
    except (OSError, *DECODE_ERRORS):
        return None


def _entry(directory: Path, index: _Index, split: str) -> Imported:
    fields = msgspec.structs.asdict(index.splits[split])
    return Imported(name=directory.name, adapter=index.adapter, split=split, directory=directory, **fields)
