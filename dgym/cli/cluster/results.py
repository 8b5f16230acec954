"""``dgym results``: stored files fetched through an agent of the cluster."""

import asyncio
import base64
import binascii
import contextlib
import shutil
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

import aiohttp
import msgspec

from dgym.api import NAMESPACES_ANNOTATION, POOL_LABEL, child_name
from dgym.cli.cluster.connection import ClusterError, connect, find_all, selector_of_children
from dgym.cli.cluster.views import ConditionView, EpisodeView, Meta, SetView, View
from dgym.cli.output import FAILED, UsageFailure, echo
from dgym.cli.story import show_stories
from dgym.decoding import DECODE_ERRORS
from dgym.kube import EPISODES, PODS, SECRETS, Client, Forbidden, NotFound, PortForward, PortUnreachable
from dgym.results import FILES, Attempt, StoredResult, record_left_out
from dgym.wire.assignments import RESULTS_PATH, ResultsList, StoredFile, pool_secret

AGENTS = "app.kubernetes.io/name=dgym,app.kubernetes.io/component=agent"
PORT = 8081
TOKEN_SECRET, TOKEN_KEY = "dgym-results-token", "token"

_TRIES = 4
_SECONDS = 60.0


class ResultsReader:
    """Lists and fetches stored files; one port-forward serves all calls."""

    def __init__(self, session: aiohttp.ClientSession, forward: PortForward, token: str, namespace: str) -> None:
        self._session = session
        self._forward = forward
        self._namespace = namespace
        self._headers = {"Authorization": f"Bearer {token}"}

    async def files(self, namespace: str, episode: str) -> list[StoredFile]:
        """Every file of every attempt at the episodes of that name.

        Raises:
            ClusterError: The agent does not answer, or answers with something else than a list of results.
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
            try:
                async with self._session.get(f"http://agent{RESULTS_PATH}/{path}", headers=self._headers) as response:
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
    """A reader that asks one of the agents in the namespace in which dgym is installed.

    Raises:
        ClusterError: There is no agent, or the user has no right to read from it.
    """
    with _rights_explained(system_namespace):
        agent = await _agent(client, system_namespace)
    secret = pool_secret(TOKEN_SECRET, agent.metadata.labels.get(POOL_LABEL, ""))
    with _rights_explained(system_namespace, secret):
        token = await _token(client, system_namespace, secret)
    forward = PortForward(client, system_namespace, agent.metadata.name, PORT)
    async with forward.open() as path:
        connector = aiohttp.UnixConnector(path=str(path), limit=4)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_SECONDS, sock_read=_SECONDS)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            yield ResultsReader(session, forward, token, system_namespace)


@contextlib.contextmanager
def _rights_explained(namespace: str, secret: str = TOKEN_SECRET) -> Iterator[None]:
    """Explain ``Forbidden`` by the rights that are missing, which no ClusterRole for users grants."""
    try:
        yield
    except Forbidden as error:
        raise ClusterError(
            f"reading results is forbidden: it takes get on Secret {secret}, list on pods and get and create on"
            f" pods/portforward in namespace {namespace}; docs/kubernetes.md#results has the Role"
        ) from error


async def _token(client: Client, namespace: str, name: str) -> str:
    try:
        secret = await client.get(SECRETS, name, namespace=namespace, decode=_Secret)
        return base64.b64decode(secret.data[TOKEN_KEY]).decode("ascii").strip()
    except NotFound as error:
        raise _not_installed(f"there is no Secret {name}", namespace) from error
    except (KeyError, binascii.Error, UnicodeDecodeError) as error:
        raise ClusterError(f"Secret {name} in namespace {namespace} holds no '{TOKEN_KEY}'") from error


async def _agent(client: Client, namespace: str) -> "_Pod":
    """The agent to ask; where there are pools, one that serves the client's namespace."""
    found = await client.list(PODS, namespace=namespace, decode=_Pod, label_selector=AGENTS)
    if not found:
        raise _not_installed("there are no agent pods", namespace)
    pods = [pod for pod in found if pod.serves(client.namespace)]
    if not pods:
        raise ClusterError(f"no pool of agents in namespace {namespace} serves the namespace {client.namespace}")
    # A pod that is not ready, because its store is away or it is being deleted, may answer all the same.
    best = max(pods, key=lambda pod: (pod.metadata.deletion_timestamp is None, pod.ready, pod.runs))
    if not best.runs:
        raise ClusterError(f"no agent pod runs in namespace {namespace}; see kubectl get pods -n {namespace}")
    return best


def _not_installed(what: str, namespace: str) -> ClusterError:
    return ClusterError(f"{what} in namespace {namespace}; --system-namespace names the one in which dgym is installed")


def _refusal(status: int, body: str, pod: str) -> ClusterError:
    try:
        text = str(msgspec.json.decode(body)["message"])
    except (*DECODE_ERRORS, LookupError, TypeError):
        text = f"HTTP status {status}"
    return ClusterError(f"agent {pod} does not give the results: {text}")


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

    def serves(self, namespace: str) -> bool:
        """Whether it has the namespace's results: it is of no pool, or of that of the namespace."""
        served = self.metadata.annotations.get(NAMESPACES_ANNOTATION, "")
        return POOL_LABEL not in self.metadata.labels or namespace in served.split(",")

    @property
    def runs(self) -> bool:
        return self.status.phase == "Running"

    @property
    def ready(self) -> bool:
        return any(each.type == "Ready" and each.status == "True" for each in self.status.conditions)


class _Secret(View, frozen=True, kw_only=True):
    data: dict[str, str] = msgspec.field(default_factory=dict)


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
            show_stories([str(each.attempts[-1])])
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
