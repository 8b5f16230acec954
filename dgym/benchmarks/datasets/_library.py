"""Imported data sets: rows as JSON Lines in the cache directory, with their checksum.

Rows are fetched from a path, a URL, an archive, or a commit of a git repository. ``dgym benchmark health`` stores the
health of tasks next to the rows.
"""

import asyncio
import hashlib
import lzma
import re
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.client import HTTPException, InvalidURL
from pathlib import Path
from typing import Any, Literal

import msgspec

from dgym.api import TREATMENTS, GitSource, SourceSpec, Treatment
from dgym.benchmarks.datasets._adapter import Adapter, ImageNames, RowError, load_adapter
from dgym.decoding import DECODE_ERRORS
from dgym.errors import ManifestError, SourceFailed, nearest
from dgym.sandbox import cache_directory
from dgym.session.scoring import list_paths, unsteady_tests
from dgym.wire import EndReason
from dgym.workspace.sources import extract, pack_source, shown_url, unpack_archive

_INDEX = "index.json"
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?")
_SHOWN = 10
_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_CHUNK_BYTES = 1024 * 1024
_TIMEOUT_SECONDS = 60
Progress = Callable[[str], None]
State = Literal["Healthy", "Flaky", "Broken", "NotChecked"]
HEALTHY: Literal["Healthy"] = "Healthy"
NOT_CHECKED: Literal["NotChecked"] = "NotChecked"
STATES: tuple[State, ...] = ("Healthy", "Flaky", "Broken")
"""The states that are stored."""
_CAUSED_BY_TASK = frozenset(
    {
        EndReason.IMAGE_PULL_FAILED,
        EndReason.INVALID_SPEC,
        EndReason.SANDBOX_START_FAILED,
        EndReason.SETUP_FAILED,
        EndReason.SOURCE_FAILED,
        EndReason.VERIFIER_FAILED,
    }
)


class _Split(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    source: str
    source_sha256: str
    sha256: str
    rows: int


class _LibraryIndex(msgspec.Struct, frozen=True, kw_only=True):
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
        """The file with the rows, as JSON Lines."""
        return self.directory / f"{self.split}.jsonl"

    @property
    def health(self) -> Path:
        """The file with the findings of ``dgym benchmark health``."""
        return self.directory / f"{self.split}.health.json"

    def load(self) -> list[dict[str, Any]]:
        """Read all rows.

        Raises:
            ManifestError: The file has changed since the import, or is missing.
        """
        data = self.file.read_bytes() if self.file.is_file() else b""
        if hashlib.sha256(data).hexdigest() != self.sha256:
            raise ManifestError(f"{self.file}: differs from the imported file; import {self.name} again")
        return [msgspec.json.decode(line) for line in data.splitlines()]


def imported() -> list[Imported]:
    """All imported splits, sorted by name."""
    found = []
    for file in sorted(_root().glob(f"*/{_INDEX}")):
        index = _read_index(file)
        if index is not None:
            found += [_entry(file.parent, index, split) for split in sorted(index.splits)]
    return found


def open_imported(name: str, split: str | None = None) -> Imported:
    """The imported split of a benchmark. ``split`` may be None if only one split was imported.

    Raises:
        ManifestError: The benchmark or split was not imported, or there are several splits and ``split`` is None.
    """
    found = [one for one in imported() if one.name == name]
    if not found:
        known = sorted({one.name for one in imported()})
        guess = nearest(name, known)
        hint = f"did you mean {guess!r}? Otherwise " if guess else ""
        remedy = f"import it: dgym benchmark import {name} --from FILE"
        raise ManifestError(f"benchmark {name!r} was not imported; {hint}{remedy}")
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
    """Read and check all rows of ``source``, and store them.

    Args:
        name: The name of the benchmark.
        adapter_name: The name of the adapter.
        source: A path or a URL. Tar and zip archives are unpacked. With ``revision``, a git repository.
        split: The split that the rows belong to.
        sha256: The expected checksum, or None.
        revision: A full commit id, or None.
        progress: Called with messages about the progress.

    Raises:
        ManifestError: The source cannot be read, has another checksum, or contains rows that cannot be converted to
            tasks. Nothing has been stored.
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
    index = _LibraryIndex(adapter=adapter_name, splits={**splits, split: new})
    (directory / _INDEX).write_bytes(msgspec.json.format(msgspec.json.encode(index)))
    return _entry(directory, index, split)


def _keep(rows: Iterator[Mapping[str, Any]], directory: Path, split: str) -> tuple[str, int]:
    """Write the rows if all are valid. Returns their SHA-256 and their number."""
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
    """The rows. After the last row, an error is raised for all rows that cannot be converted to tasks.

    Raises:
        ManifestError: There are such rows, or none at all. The message lists the first ten.
    """
    faults: list[str] = []
    seen: dict[str, int] = {}
    for number, row in enumerate(adapter.rows(file), start=1):
        instance = str(row.get(adapter.key) or "")
        where = f"row {number}" + (f" ({instance})" if instance else "")
        try:
            adapter.row(row, ImageNames())
            if instance in seen:
                raise RowError(f"{adapter.key} is also in row {seen[instance]}")
        except RowError as error:
            faults.append(f"{file}: {where}: {error}")
        seen.setdefault(instance, number)
        if number % 500 == 0:
            progress(f"{number:,} rows")
        yield row
    if not seen:
        raise ManifestError(f"{file}: does not contain a row")
    if faults:
        more = f"\n  and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else ""
        listed = "\n  ".join(faults[:_SHOWN])
        raise ManifestError(
            f"{len(faults)} of {len(seen)} rows cannot become tasks; nothing was imported\n  {listed}{more}"
        )


def _digest(source: Path) -> str:
    if not source.exists():
        raise ManifestError(f"{source}: the file or directory does not exist")
    if source.is_file():
        with source.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()
    total = hashlib.sha256()
    for file in sorted(path for path in source.rglob("*") if path.is_file() and ".git" not in path.parts):
        total.update(f"{file.relative_to(source)}\0{hashlib.sha256(file.read_bytes()).hexdigest()}\0".encode())
    return total.hexdigest()


def _root() -> Path:
    return cache_directory() / "benchmarks"


def _read_index(file: Path) -> _LibraryIndex | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=_LibraryIndex)
    except (OSError, *DECODE_ERRORS):
        return None


def _entry(directory: Path, index: _LibraryIndex, split: str) -> Imported:
    fields = msgspec.structs.asdict(index.splits[split])
    return Imported(name=directory.name, adapter=index.adapter, split=split, directory=directory, **fields)


def fetch(source: str, revision: str | None, scratch: Path, progress: Progress) -> Path:
    """Fetch ``source`` and return the local file or directory. Files of a git repository are written below ``scratch``.

    Raises:
        ManifestError: The source cannot be fetched, or ``revision`` is not a full commit id.
    """
    try:
        if revision is not None:
            return _checked_out(source, revision, scratch / "repository", progress)
        return _downloaded(source, progress) if "://" in source else Path(source)
    except SourceFailed as error:
        raise ManifestError(str(error)) from None


def named(source: str, revision: str | None) -> str:
    """The name of the source for people: without password, with its commit."""
    shown = shown_url(source) if "://" in source else source
    return shown if revision is None else f"{shown}@{revision}"


def unpacked(file: Path, scratch: Path) -> Path:
    """Unpack an archive below ``scratch`` and return the directory. Returns ``file`` if it is not an archive.

    Raises:
        ManifestError: The archive cannot be unpacked.
    """
    if not _is_archive(file):
        return file
    directory = scratch / "archive"
    directory.mkdir()
    try:
        unpack_archive(file, directory)
    except SourceFailed as error:
        raise ManifestError(str(error)) from None
    return directory


def _is_archive(file: Path) -> bool:
    try:
        return file.is_file() and (zipfile.is_zipfile(file) or tarfile.is_tarfile(file))
    except (EOFError, OSError, zlib.error, lzma.LZMAError):
        return True  # A damaged compressed file. Unpacking it raises an error with the position.


def _checked_out(url: str, revision: str, directory: Path, progress: Progress) -> Path:
    if _COMMIT.fullmatch(revision) is None:
        raise ManifestError(f"--revision {revision}: give a full commit id, because the commit of a name may change")
    progress(f"commit {revision[:12]} of {shown_url(url)}")
    git = SourceSpec(git=GitSource(url=url, revision=revision))
    packed = asyncio.run(pack_source(git, base=Path.cwd(), cache=cache_directory() / "sources"))
    directory.mkdir()
    extract(packed, directory)
    return directory


def _downloaded(url: str, progress: Progress) -> Path:
    """Download ``url`` to the cache and return the file. An interrupted download is continued."""
    shown = shown_url(url)
    if not url.startswith(("https://", "http://")):
        raise ManifestError(f"{shown}: only http and https addresses are fetched")
    target = cache_directory() / "downloads" / hashlib.sha256(url.encode()).hexdigest()
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_suffix(".part")
    start = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={start}-"} if start else {})  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:  # noqa: S310 - checked above
            resumed = answer.status == 206
            length = answer.headers.get("Content-Length")
            total = int(length) + (start if resumed else 0) if length else None
            with part.open("ab" if resumed else "wb") as file:
                while data := answer.read(_CHUNK_BYTES):
                    file.write(data)
                    progress(f"{file.tell() / 1e6:,.0f} MB of {total / 1e6:,.0f}" if total else f"{file.tell()} bytes")
    except urllib.error.HTTPError as error:
        if error.code != 416:
            raise ManifestError(f"{shown}: the server answers {error.code} {error.reason}") from None
        total = start
    except (ValueError, InvalidURL) as error:
        raise ManifestError(f"{shown}: the URL, or the URL of a redirect, is not valid: {error}") from None
    except (OSError, HTTPException) as error:
        raise ManifestError(f"{shown}: {error}; the same command continues where this command stopped") from None
    if total is not None and part.stat().st_size != total:
        raise ManifestError(
            f"{shown}: ended after {part.stat().st_size} of {total} bytes; the same command continues there"
        )
    return part.replace(target)


class TaskHealth(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The health of one task.

    - ``Healthy``: none of the problems below;
    - ``Flaky``: equal runs have different results;
    - ``Broken``: the gold patch fails, an empty patch passes, or the task cannot run;
    - ``NotChecked``: runs failed for a reason that the task did not cause, such as a lost node.
    """

    instance: str
    state: State
    message: str = ""


class HealthRun(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one episode with the empty or the gold patch. ``tests`` are the outcomes of the scored tests."""

    reason: str
    resolved: bool = False
    score: int = 0
    tests: Mapping[str, str] = msgspec.field(default_factory=dict)
    message: str = ""


def assess_health(instance: str, empty: Sequence[HealthRun], gold: Sequence[HealthRun]) -> TaskHealth:
    """Determine the health of a task from its runs. ``gold`` is empty if the task has no gold patch."""
    for run in (*gold, *empty):
        if run.reason in _CAUSED_BY_TASK:
            return TaskHealth(instance=instance, state="Broken", message=f"{run.reason}: {run.message}")
    for run in (*gold, *empty):
        if run.reason == EndReason.CANCELLED or TREATMENTS.get(run.reason) is not Treatment.COUNTED:
            return TaskHealth(instance=instance, state=NOT_CHECKED, message=f"{run.reason}: {run.message}")
    if not empty:
        return TaskHealth(instance=instance, state=NOT_CHECKED, message="no episode was run")
    problems = ["the untouched repository passes"] if all(run.resolved for run in empty) else []
    flaky = _flaky("the untouched repository", empty) + _flaky("the solution", gold)
    if gold and not any(run.resolved for run in gold):
        problems.append(f"the solution does not resolve it: {gold[0].message}")
    if problems:
        return TaskHealth(instance=instance, state="Broken", message="; ".join([*problems, *flaky]))
    return TaskHealth(instance=instance, state="Flaky" if flaky else HEALTHY, message="; ".join(flaky))


def _flaky(what: str, runs: Sequence[HealthRun]) -> list[str]:
    tests = unsteady_tests([run.tests for run in runs])
    if tests:
        return [f"equal runs of {what} differ in {list_paths(tests)}"]
    if len({(run.resolved, run.score) for run in runs}) > 1:
        return [f"equal runs of {what} end differently: {'; '.join(run.message for run in runs)}"]
    return []


def read_health(file: Path) -> dict[str, TaskHealth]:
    """The stored health by instance, or an empty dict."""
    try:
        found = msgspec.json.decode(file.read_bytes(), type=list[TaskHealth])
    except (OSError, *DECODE_ERRORS):
        return {}
    return {one.instance: one for one in found}


def add_health(file: Path, found: Sequence[TaskHealth]) -> None:
    """Store the health of these tasks and replace their earlier entries. ``NotChecked`` removes an entry."""
    known = read_health(file) | {one.instance: one for one in found}
    kept = [known[name] for name in sorted(known) if known[name].state != NOT_CHECKED]
    temporary = file.with_suffix(".new")
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(kept)))
    temporary.replace(file)
