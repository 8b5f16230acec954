"""The episodes of a cluster for ``dgym ui``: objects of the API server, and files that an agent serves."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping

import msgspec

from dgym.api import ARM_LABEL, SAMPLE_LABEL, SET_LABEL, TASK_LABEL, label_value
from dgym.cli.cluster.connection import ClusterError, connect
from dgym.cli.cluster.results import ResultsReader, open_results
from dgym.cli.cluster.views import EpisodeView, EpisodeViewStatus, Outcome, SetView, View
from dgym.kube import EPISODE_SETS, EPISODES, ApiError, Client
from dgym.results import FILES
from dgym.results.report import EpisodeRow
from dgym.ui import Attempted, Entry, Progress, seconds_of
from dgym.wire import EndReason
from dgym.wire.assignments import StoredFile

_PAUSE_SECONDS = 2.0
_FILES_SECONDS = 2.0


class _Reference(View, frozen=True, kw_only=True):
    name: str = ""
    model: str | None = None


class _Spec(View, frozen=True, kw_only=True):
    task_ref: _Reference = _Reference()
    agent: _Reference = _Reference()


class _Outcome(Outcome, frozen=True, kw_only=True):
    rewrites: int = 0
    input_tokens: int = 0
    output_tokens: int = 0


class _Status(EpisodeViewStatus, frozen=True, kw_only=True):
    outcome: _Outcome | None = None
    start_time: str | None = None
    completion_time: str | None = None


class _Episode(EpisodeView, frozen=True, kw_only=True):
    spec: _Spec = _Spec()
    status: _Status = _Status()


class ClusterLibrary:
    """The Episodes of a namespace. Their trajectories come from an agent; without ``reader`` there are none.

    ``unreadable`` says why there is no reader.
    """

    def __init__(self, client: Client, title: str, reader: ResultsReader | None, unreadable: str = "") -> None:
        self._client = client
        self._title = title
        self._reader = reader
        self._unreadable = unreadable
        self._entries: dict[str, Entry] = {}
        self._progress: dict[tuple[str, str], Progress] = {}
        self._files: dict[str, tuple[float, tuple[StoredFile, ...]]] = {}
        self._problem = ""
        self._refreshing = asyncio.Lock()
        self._next = 0.0

    @property
    def title(self) -> str:
        """The namespace and the cluster."""
        return self._title

    @property
    def entries(self) -> Mapping[str, Entry]:
        """The Episodes there are; those that their TTL has deleted are in the results store alone."""
        return self._entries

    @property
    def progress(self) -> Mapping[tuple[str, str], Progress]:
        """The counts of the EpisodeSets."""
        return self._progress

    @property
    def notice(self) -> str:
        """Why trajectories cannot be read, or the cluster does not answer."""
        return self._problem or self._unreadable

    async def refresh(self) -> None:
        """List Episodes and EpisodeSets, at most every two seconds; old ones stay while the API server is away."""
        async with self._refreshing:
            begun = time.monotonic()
            if begun < self._next:
                return
            where = {"namespace": self._client.namespace}
            try:
                episodes = await self._client.list(EPISODES, decode=_Episode, **where)
                sets = await self._client.list(EPISODE_SETS, decode=SetView, **where)
            except ApiError as error:
                self._problem = f"The cluster does not answer: {error.message}"
            else:
                self._problem = ""
                self._entries = {entry.path: entry for view in episodes for entry in [_entry(view)]}
                self._progress = {("", label_value(view.metadata.name)): _progress(view) for view in sets}
            done = time.monotonic()
            self._next = done + max(_PAUSE_SECONDS, 4 * (done - begun))

    async def read(self, entry: Entry, attempt: int, name: str, limit: int) -> bytes | None:
        """A file that an agent serves."""
        if self._reader is None or name not in FILES:
            return None
        wanted = f"{entry.path}/{attempt}/{name}"
        file = next((file for file in await self._stored(entry) if file.path == wanted), None)
        if file is None:
            return None
        return (await self._reader.read(file))[:limit] if file.bytes <= limit else None

    async def version(self, entry: Entry, attempt: int) -> str:
        """The sizes of the attempt's files."""
        prefix = f"{entry.path}/{attempt}/"
        sizes = [(file.path, file.bytes) for file in await self._stored(entry) if file.path.startswith(prefix)]
        return msgspec.json.encode(sizes).decode()

    async def _stored(self, entry: Entry) -> tuple[StoredFile, ...]:
        """The stored files of an episode, asked for at most every two seconds."""
        if self._reader is None:
            return ()
        asked, files = self._files.get(entry.path, (0.0, ()))
        if time.monotonic() - asked > _FILES_SECONDS:
            namespace, episode, _ = entry.path.split("/")
            try:
                files = tuple(await self._reader.files(namespace, episode))
            except ApiError as error:
                raise ClusterError(error.message) from error
            self._files.pop(entry.path, None)
            while len(self._files) >= 100:
                self._files.pop(next(iter(self._files)))
            self._files[entry.path] = (time.monotonic(), files)
        return files


def _entry(view: _Episode) -> Entry:
    metadata, status = view.metadata, view.status
    labels = metadata.labels
    sample = labels.get(SAMPLE_LABEL, "")
    path = f"{metadata.namespace}/{metadata.name}/{metadata.uid}"
    group = labels.get(SET_LABEL, "")
    created = metadata.creation_timestamp.isoformat() if metadata.creation_timestamp is not None else ""
    about = Attempted(
        namespace=metadata.namespace,
        episode=metadata.name,
        task=view.spec.task_ref.name or labels.get(TASK_LABEL, ""),
        agent=view.spec.agent.name,
        model=view.spec.agent.model or "",
        arm=labels.get(ARM_LABEL, ""),
        sample=int(sample) if sample.isdecimal() and len(sample) < 9 else 0,
        steps=status.steps,
        start_time=status.start_time or created,
    )
    newest = max(1, status.attempt)
    return Entry(
        path=path,
        run="",
        group=group,
        attempts=tuple(range(1, newest + 1)),
        state=view.state,
        row=_row(view, about, path, newest),
        attempted=about,
        message=view.message,
        changed=seconds_of(status.completion_time or status.start_time or created),
        version=metadata.resource_version,
    )


def _row(view: _Episode, about: Attempted, path: str, attempt: int) -> EpisodeRow | None:
    """The outcome as reports count it; None while there is none."""
    outcome = view.status.outcome
    if not view.finished or view.status.reason not in EndReason.__members__.values():
        return None
    outcome = outcome or _Outcome()
    began, ended = seconds_of(view.status.start_time or ""), seconds_of(view.status.completion_time or "")
    return EpisodeRow(
        namespace=about.namespace,
        episode=about.episode,
        task=about.task,
        agent=about.agent,
        model=about.model,
        arm=about.arm,
        sample=about.sample,
        attempt=attempt,
        digest=view.metadata.uid,
        reason=EndReason(view.status.reason),
        resolved=outcome.resolved,
        score=outcome.score,
        max_score=outcome.max_score,
        steps=outcome.steps,
        rewrites=outcome.rewrites,
        input_tokens=outcome.input_tokens,
        output_tokens=outcome.output_tokens,
        seconds=max(0.0, ended - began) if began and ended else 0.0,
        start_time=about.start_time,
        path=path,
    )


def _progress(view: SetView) -> Progress:
    created = view.metadata.creation_timestamp
    return Progress(
        total=view.status.total, began=created.timestamp() if created is not None else 0.0, ended=view.finished
    )


@contextlib.asynccontextmanager
async def open_cluster(place: tuple[str | None, str | None], system_namespace: str) -> AsyncIterator[ClusterLibrary]:
    """The episodes of a namespace of a cluster, with their trajectories where the user may read results.

    Raises:
        DgymError: There is no such cluster, or it refuses.
    """
    async with connect(*place) as client, contextlib.AsyncExitStack() as stack:
        await client.list(EPISODES, decode=_Episode, namespace=client.namespace)
        reader, unreadable = None, ""
        try:
            reader = await stack.enter_async_context(open_results(client, system_namespace))
        except ClusterError as error:
            unreadable = f"Trajectories cannot be read: {error}"
        yield ClusterLibrary(client, f"namespace {client.namespace}", reader, unreadable)
