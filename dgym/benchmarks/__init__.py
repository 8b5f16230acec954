"""Benchmarks that are bundled with dgym: tasks, a walkthrough for each task, and an EpisodeSet of all tasks.

A benchmark is a subpackage with a directory for each task. The directory contains ``task.yaml`` (a DebugTask whose
source is the directory ``repository`` next to it) and ``walkthrough.jsonl`` (the calls of a solution, one on each
line).
"""

import base64
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import msgspec

from dgym.api import (
    AgentSpec,
    DebugTask,
    EpisodeSet,
    EpisodeSetSpec,
    EpisodeSpec,
    InlineFile,
    ObjectMeta,
    SourceSpec,
    TaskRef,
)
from dgym.errors import ManifestError
from dgym.wire import ToolCall

__all__ = ["bundled", "bundled_tasks", "episode_set", "load_bundled", "walkthrough"]
_HERE = Path(__file__).parent
_TASK = "task.yaml"
_WALKTHROUGH = "walkthrough.jsonl"


def bundled() -> list[str]:
    """The names of all bundled benchmarks, sorted."""
    return sorted({file.parents[1].name for file in _HERE.glob(f"*/*/{_TASK}")})


def load_bundled(name: str) -> list[DebugTask]:
    """The tasks of a benchmark, sorted by directory name, with their repositories as inline files.

    Raises:
        ManifestError: The benchmark does not exist.
    """
    return list(_load(name))


def bundled_tasks() -> list[DebugTask]:
    """The tasks of all benchmarks."""
    return [task for name in bundled() for task in _load(name)]


def episode_set(name: str) -> EpisodeSet:
    """An EpisodeSet with one episode for each task of a benchmark. Its agent replays the walkthroughs.

    Raises:
        ManifestError: The benchmark does not exist.
    """
    agent = AgentSpec(name="replay", parameters={"trajectory": f"package:{__package__}.{name}"})
    return EpisodeSet(
        metadata=ObjectMeta(name=name.replace("_", "-")),
        spec=EpisodeSetSpec(
            tasks=tuple(TaskRef(name=task.metadata.name) for task in load_bundled(name)),
            template=EpisodeSpec(agent=agent),
        ),
    )


def walkthrough(task: str) -> list[ToolCall]:
    """The recorded calls that solve the bundled task ``task``.

    Raises:
        ManifestError: The task does not exist.
    """
    folder = task.replace("-", "_")
    for file in _HERE.glob(f"*/*/{_WALKTHROUGH}"):
        if file.parent.name == folder:
            lines = file.read_text("utf-8").splitlines()
            return [msgspec.json.decode(line, type=ToolCall) for line in lines if line.strip()]
    raise ManifestError(f"no bundled task is named '{task}'; the benchmarks are {', '.join(bundled())}")


@cache
def _load(name: str) -> tuple[DebugTask, ...]:
    if name not in bundled():
        raise ManifestError(f"no benchmark is named '{name}'; the benchmarks are {', '.join(bundled())}")
    return tuple(_load_task(file) for file in sorted((_HERE / name).glob(f"*/{_TASK}")))


def _load_task(file: Path) -> DebugTask:
    from dgym.api import load

    (task,) = load(file)
    assert isinstance(task, DebugTask)
    assert task.spec.source is not None
    assert task.spec.source.local_path is not None
    source = SourceSpec(files=tuple(_inline(Path(task.spec.source.local_path))))
    return msgspec.structs.replace(task, spec=msgspec.structs.replace(task.spec, source=source))


def _inline(repository: Path) -> Iterator[InlineFile]:
    """All files except bytecode and caches, which a test run in the directory creates."""
    for file in sorted(repository.rglob("*")):
        path = file.relative_to(repository)
        if not file.is_file() or {"__pycache__", ".pytest_cache"} & set(path.parts):
            continue
        data = file.read_bytes()
        try:
            yield InlineFile(path=path.as_posix(), content=data.decode("utf-8"))
        except UnicodeDecodeError:
            yield InlineFile(path=path.as_posix(), content_base64=base64.b64encode(data).decode("ascii"))
