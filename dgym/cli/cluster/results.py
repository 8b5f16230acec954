"""``dgym results``: stored files fetched through the operator, which asks the API server what the user may read."""

import asyncio
import contextlib
import shutil
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

import aiohttp
import msgspec

from dgym.api import child_name
from dgym.cli.cluster.connection import ClusterError, connect, find_all, selector_of_children
from dgym.cli.cluster.views import ConditionView, EpisodeView, Meta, SetView, View
from dgym.cli.output import FAILED, UsageFailure, echo
from dgym.cli.story import show_stories
from dgym.decoding import DECODE_ERRORS
from dgym.kube import EPISODES, PODS, Client, Forbidden, NotFound, PortForward, PortUnreachable, Resource
from dgym.results import FILES, Attempt, StoredResult, record_left_out
from dgym.wire.assignments import RESULTS_AUDIENCE, RESULTS_PATH, ResultsList, StoredFile

OPERATORS = "app.kubernetes.io/name=dgym,app.kubernetes.io/component=operator"
PORT = 8080
READER = "dgym-results"
"""ServiceAccount of the installation that reads the results of all namespaces it serves, for administrators."""
_TOKEN_REQUESTS = Resource("", "v1", f"serviceaccounts/{READER}/token", "TokenRequest")
_TOKEN_SECONDS, _RENEW_SECONDS = 600, 300.0

_TRIES = 4
_SECONDS = 60.0


class ResultsRefused(ClusterError):
    """The user may not reach the operator, or not read results."""


class ResultsReader:
    """Lists and fetches stored files; one port-forward serves all calls."""

    def __init__(
        self, session: aiohttp.ClientSession, forward: PortForward, credentials: "_Credentials", namespace: str
    ) -> None:
        self._session = session
        self._forward = forward
        self._namespace = namespace
        self._credentials = credentials

    async def check(self, namespace: str) -> None:
        """Return if the user may read the results of the namespace.

        Raises:
            ClusterError: As of ``files``.
        """
        async for _ in self._get(namespace):
            pass

    async def files(self, namespace: str, episode: str) -> list[StoredFile]:
        """Every file of every attempt at the episodes of that name.

        Raises:
            ResultsRefused: The user may not read them.
            ClusterError: The operator does not answer, or sends something else than a list of results.
        """
        body = b"".join([chunk async for chunk in self._get(f"{namespace}/{episode}")])
        try:
            found = msgspec.json.decode(body, type=ResultsList).files
        except DECODE_ERRORS as error:
            raise ClusterError(f"pod {self._forward.pod} sent no list of results: {error}") from error
        return [file for file in found if _is_below(file.path, namespace, episode)]

    async def read(self, file: StoredFile) -> bytes:
        """The bytes of a file."""
        return b"".join([chunk async for chunk in self._get(file.path)])

    async def save(self, file: StoredFile, directory: Path) -> None:
        """Fetch a file to its place below ``directory``; it appears there whole or not at all."""
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
                    with _rights_explained(self._namespace):
                        raise problem from error
                text = str(error) or type(error).__name__
                raise ClusterError(f"pod {self._forward.pod} does not answer: {text}; try again") from error


@contextlib.asynccontextmanager
async def open_results(client: Client, system_namespace: str) -> AsyncIterator[ResultsReader]:
    """A reader that asks an operator pod in the namespace in which dgym is installed.

    Raises:
        ResultsRefused: The user may not reach it, or not read the results of the client's namespace.
        ClusterError: An operator pod does not run, or the kubeconfig does not have a token.
    """
    with _rights_explained(system_namespace):
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
                pass  # It may answer when there is something to read.
            yield reader


@contextlib.contextmanager
def _rights_explained(namespace: str) -> Iterator[None]:
    """Explain ``Forbidden`` by the rights that are missing, which no ClusterRole for users grants."""
    try:
        yield
    except Forbidden as error:
        raise ResultsRefused(
            f"the operator cannot be reached: it takes list on pods and get and create on pods/portforward in namespace"
            f" {namespace}; the chart's value rbac.resultsReaders grants them"
        ) from error


class _Credentials:
    """The header by which the operator identifies the user.

    If the user may request tokens of the ServiceAccount ``READER``, it has such a token, which is not valid for the API
    server. Otherwise it has the token of the kubeconfig.
    """

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self._namespace = namespace
        self._made = ""
        self._renew = 0.0
        self._own = False

    async def header(self) -> str:
        """The header ``Authorization``.

        Raises:
            ClusterError: There is neither token.
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
        raise _not_installed("operator pods were not found", namespace)
    best = max(found, key=lambda pod: (pod.metadata.deletion_timestamp is None, pod.ready, pod.runs))
    if not best.runs:
        raise ClusterError(f"no operator pod runs in namespace {namespace}; see kubectl get pods -n {namespace}")
    return best


def _not_installed(what: str, namespace: str) -> ClusterError:
    return ClusterError(f"{what} in namespace {namespace}; --system-namespace names the one in which dgym is installed")


def _refusal(status: int, body: str, pod: str) -> ClusterError:
    try:
        text = str(msgspec.json.decode(body)["message"])
    except (*DECODE_ERRORS, LookupError, TypeError):
        text = f"HTTP status {status}"
    kind = ResultsRefused if status in (401, 403) else ClusterError
    return kind(f"operator pod {pod} does not give the results: {text}")


def _is_below(path: str, namespace: str, episode: str) -> bool:
    """Whether a path sent by a pod belongs to that episode; no other path is written to."""
    parts = path.split("/")
    inside = len(parts) == 5 and parts[:2] == [namespace, episode] and parts[2] not in ("", ".", "..")
    return inside and parts[3].isdecimal() and parts[4] in FILES and "\0" not in path


class _PodMeta(Meta, frozen=True, kw_only=True):
    deletion_timestamp: str | None = None


class _PodStatus(View, frozen=True, kw_only=True):
    phase: str = ""
    conditions: tuple[ConditionView, ...] = ()


class _Pod(View, frozen=True, kw_only=True):
    metadata: _PodMeta
    status: _PodStatus = _PodStatus()

    @property
    def runs(self) -> bool:
        return self.status.phase == "Running"

    @property
    def ready(self) -> bool:
        return any(each.type == "Ready" and each.status == "True" for each in self.status.conditions)


class _TokenStatus(View, frozen=True, kw_only=True):
    token: str


class _TokenRequest(View, frozen=True, kw_only=True):
    status: _TokenStatus


_AT_A_TIME = 4


class Wanted(msgspec.Struct, frozen=True):
    """An episode to fetch; of a deleted one only the name is known."""

    namespace: str
    episode: str
    uid: str = ""
    uri: str = ""


class Fetched(msgspec.Struct, frozen=True):
    """The fetched directories of an episode's attempts, and the newest result."""

    episode: str
    attempts: tuple[Path, ...]
    result: StoredResult | None = None


async def fetch(
    names: Sequence[str], directory: Path, *, place: tuple[str | None, str | None], system_namespace: str
) -> list[Fetched]:
    """Fetch the results of all episodes of these names.

    Raises:
        UsageFailure: There is none of that name.
    """
    async with connect(*place) as client:
        found = await find_all(client, names)
        wanted = await _wanted(client, found)
        for each in found:
            if isinstance(each, SetView):
                record_left_out(directory, each.metadata.name, each.metadata.annotations)
        done = {each: _copied(each, directory) for each in wanted}
        remote = [each for each in wanted if not done[each]]
        if remote:
            async with open_results(client, system_namespace) as reader:
                done |= await _fetch_all(reader, remote, directory)
    return [_fetched(each, done[each]) for each in wanted]


async def _wanted(client: Client, views: Sequence[EpisodeView | SetView]) -> list[Wanted]:
    wanted: dict[str, Wanted] = {}
    for found in views:
        if isinstance(found, EpisodeView):
            wanted[found.metadata.name] = _of_episode(found, client.namespace)
        else:
            for each in await _of_set(client, found):
                wanted.setdefault(each.episode, each)
    return list(wanted.values())


def _of_episode(view: EpisodeView, namespace: str) -> Wanted:
    uri = view.status.outcome.result_uri if view.status.outcome is not None else ""
    return Wanted(namespace, view.metadata.name, view.metadata.uid, uri)


async def _of_set(client: Client, view: SetView) -> list[Wanted]:
    """The set's Episodes in the order of their indexes, including those deleted after their end."""
    selector = selector_of_children(view.metadata.name)
    where = {"namespace": client.namespace, "label_selector": selector}
    living = [_of_episode(view, client.namespace) for view in await client.list(EPISODES, decode=EpisodeView, **where)]
    known = {each.episode: each for each in living}
    arms = [arm.name for arm in view.spec.arms]
    past = (child_name(view.metadata.name, index, arms) for index in indexes(view.status.completed_indexes))
    for name in past:
        known.setdefault(name, Wanted(client.namespace, name))
    return sorted(known.values(), key=lambda each: (len(each.episode), each.episode))


def indexes(text: str) -> list[int]:
    """``0-2,7`` as 0, 1, 2, 7."""
    found: list[int] = []
    for part in text.split(",") if text else []:
        first, _, last = part.partition("-")
        found.extend(range(int(first), int(last or first) + 1))
    return found


def _copied(wanted: Wanted, directory: Path) -> tuple[Path, ...]:
    """Copy the attempt if its directory in the store is one of this machine; nothing otherwise."""
    address = urlsplit(wanted.uri)
    source = Path(unquote(address.path))
    if address.scheme != "file" or not source.name.isdecimal():
        return ()
    result = Attempt(source).load()
    if result is None or (result.namespace, result.episode) != (wanted.namespace, wanted.episode):
        return ()
    target = directory / wanted.namespace / wanted.episode / wanted.uid / source.name
    target.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        with contextlib.suppress(FileNotFoundError, shutil.SameFileError):
            shutil.copyfile(source / name, target / name)
    return (target,)


async def _fetch_all(
    reader: ResultsReader, wanted: Sequence[Wanted], directory: Path
) -> dict[Wanted, tuple[Path, ...]]:
    gate = asyncio.Semaphore(_AT_A_TIME)
    done: dict[Wanted, tuple[Path, ...]] = {}

    async def fetch_one(each: Wanted) -> None:
        async with gate:
            files = await reader.files(each.namespace, each.episode)
            # Of a living Episode its own results alone; an earlier one may have had the same name.
            files = [file for file in files if not each.uid or file.path.split("/")[2] == each.uid]
            for file in files:
                await reader.save(file, directory)
            attempts = {directory / file.path.rpartition("/")[0] for file in files}
            done[each] = tuple(sorted(attempts, key=lambda path: int(path.name)))

    async with asyncio.TaskGroup() as group:
        for each in wanted:
            group.create_task(fetch_one(each))
    return done


def _fetched(wanted: Wanted, attempts: tuple[Path, ...]) -> Fetched:
    results = (Attempt(path).load() for path in reversed(attempts))
    return Fetched(wanted.episode, attempts, next((each for each in results if each is not None), None))


def fetch_and_show(
    names: Sequence[str],
    destination: str,
    *,
    place: tuple[str | None, str | None],
    system_namespace: str,
    story: bool = False,
    step: int | None = None,
) -> None:
    """Fetch the results and print a line for each episode, or its story; exit with 1 where some have nothing stored."""
    directory = Path(destination)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageFailure(f"--directory {directory}: {error.strerror or error}; choose another") from error
    fetched = asyncio.run(fetch(names, directory, place=place, system_namespace=system_namespace))
    for each in fetched:
        if story and each.attempts:
            show_stories([str(each.attempts[-1])], step=step)
        else:
            echo(_line(each))
    stored = [each for each in fetched if each.attempts]
    if stored:
        echo(f"{len(stored)} of {len(fetched)} in {directory}; dgym report {directory} shows their figures")
    if len(stored) < len(fetched) or not fetched:
        echo("Of some nothing is stored yet; the same command fetches the rest later.", err=True)
        sys.exit(FAILED)


def _line(each: Fetched) -> str:
    if not each.attempts:
        return f"{each.episode}: nothing is stored yet"
    newest = each.attempts[-1]
    result = each.result
    if result is None:
        return f"{each.episode}: no result yet, {newest}"
    return f"{each.episode}: {result.reason} {result.score}/{result.max_score}, {newest}"
