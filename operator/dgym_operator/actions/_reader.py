"""Reads complete Episodes and tasks for pods and assignments, from the cache if it is as current as a request.

The cache may be behind a status that a former leader has written, as long as such a write can still arrive. Every write
of status is conditional on the previous version. So once this leader has created an Episode or written its status, late
writes of a former leader are refused, and the cache is as current as a request. Before that, the Episode is read from
the API server.

Tasks may have 200 kB. The last tasks are kept completely. They stay valid because a task does not change under its UID.
"""

from collections import OrderedDict
from typing import TypeVar

import msgspec

from dgym.api import (
    ConfigMapSource,
    DebugTask,
    Episode,
    EpisodeSpec,
    InlineFile,
    ObjectMeta,
    SourceSpec,
    ToolSpec,
    check_rules,
)
from dgym.errors import render_path
from dgym.kube import CONFIG_MAPS, DEBUG_TASKS, EPISODES, Client, NotFound
from dgym.wire import EndReason
from dgym_operator.cache import Cache
from dgym_operator.objects import EpisodeView

K = TypeVar("K", Episode, DebugTask)
_KEPT_BYTES = 32 * 1024**2
"""Total size of the kept tasks, in the encoding of the API server."""


class Unmet(Exception):
    """A requirement of an attempt is missing or invalid.

    Attributes:
        reason: The reason in the API.
        message: The cause, for users.
        is_temporary: True if the cause is temporary.
        retry_after: Minimum seconds until the next try. None: not known.
    """

    def __init__(
        self, reason: EndReason, message: str, is_temporary: bool = False, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.is_temporary = is_temporary
        self.retry_after = retry_after


class ConfigMapContent(msgspec.Struct, frozen=True, rename="camel"):
    """The contents of a ConfigMap. Binary values are encoded in base64."""

    data: dict[str, str] = {}
    binary_data: dict[str, str] = {}


class ApiReader:
    """Reads objects that the cache contains only in part or not reliably."""

    def __init__(self, client: Client, cache: Cache, *, with_annotations: bool = False) -> None:
        self._client = client
        self._with_annotations = with_annotations
        """True if annotations of Episodes are needed. Views in the cache do not contain them."""
        self._cache = cache
        self._tasks = KeptTasks(_KEPT_BYTES)

    async def episode(self, view: EpisodeView) -> tuple[EpisodeView, Episode]:
        """Return the current Episode with this name, as a view for decisions and completely.

        Raises:
            NotFound: It is gone.
            Unmet: It violates rules that the CRD does not check.
        """
        metadata = view.metadata
        current = self._cache.episodes.get(view.key)
        if not self._with_annotations and current is not None and self._cache.memory.has_written(current.metadata.uid):
            full = self._from_view(current)
            if full is not None:
                return current, full
        data = await self._client.get(EPISODES, metadata.name, decode=bytes, namespace=metadata.namespace)
        read, full = msgspec.json.decode(data, type=EpisodeView), _checked(data, Episode)
        task = inline_task(full)
        if task is not None:
            self._tasks.put(read.metadata.uid, task, len(data))
        return read, full

    def _from_view(self, view: EpisodeView) -> Episode | None:
        """Return the complete Episode of a view, or None if its inline task is no longer kept."""
        spec, metadata = view.spec, view.metadata
        task = self._tasks.get(metadata.uid) if spec.task is not None else None
        if spec.task is not None and task is None:
            return None
        shared = {name: getattr(spec, name) for name in EpisodeSpec.__struct_fields__ if name not in ("task", "tools")}
        full = Episode(
            metadata=ObjectMeta(
                name=metadata.name, namespace=metadata.namespace, uid=metadata.uid, labels=metadata.labels
            ),
            spec=EpisodeSpec(**shared, task=task.spec if task is not None else None, tools=_tools(view)),
        )
        return _without_problems(full)

    async def task(self, episode: Episode) -> DebugTask:
        """Return the Episode's task, which is inline or referenced.

        Raises:
            Unmet: The task does not exist or violates rules.
        """
        task = inline_task(episode)
        if task is None:
            task = await self._referred(episode)
        source = task.spec.source
        if source is not None and source.local_path is not None:
            local = "spec.source.localPath works in local runs only; use files, configMapRef, git, archive or an image"
            raise Unmet(EndReason.INVALID_SPEC, f"task {task.metadata.name}: {local}")
        if problem := task.spec.image_problem():
            raise Unmet(EndReason.INVALID_SPEC, f"task {task.metadata.name}: spec.{problem}")
        return task

    async def with_files(self, task: DebugTask) -> DebugTask:
        """Return the task with the files of its ConfigMap, if its source is a ConfigMap.

        Raises:
            Unmet: The ConfigMap or a key in it does not exist.
        """
        source = config_map_source(task)
        if source is None:
            return task
        try:
            content = await self._client.get(
                CONFIG_MAPS, source.name, decode=ConfigMapContent, namespace=task.metadata.namespace
            )
        except NotFound:
            keys = ", ".join(item.key for item in source.items) or "files"
            problem = f"ConfigMap {source.name}, the source of {keys}, does not exist in its namespace"
            raise Unmet(EndReason.TASK_NOT_FOUND, f"task {task.metadata.name}: {problem}") from None
        return with_files(task, source, content)

    async def _referred(self, episode: Episode) -> DebugTask:
        namespace = episode.metadata.namespace or ""
        if episode.spec.task_ref is None:
            raise Unmet(EndReason.INVALID_SPEC, "spec.taskRef: is missing; give exactly one of taskRef and task")
        name = episode.spec.task_ref.name
        shown = self._cache.tasks.get((namespace, name))
        kept = self._tasks.get(shown.metadata.uid) if shown is not None else None
        if kept is not None:
            return kept
        try:
            data = await self._client.get(DEBUG_TASKS, name, decode=bytes, namespace=namespace)
        except NotFound:
            raise Unmet(EndReason.TASK_NOT_FOUND, f"DebugTask {name} does not exist in namespace {namespace}") from None
        task = _checked(data, DebugTask)
        self._tasks.put(task.metadata.uid or "", task, len(data))
        return task


class KeptTasks:
    """LRU cache of tasks with at most ``limit`` bytes, by the UID of the DebugTask or of the Episode (inline tasks)."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._bytes = 0
        self._tasks: OrderedDict[str, tuple[DebugTask, int]] = OrderedDict()

    def get(self, uid: str) -> DebugTask | None:
        """Return the task, or None if it is not kept."""
        found = self._tasks.get(uid)
        if found is None:
            return None
        self._tasks.move_to_end(uid)
        return found[0]

    def put(self, uid: str, task: DebugTask, size: int) -> None:
        """Keep the task of ``size`` bytes. The least recently used tasks are dropped if there are too many bytes."""
        if uid in self._tasks:
            self._bytes -= self._tasks.pop(uid)[1]
        self._tasks[uid] = task, size
        self._bytes += size
        while self._bytes > self._limit:
            _, (_, dropped) = self._tasks.popitem(last=False)
            self._bytes -= dropped


def _checked(data: bytes, kind: type[K]) -> K:
    try:
        resource = msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise Unmet(EndReason.INVALID_SPEC, f"{kind.__name__}: {error}") from None
    return _without_problems(resource)


def _tools(view: EpisodeView) -> tuple[str | ToolSpec, ...]:
    if not view.spec.tools:
        return ()
    try:
        return msgspec.json.decode(view.spec.tools, type=tuple[str | ToolSpec, ...])
    except msgspec.ValidationError as error:
        raise Unmet(EndReason.INVALID_SPEC, f"Episode: {error} - at `$.spec.tools`") from None


def _without_problems(resource: K) -> K:
    problems = check_rules(resource)
    if problems:
        first = problems[0]
        where = f"{type(resource).__name__} {resource.metadata.name}: {render_path(first.path)}"
        raise Unmet(EndReason.INVALID_SPEC, f"{where}: {first.message}")
    return resource


def inline_task(episode: Episode) -> DebugTask | None:
    """Return the Episode's inline task with the name of the Episode, or None if it references a DebugTask."""
    if episode.spec.task is None:
        return None
    metadata = ObjectMeta(name=episode.metadata.name, namespace=episode.metadata.namespace)
    return DebugTask(metadata=metadata, spec=episode.spec.task)


def config_map_source(task: DebugTask) -> ConfigMapSource | None:
    """Return the task's ConfigMap source, or None if it has another source."""
    return task.spec.source.config_map_ref if task.spec.source is not None else None


def with_files(task: DebugTask, source: ConfigMapSource, content: ConfigMapContent) -> DebugTask:
    """Return the task with the ConfigMap's contents inline, because agent pods have no access to the API server.

    Raises:
        Unmet: A key does not exist, or the ConfigMap is empty.
    """
    everything = sorted({**content.data, **content.binary_data})
    wanted = [(item.path, item.key) for item in source.items] or [(key, key) for key in everything]
    missing = [key for _, key in wanted if key not in everything]
    if missing or not wanted:
        problem = f"has no key {missing[0]!r}" if missing else "is empty"
        raise Unmet(EndReason.SOURCE_FAILED, f"task {task.metadata.name}: ConfigMap {source.name} {problem}")
    files = tuple(
        InlineFile(path=path, content=content.data[key])
        if key in content.data
        else InlineFile(path=path, content_base64=content.binary_data[key])
        for path, key in wanted
    )
    return msgspec.structs.replace(task, spec=msgspec.structs.replace(task.spec, source=SourceSpec(files=files)))
