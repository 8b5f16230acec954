"""The interface of adapters: the base class, the ``Row`` that an adapter returns, and the lookup of adapters.

Rows are read from files (JSON Lines, a JSON list, parquet), selected by their ids or fields, and converted to
DebugTasks and an EpisodeSet. Files of a row can be taken from a local git repository instead of the row's image.
"""

import importlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from dgym.api import (
    BENCHMARK_LABEL,
    DEFAULT_ENTRYPOINT,
    DIFFICULTY_LABEL,
    LEFT_OUT_ANNOTATION,
    REPOSITORY_LABEL,
    AgentSpec,
    DebugTask,
    DebugTaskSpec,
    EpisodeSet,
    EpisodeSetSpec,
    EpisodeSpec,
    Evaluation,
    InlineFile,
    LabelSelector,
    ObjectMeta,
    Scoring,
    SourceSpec,
    TaskRef,
    check_rules,
)
from dgym.errors import DgymError, ManifestError, PluginError, nearest, render_path
from dgym.lazy import installed
from dgym.untrusted import read_regular

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
        raise RowError(f"the template of images has {name!r}; the placeholders are {', '.join(sorted(values))}")
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


def adapter_names() -> list[str]:
    """The names of the installed adapters, sorted."""
    return sorted(installed(GROUP))


def load_adapter(name: str) -> Adapter:
    """The adapter with this name.

    Raises:
        ManifestError: The adapter is not installed.
        PluginError: The adapter cannot be loaded.
    """
    entry = installed(GROUP).get(name)
    if entry is None:
        guess = nearest(name, installed(GROUP))
        hint = f"did you mean {guess!r}?" if guess else f"the adapters are: {', '.join(adapter_names())}"
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
        raise ManifestError(f"{source}: not complete parquet: {error}") from None


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
            hint = (
                f"did you mean {guess!r}?"
                if guess
                else f"the benchmark has {len(identifiers)} instances, such as {identifiers[0]!r}"
            )
            raise ManifestError(f"--filter {text}: instance {one!r} does not exist; {hint}")
    return [row for row in found if any(fnmatchcase(str(row[key]), one) for one in wanted)]


INSTANCE_ANNOTATION = "dgym.dev/instance"
SPLIT_LABEL = "dgym.dev/split"
NO_FUTURE = """\
command -v git >/dev/null || rm -rf .git; [ -e .git ] || exit 0
g() { git -c safe.directory='*' -c core.hooksPath=/dev/null -c gc.reflogExpire=now "$@"; }
g checkout -q --detach && g remote | xargs -rn1 git -c safe.directory='*' remote remove
g for-each-ref --no-merged HEAD --format='delete %(refname)' | g update-ref --stdin
rm -rf .git/FETCH_HEAD .git/ORIG_HEAD .git/MERGE_HEAD .git/logs/refs/stash
g reflog expire --expire=now --expire-unreachable=now --all && g gc -q --prune=now"""
"""Removes the commits from the history of a repository that are not ancestors of its current commit."""
Checkout = Callable[[Row], str]
"""Returns a local path with the files of a row's repository at its revision."""
_REVISION = re.compile(r"[0-9a-f]{7,64}(\^|~[0-9]{1,4})?")
_SHA256_DIGITS = 64
_SECONDS = 600


def make_tasks(name: str, split: str, rows: Sequence[Row], checkout: Checkout | None = None) -> list[DebugTask]:
    """A task for each row, in the same order. With ``checkout`` the files come from a checkout and not from an image.

    Raises:
        ManifestError: A row does not give a valid task, or two tasks have the same name.
    """
    tasks: dict[str, DebugTask] = {}
    for row in rows:
        task = _make_task(name, split, row, checkout)
        problems = check_rules(task)
        if problems:
            what = "; ".join(f"{render_path(problem.path)} {problem.message}" for problem in problems[:3])
            raise ManifestError(f"instance {row.instance}: {what}")
        if task.metadata.name in tasks:
            raise ManifestError(f"instance {row.instance}: another instance becomes {task.metadata.name}, too")
        tasks[task.metadata.name] = task
    return list(tasks.values())


def make_set(
    name: str,
    split: str,
    tasks: Sequence[DebugTask],
    *,
    whole: bool,
    agent: AgentSpec | None,
    samples: int,
    left_out: Mapping[str, int],
) -> EpisodeSet:
    """An EpisodeSet of the tasks.

    Args:
        name: The name of the benchmark.
        split: The name of the split.
        tasks: The tasks.
        whole: Whether the tasks are the whole split. Then the set selects them by label, otherwise by name.
        agent: The agent, or None.
        samples: The number of samples of each task.
        left_out: The number of selected tasks that are not in ``tasks``, by health. It becomes an annotation, which
            reports show.
    """
    labels = {BENCHMARK_LABEL: name, SPLIT_LABEL: split}
    chosen = EpisodeSetSpec(
        task_selector=LabelSelector(match_labels=labels) if whole else None,
        tasks=() if whole else tuple(TaskRef(name=task.metadata.name) for task in tasks),
        samples=samples,
        template=EpisodeSpec(agent=agent),
    )
    annotations = {LEFT_OUT_ANNOTATION: msgspec.json.encode(left_out).decode()} if left_out else {}
    metadata = ObjectMeta(name=f"{name}-{split}"[:40].rstrip("-"), labels=labels, annotations=annotations)
    return EpisodeSet(metadata=metadata, spec=chosen)


def _make_task(name: str, split: str, row: Row, checkout: Checkout | None) -> DebugTask:
    labels = {
        BENCHMARK_LABEL: name,
        SPLIT_LABEL: split,
        REPOSITORY_LABEL: _label(row.repository),
        DIFFICULTY_LABEL: _label(row.difficulty),
    }
    source, setup = None, row.setup_commands
    if row.files:
        source = SourceSpec(files=row.files)
    elif checkout is not None:
        source = SourceSpec(local_path=checkout(row))
    else:
        setup = (*setup, NO_FUTURE)
    return DebugTask(
        metadata=ObjectMeta(
            name=_name(row.instance),
            labels={key: value for key, value in labels.items() if value},
            annotations={INSTANCE_ANNOTATION: row.instance},
        ),
        spec=DebugTaskSpec(
            image=None if checkout is not None else row.image,
            working_directory=row.working_directory,
            source=source,
            setup_commands=setup,
            activate=None if checkout is not None else row.activate,
            entrypoint=row.entrypoint,
            entrypoint_timeout_seconds=row.timeout_seconds,
            instructions=row.instructions,
            read_only_patterns=row.read_only_patterns,
            scoring=Scoring(
                fail_to_pass=row.fail_to_pass,
                pass_to_pass=row.pass_to_pass,
                hidden_files=row.hidden_files,
                test_patch=row.test_patch or None,
                evaluation=row.evaluation,
            ),
            solution=row.solution or None,
        ),
    )


def _name(instance: str) -> str:
    name = re.sub(r"[^a-z0-9]+", "-", instance.lower()).strip("-")[:200].rstrip("-")
    if not name:
        raise ManifestError(f"instance {instance!r}: a name needs letters or digits")
    return name


def _label(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", text)[:63].strip("_.-")


class Checkouts:
    """Exports commits of the repositories below ``repositories`` to ``target``, without history.

    The repository ``owner/name`` of a row is in the directory ``owner/name``, ``owner__name`` or ``name``. An existing
    export is reused.
    """

    def __init__(self, repositories: Path, target: Path) -> None:
        self._repositories = repositories
        self._target = target

    def __call__(self, row: Row) -> str:
        """Export the row's revision and return the directory with its files.

        Raises:
            ManifestError: The repository or the commit does not exist.
        """
        if not _REVISION.fullmatch(row.revision):
            raise ManifestError(f"instance {row.instance}: {row.revision!r} is not the hash of a commit")
        repository = self._find(row)
        commit, *before = re.split(r"[\^~]", row.revision)
        destination = self._target / "-".join((row.repository.replace("/", "__"), commit[:12], *before))
        if not destination.is_dir():
            destination.parent.mkdir(parents=True, exist_ok=True)
            building = Path(tempfile.mkdtemp(dir=destination.parent.absolute()))
            try:
                self._export(repository, row, building)
                building.rename(destination)
            finally:
                shutil.rmtree(building, ignore_errors=True)
        return str(destination)

    def _find(self, row: Row) -> Path:
        owner_and_name = row.repository
        names = (owner_and_name, owner_and_name.replace("/", "__"), owner_and_name.rpartition("/")[2])
        for name in names:
            if name and (self._repositories / name).is_dir():
                return self._repositories / name
        raise ManifestError(
            f"instance {row.instance}: {self._repositories} does not contain repository {owner_and_name!r}; clone it "
            f"there as {names[1]!r}"
        )

    def _export(self, repository: Path, row: Row, building: Path) -> None:
        try:
            self._check_out(_objects(repository), row.revision, building)
        except (OSError, subprocess.SubprocessError) as error:
            lines = error.stderr.strip().splitlines() if isinstance(error, subprocess.CalledProcessError) else []
            why = lines[-1] if lines else error
            raise ManifestError(f"instance {row.instance}: {repository}: commit {row.revision}: {why}") from None
        building.chmod(0o755)

    @staticmethod
    def _check_out(objects: Path, revision: str, building: Path) -> None:
        """Write the files of a commit to ``building``.

        A temporary repository uses the object directory of the source repository. Git must not read the configuration
        and hooks of the source repository, because they can contain programs, such as filters, that git would run.
        """
        with tempfile.TemporaryDirectory() as ours:
            form = "sha256" if len(revision.partition("^")[0].partition("~")[0]) == _SHA256_DIGITS else "sha1"
            commands = (
                ["init", "-q", "--bare", "--template=", f"--object-format={form}"],
                [f"--work-tree={building}", "read-tree", revision],
                [f"--work-tree={building}", "checkout-index", "--all", f"--prefix={building}/"],
            )
            environment = {
                "PATH": os.environ.get("PATH", os.defpath),
                "HOME": ours,
                "LC_ALL": "C.UTF-8",
                "GIT_CONFIG_NOSYSTEM": "1",
                "GIT_CONFIG_GLOBAL": os.devnull,
                "GIT_DIR": ours,
                "GIT_ALTERNATE_OBJECT_DIRECTORIES": f'"{_escaped(objects)}"',
            }
            for command in commands:
                subprocess.run(
                    ["git", *command],
                    cwd=building,
                    env=environment,
                    capture_output=True,
                    text=True,
                    errors="replace",
                    timeout=_SECONDS,
                    check=True,
                )


def _escaped(path: Path) -> str:
    return str(path).replace("\\", "\\\\").replace('"', '\\"')


def _objects(repository: Path) -> Path:
    """The object directory of a repository. It may be bare, have a work tree, or be a linked work tree.

    Raises:
        OSError: The repository cannot be read.
    """
    place = repository.resolve() / ".git"
    if not place.exists():
        return repository.resolve() / "objects"
    if place.is_dir():
        return place / "objects"
    directory = place.parent / os.fsdecode(read_regular(place).removeprefix(b"gitdir:").strip())
    common = directory / "commondir"
    return (directory / os.fsdecode(read_regular(common).strip()) if common.exists() else directory) / "objects"
