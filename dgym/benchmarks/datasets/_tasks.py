"""Convert rows to DebugTasks, and tasks to an EpisodeSet.

Files of a row can be taken from a local git repository instead of the row's image.
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from dgym.api import (
    BENCHMARK_LABEL,
    DIFFICULTY_LABEL,
    LEFT_OUT_ANNOTATION,
    REPOSITORY_LABEL,
    AgentSpec,
    DebugTask,
    DebugTaskSpec,
    EpisodeSet,
    EpisodeSetSpec,
    EpisodeSpec,
    LabelSelector,
    ObjectMeta,
    Scoring,
    SourceSpec,
    TaskRef,
    check_rules,
)
from dgym.benchmarks.datasets._adapter import Row
from dgym.errors import ManifestError, render_path
from dgym.untrusted import read_regular

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
            f"instance {row.instance}: {self._repositories} holds no repository {owner_and_name!r}; clone it there as"
            f" {names[1]!r}"
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
