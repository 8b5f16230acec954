"""Stored files and episodes of a cluster, read through the API server and the operator.

The operator checks the rights of the user with the API server.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import msgspec

from dgym.api import ARM_LABEL, SAMPLE_LABEL, SET_LABEL, TASK_LABEL, label_value
from dgym.cli.cluster.connection import (
    ClusterError,
    ConditionView,
    EpisodeView,
    EpisodeViewStatus,
    Meta,
    ObjectView,
    SetView,
    connect,
)
from dgym.cli.options import ClusterPlace
from dgym.decoding import DECODE_ERRORS
from dgym.kube import (
    EPISODE_SETS,
    EPISODES,
    PODS,
    ApiError,
    Client,
    Forbidden,
    NotFound,
    PortForward,
    PortUnreachable,
    Resource,
)
from dgym.results import FILES, AttemptFields, EpisodeEntry, EpisodeRow, Library, RunProgress, seconds_of
from dgym.wire import EndReason, Outcome
from dgym.wire.assignments import RESULTS_AUDIENCE, RESULTS_PATH, ResultsList, StoredFile

OPERATORS = "app.kubernetes.io/name=dgym,app.kubernetes.io/component=operator"
PORT = 8080
READER = "dgym-results"
"""ServiceAccount for administrators. It may read the results of all namespaces that the installation serves."""
_TOKEN_REQUESTS = Resource("", "v1", f"serviceaccounts/{READER}/token", "TokenRequest")
_TOKEN_SECONDS, _RENEW_SECONDS = 600, 300.0
_TRIES = 4
_SECONDS = 60.0
_PAUSE_SECONDS = 2.0
_FILES_SECONDS = 2.0
_COUNTS = ("resolved", "score", "max_score", "steps", "rewrites", "input_tokens", "output_tokens")


class ResultsRefused(ClusterError):
    """The user may not connect to the operator, or may not read the results."""


class ResultsReader:
    """Lists and fetches stored files. All calls use one port-forward."""

    def __init__(
        self, session: aiohttp.ClientSession, forward: PortForward, credentials: "_Credentials", namespace: str
    ) -> None:
        self._session = session
        self._forward = forward
        self._namespace = namespace
        self._credentials = credentials

    async def check(self, namespace: str) -> None:
        """Check that the user may read the results of the namespace.

        Raises:
            ResultsRefused: The user may not read them.
            ClusterError: The operator does not answer.
        """
        async for _ in self._get(namespace):
            pass

    async def files(self, namespace: str, episode: str) -> list[StoredFile]:
        """Return every file of every attempt at the episodes of that name.

        Raises:
            ResultsRefused: The user may not read them.
            ClusterError: The operator does not answer, or its answer is not a list of results.
        """
        body = b"".join([chunk async for chunk in self._get(f"{namespace}/{episode}")])
        try:
            found = msgspec.json.decode(body, type=ResultsList).files
        except DECODE_ERRORS as error:
            raise ClusterError(f"pod {self._forward.pod} sent no list of results: {error}") from error
        return [file for file in found if _is_below(file.path, namespace, episode)]

    async def read(self, file: StoredFile) -> bytes:
        """Return the content of a file."""
        return b"".join([chunk async for chunk in self._get(file.path)])

    async def save(self, file: StoredFile, directory: Path) -> None:
        """Save a file at its path below ``directory``. The write is atomic."""
        target = directory / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".{target.name}.part")
        try:
            with partial.open("wb") as stream:
                async for chunk in self._get(file.path):
                    stream.write(chunk)
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)

    async def _get(self, path: str) -> AsyncIterator[bytes]:
        for tried in range(1, _TRIES + 1):
            headers = {"Authorization": await self._credentials.header()}
            try:
                async with self._session.get(f"http://operator{RESULTS_PATH}/{path}", headers=headers) as response:
                    if response.status == 503 and tried < _TRIES:
                        await asyncio.sleep(tried)
                        continue
                    if response.status != 200:
                        raise _refusal(response.status, await response.text(), self._forward.pod)
                    async for chunk in response.content.iter_any():
                        yield chunk
                    return
            except (aiohttp.ClientError, TimeoutError) as error:
                problem = self._forward.problem
                if isinstance(problem, PortUnreachable):
                    raise ClusterError(problem.message) from error
                if problem is not None:
                    with _explaining_forbidden(self._namespace):
                        raise problem from error
                text = str(error) or type(error).__name__
                raise ClusterError(f"pod {self._forward.pod} does not answer: {text}; try again") from error


@contextlib.asynccontextmanager
async def open_results(client: Client, system_namespace: str) -> AsyncIterator[ResultsReader]:
    """Yield a reader that is connected to an operator pod in ``system_namespace``.

    Raises:
        ResultsRefused: The user may not connect to the pod, or may not read the results of the client's namespace.
        ClusterError: An operator pod does not run, or the kubeconfig does not have a token.
    """
    with _explaining_forbidden(system_namespace):
        operator = await _operator(client, system_namespace)
    credentials = _Credentials(client, system_namespace)
    await credentials.header()
    forward = PortForward(client, system_namespace, operator.metadata.name, PORT)
    async with forward.open() as path:
        connector = aiohttp.UnixConnector(path=str(path), limit=4)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_SECONDS, sock_read=_SECONDS)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            reader = ResultsReader(session, forward, credentials, system_namespace)
            try:
                await reader.check(client.namespace)
            except ResultsRefused:
                raise
            except ClusterError:
                pass  # The operator may answer later, when there are files to read.
            yield reader


@contextlib.contextmanager
def _explaining_forbidden(namespace: str) -> Iterator[None]:
    """Turn ``Forbidden`` into an error that names the missing rights. The ClusterRoles for users do not grant them."""
    try:
        yield
    except Forbidden as error:
        raise ResultsRefused(
            f"the operator cannot be reached: this requires list on pods and get and create on pods/portforward in"
            f" namespace {namespace}; the chart's value rbac.resultsReaders grants them"
        ) from error


class _Credentials:
    """The ``Authorization`` header for requests to the operator.

    It contains a token of the ServiceAccount ``READER`` if the user may request one. That token is not valid for the
    API server. Otherwise it contains the token of the kubeconfig.
    """

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self._namespace = namespace
        self._made = ""
        self._renew = 0.0
        self._own = False

    async def header(self) -> str:
        """Return the value of the header. A token of ``READER`` is renewed every 5 minutes.

        Raises:
            ClusterError: The user may not request a token, and the kubeconfig does not have one.
        """
        if not self._own and time.monotonic() >= self._renew:
            spec = {"audiences": [RESULTS_AUDIENCE], "expirationSeconds": _TOKEN_SECONDS}
            body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
            try:
                made = await self._client.create(_TOKEN_REQUESTS, body, decode=_TokenRequest, namespace=self._namespace)
                self._made, self._renew = f"Bearer {made.status.token}", time.monotonic() + _RENEW_SECONDS
            except (Forbidden, NotFound):
                self._own = True
        if not self._own:
            return self._made
        header = await self._client.access.credentials.header() or ""
        if not header.lower().startswith("bearer "):
            raise ClusterError(
                f"context '{self._client.access.context}' has no token by which the operator can identify you; use a"
                f" kubeconfig with a token, or get create on serviceaccounts/token of {READER} in namespace"
                f" {self._namespace}"
            )
        return header


async def _operator(client: Client, namespace: str) -> "_Pod":
    found = await client.list(PODS, namespace=namespace, decode=_Pod, label_selector=OPERATORS)
    if not found:
        raise ClusterError(
            f"operator pods were not found in namespace {namespace}; --system-namespace names the namespace in which"
            " dgym is installed"
        )
    best = max(found, key=lambda pod: (pod.metadata.deletion_timestamp is None, pod.ready, pod.runs))
    if not best.runs:
        raise ClusterError(f"no operator pod runs in namespace {namespace}; see kubectl get pods -n {namespace}")
    return best


def _refusal(status: int, body: str, pod: str) -> ClusterError:
    try:
        text = str(msgspec.json.decode(body)["message"])
    except (*DECODE_ERRORS, LookupError, TypeError):
        text = f"HTTP status {status}"
    kind = ResultsRefused if status in (401, 403) else ClusterError
    return kind(f"operator pod {pod} did not return the results: {text}")


def _is_below(path: str, namespace: str, episode: str) -> bool:
    """Return True if a path sent by a pod belongs to that episode. Files with other paths must not be written."""
    parts = path.split("/")
    inside = len(parts) == 5 and parts[:2] == [namespace, episode] and parts[2] not in ("", ".", "..")
    return inside and parts[3].isdecimal() and parts[4] in FILES and "\0" not in path


class _PodMeta(Meta, frozen=True, kw_only=True):
    deletion_timestamp: str | None = None


class _PodStatus(ObjectView, frozen=True, kw_only=True):
    phase: str = ""
    conditions: tuple[ConditionView, ...] = ()


class _Pod(ObjectView, frozen=True, kw_only=True):
    metadata: _PodMeta
    status: _PodStatus = _PodStatus()

    @property
    def runs(self) -> bool:
        return self.status.phase == "Running"

    @property
    def ready(self) -> bool:
        return any(each.type == "Ready" and each.status == "True" for each in self.status.conditions)


class _TokenStatus(ObjectView, frozen=True, kw_only=True):
    token: str


class _TokenRequest(ObjectView, frozen=True, kw_only=True):
    status: _TokenStatus


class _Reference(ObjectView, frozen=True, kw_only=True):
    name: str = ""
    model: str | None = None


class _StoredEpisodeSpec(ObjectView, frozen=True, kw_only=True):
    task_ref: _Reference = _Reference()
    agent: _Reference = _Reference()


class _StoredEpisodeStatus(EpisodeViewStatus, frozen=True, kw_only=True):
    start_time: str | None = None
    completion_time: str | None = None


class _StoredEpisode(EpisodeView, frozen=True, kw_only=True):
    spec: _StoredEpisodeSpec = _StoredEpisodeSpec()
    status: _StoredEpisodeStatus = _StoredEpisodeStatus()


class ClusterLibrary(Library):
    """The Episodes of a namespace.

    Their trajectories are read with ``reader``. If it is None, trajectories cannot be read, and ``unreadable`` is the
    reason that the page shows.
    """

    def __init__(self, client: Client, title: str, reader: ResultsReader | None, unreadable: str = "") -> None:
        super().__init__(title, pause_seconds=_PAUSE_SECONDS)
        self._client = client
        self._reader = reader
        self._unreadable = unreadable
        self._files: dict[str, tuple[float, tuple[StoredFile, ...]]] = {}

    async def _update(self, *, listing: bool) -> None:  # noqa: ARG002 - everything is listed at once
        """List Episodes and EpisodeSets. The previous list stays if the API server does not answer.

        Episodes that were deleted after their TTL are not listed. They are only in the results store.
        """
        where = {"namespace": self._client.namespace}
        try:
            episodes = await self._client.list(EPISODES, decode=_StoredEpisode, **where)
            sets = await self._client.list(EPISODE_SETS, decode=SetView, **where)
        except ApiError as error:
            self.notice = f"The cluster does not answer: {error.message}"
            return
        self.notice = self._unreadable
        self.entries = {entry.path: entry for view in episodes for entry in [_entry(view)]}
        self.progress = {("", label_value(view.metadata.name)): _progress(view) for view in sets}

    async def _read(self, entry: EpisodeEntry, attempt: int, name: str, limit: int) -> bytes | None:
        if self._reader is None:
            return None
        wanted = f"{entry.path}/{attempt}/{name}"
        file = next((file for file in await self._stored(entry) if file.path == wanted), None)
        if file is None:
            return None
        return (await self._reader.read(file))[:limit] if file.bytes <= limit else None

    async def version(self, entry: EpisodeEntry, attempt: int) -> str:
        """Return the sizes of the attempt's files as JSON."""
        prefix = f"{entry.path}/{attempt}/"
        sizes = [(file.path, file.bytes) for file in await self._stored(entry) if file.path.startswith(prefix)]
        return msgspec.json.encode(sizes).decode()

    async def _stored(self, entry: EpisodeEntry) -> tuple[StoredFile, ...]:
        """Return the stored files of an episode, cached for two seconds."""
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


def _entry(view: _StoredEpisode) -> EpisodeEntry:
    metadata, status = view.metadata, view.status
    labels = metadata.labels
    sample = labels.get(SAMPLE_LABEL, "")
    path = f"{metadata.namespace}/{metadata.name}/{metadata.uid}"
    group = labels.get(SET_LABEL, "")
    created = metadata.creation_timestamp.isoformat() if metadata.creation_timestamp is not None else ""
    about = AttemptFields(
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
    return EpisodeEntry(
        path=path,
        run="",
        group=group,
        attempts=tuple(range(1, newest + 1)),
        state=view.state,
        about=_row(view, about, path, newest) or about,
        message=view.message,
        changed=seconds_of(status.completion_time or status.start_time or created),
        version=metadata.resource_version,
    )


def _row(view: _StoredEpisode, about: AttemptFields, path: str, attempt: int) -> EpisodeRow | None:
    """Return the outcome in the form that reports count. None if the episode has not finished."""
    outcome = view.status.outcome
    if not view.finished or view.status.reason not in EndReason.__members__.values():
        return None
    outcome = outcome or Outcome(resolved=False)
    began, ended = seconds_of(view.status.start_time or ""), seconds_of(view.status.completion_time or "")
    counts = {name: getattr(outcome, name) for name in _COUNTS}
    return EpisodeRow(
        **{**msgspec.structs.asdict(about), **counts},
        attempt=attempt,
        digest=view.metadata.uid,
        reason=EndReason(view.status.reason),
        seconds=max(0.0, ended - began) if began and ended else 0.0,
        path=path,
    )


def _progress(view: SetView) -> RunProgress:
    created = view.metadata.creation_timestamp
    return RunProgress(
        total=view.status.total, began=created.timestamp() if created is not None else 0.0, ended=view.finished
    )


@contextlib.asynccontextmanager
async def open_cluster(place: ClusterPlace) -> AsyncIterator[ClusterLibrary]:
    """Yield the episodes of a namespace. They include trajectories if the user may read results.

    Raises:
        DgymError: The context does not exist, or the cluster cannot be reached or refuses a request.
    """
    async with connect(place) as client, contextlib.AsyncExitStack() as stack:
        await client.list(EPISODES, decode=_StoredEpisode, namespace=client.namespace)
        reader, unreadable = None, ""
        try:
            reader = await stack.enter_async_context(open_results(client, place.system_namespace))
        except ClusterError as error:
            unreadable = f"Trajectories cannot be read: {error}"
        yield ClusterLibrary(client, f"namespace {client.namespace}", reader, unreadable)
