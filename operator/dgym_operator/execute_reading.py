"""Episodes and their tasks in full, read at the moment they are needed and not kept: a task may have 200 kB.

What is wrong with them is one of the reasons of the API, so that whoever reads can show it to the user.
"""

from typing import TypeVar

import msgspec

from dgym.api import DebugTask, Episode
from dgym.api.problems import render_path
from dgym.api.rules import check_rules
from dgym.kube import CONFIG_MAPS, DEBUG_TASKS, EPISODES, Client, NotFound
from dgym.wire.messages import EndReason
from dgym_operator.agents_assignment import (
    ConfigMapContent,
    SourceMissing,
    config_map_source,
    inline_task,
    with_files,
)
from dgym_operator.reconcile.views import EpisodeView

K = TypeVar("K", Episode, DebugTask)


class Unmet(Exception):
    """What an attempt needs is not there or not right. ``reason`` is one of the API's, the text is for its user.

    ``passes``: the cause passes by itself; it is tried again after ``retry_after`` seconds at the soonest.
    """

    def __init__(self, reason: EndReason, message: str, passes: bool = False, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.passes = passes
        self.retry_after = retry_after


class Reader:
    """Reads from the API server itself, never from a cache."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def episode(self, namespace: str, name: str) -> tuple[EpisodeView, Episode]:
        """The Episode, as decisions see it and in full.

        Raises:
            NotFound: It is gone.
            Unmet: It breaks rules that its definition in the cluster does not have.
        """
        data = await self._client.get(EPISODES, name, decode=bytes, namespace=namespace)
        return msgspec.json.decode(data, type=EpisodeView), _checked(data, Episode)

    async def task(self, episode: Episode) -> DebugTask:
        """The Episode's task, its own or the one it refers to.

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
