"""The bundled tasks. Their repositories become inline files, so that a task runs in a cluster as well."""

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

_HERE = Path(__file__).parent
_TASK = "task.yaml"
_WALKTHROUGH = "walkthrough.jsonl"


def bundled() -> list[str]:
    """The names of all benchmarks."""
    return sorted({file.parents[1].name for file in _HERE.glob(f"*/*/{_TASK}")})


def load_bundled(name: str) -> list[DebugTask]:
    """The tasks of a benchmark in the order of their names, each with its repository inline.

    Raises:
        ManifestError: There is no benchmark of that name.
    """
    return list(_load(name))


def episode_set(name: str) -> EpisodeSet:
    """One episode for each task of a benchmark, replaying the walkthroughs unless another agent is chosen.

    Raises:
        ManifestError: There is no benchmark of that name.
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
    """The recorded calls that solve a bundled task, by the task's name.

    Raises:
        ManifestError: There is no bundled task of that name.
    """
    folder = task.replace("-", "_")
    for file in _HERE.glob(f"*/*/{_WALKTHROUGH}"):
        if file.parent.name == folder:
            lines = file.read_text("utf-8").splitlines()
            return [msgspec.json.decode(line, type=ToolCall) for line in lines if line.strip()]
    raise ManifestError(f"no bundled task is named '{task}'; benchmarks are {', '.join(bundled())}")


@cache
def _load(name: str) -> tuple[DebugTask, ...]:
    if name not in bundled():
        raise ManifestError(f"no benchmark is named '{name}'; there are {', '.join(bundled())}")
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
    """Every file except bytecode and caches, which a test run in place leaves behind."""
    for file in sorted(repository.rglob("*")):
        path = file.relative_to(repository)
        if not file.is_file() or {"__pycache__", ".pytest_cache"} & set(path.parts):
            continue
        data = file.read_bytes()
        try:
            yield InlineFile(path=path.as_posix(), content=data.decode("utf-8"))
        except UnicodeDecodeError:
            yield InlineFile(path=path.as_posix(), content_base64=base64.b64encode(data).decode("ascii"))
