"""Reads Episodes and their tasks in full from the API server, when they are needed: a task may have 200 kB.

What is wrong with them is reported by one of the API's reasons, for the user of the Episode.
"""

from collections.abc import Iterator
from typing import TypeVar

import msgspec

from dgym.api import ConfigMapSource, DebugTask, Episode, InlineFile, ObjectMeta, SourceSpec
from dgym.api.rules import check_rules
from dgym.kube import CONFIG_MAPS, DEBUG_TASKS, EPISODES, Client, NotFound
from dgym.problems import render_path
from dgym.wire.messages import EndReason
from dgym_operator.objects import EpisodeView

K = TypeVar("K", Episode, DebugTask)


class Unmet(Exception):
    """A requirement of an attempt is missing or wrong. ``reason`` is one of the API's, the message is for its user.

    ``passes``: the cause passes by itself; the next try follows after ``retry_after`` seconds at the soonest.
    """

    def __init__(self, reason: EndReason, message: str, passes: bool = False, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.passes = passes
        self.retry_after = retry_after


class SourceMissing(Exception):
    """The ConfigMap lacks a key of the task's source, or is empty."""


class ConfigMapContent(msgspec.Struct, frozen=True, rename="camel"):
    """A ConfigMap's contents; binary values are base64 already."""

    data: dict[str, str] = {}
    binary_data: dict[str, str] = {}


class ApiReader:
    """Reads from the API server, never from the cache."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def episode(self, namespace: str, name: str) -> tuple[EpisodeView, Episode]:
        """The Episode, as a view for decisions and in full.

        Raises:
            NotFound: It is gone.
            Unmet: It breaks rules that its definition in the cluster does not have.
        """
        data = await self._client.get(EPISODES, name, decode=bytes, namespace=namespace)
        return msgspec.json.decode(data, type=EpisodeView), _checked(data, Episode)

    async def task(self, episode: Episode) -> DebugTask:
        """The Episode's task, inline or referred to.

        Raises:
            Unmet: There is none, or it breaks rules.
        """
        task = inline_task(episode)
        if task is None:
            task = await self._referred(episode)
        source = task.spec.source
        if source is not None and source.local_path is not None:
            problem = (
                "spec.source.localPath works in local runs only; use files, configMapRef, git, archive or an image"
            )
            raise Unmet(EndReason.INVALID_SPEC, f"task {task.metadata.name}: {problem}")
        return task

    async def with_files(self, task: DebugTask) -> DebugTask:
        """The task with the files of its ConfigMap, if it names one.

        Raises:
            Unmet: The ConfigMap, or a key in it, is not there.
        """
        source = config_map_source(task)
        if source is None:
            return task
        try:
            content = await self._client.get(
                CONFIG_MAPS, source.name, decode=ConfigMapContent, namespace=task.metadata.namespace
            )
            return with_files(task, source, content)
        except NotFound:
            keys = ", ".join(item.key for item in source.items) or "files"
            problem = f"there is no ConfigMap {source.name} in its namespace to take {keys} from"
            raise Unmet(EndReason.TASK_NOT_FOUND, f"task {task.metadata.name}: {problem}") from None
        except SourceMissing as error:
            raise Unmet(EndReason.SOURCE_FAILED, f"task {task.metadata.name}: {error}") from None

    async def _referred(self, episode: Episode) -> DebugTask:
        namespace = episode.metadata.namespace
        if episode.spec.task_ref is None:
            raise Unmet(EndReason.INVALID_SPEC, "spec.taskRef: is missing; give exactly one of taskRef and task")
        name = episode.spec.task_ref.name
        try:
            data = await self._client.get(DEBUG_TASKS, name, decode=bytes, namespace=namespace)
        except NotFound:
            raise Unmet(EndReason.TASK_NOT_FOUND, f"there is no DebugTask {name} in namespace {namespace}") from None
        return _checked(data, DebugTask)


def _checked(data: bytes, kind: type[K]) -> K:
    try:
        resource = msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise Unmet(EndReason.INVALID_SPEC, f"{kind.__name__}: {error}") from None
    problems = check_rules(resource)
    if problems:
        first = problems[0]
        where = f"{kind.__name__} {resource.metadata.name}: {render_path(first.path)}"
        raise Unmet(EndReason.INVALID_SPEC, f"{where}: {first.message}")
    return resource


def inline_task(episode: Episode) -> DebugTask | None:
    """The Episode's inline task, named like the Episode; None: it refers to a DebugTask."""
    if episode.spec.task is None:
        return None
    metadata = ObjectMeta(name=episode.metadata.name, namespace=episode.metadata.namespace)
    return DebugTask(metadata=metadata, spec=episode.spec.task)


def config_map_source(task: DebugTask) -> ConfigMapSource | None:
    """The task's ConfigMap source; None: it has another source."""
    return task.spec.source.config_map_ref if task.spec.source is not None else None


def with_files(task: DebugTask, source: ConfigMapSource, content: ConfigMapContent) -> DebugTask:
    """The task with the ConfigMap's contents in its place: agents cannot ask the API server.

    Raises:
        SourceMissing: a key is not there, or there is none at all.
    """
    files = tuple(_files(source, content))
    if not files:
        raise SourceMissing(f"ConfigMap {source.name} is empty")
    return msgspec.structs.replace(task, spec=msgspec.structs.replace(task.spec, source=SourceSpec(files=files)))


def _files(source: ConfigMapSource, content: ConfigMapContent) -> Iterator[InlineFile]:
    everything = sorted({**content.data, **content.binary_data})
    wanted = [(item.path, item.key) for item in source.items] or [(key, key) for key in everything]
    for path, key in wanted:
        if key in content.data:
            yield InlineFile(path=path, content=content.data[key])
        elif key in content.binary_data:
            yield InlineFile(path=path, content_base64=content.binary_data[key])
        else:
            raise SourceMissing(f"ConfigMap {source.name} has no key {key!r}")
