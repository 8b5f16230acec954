"""Reading the results store through an agent, which serves it to whoever has the token for that."""

import asyncio
import base64
import binascii
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import msgspec

from dgym.cli.cluster.connection import Cluster
from dgym.cli.cluster.errors import ApiRefused, ClusterError, NotFound
from dgym.cli.cluster.forward import Forward
from dgym.cli.cluster.views import ConditionView, Meta, View
from dgym.results.store import FILES
from dgym.wire.assignments import RESULTS_PATH, ResultsList, StoredFile

AGENTS = "app.kubernetes.io/name=dgym,app.kubernetes.io/component=agent"
PORT = 8081
TOKEN_SECRET, TOKEN_KEY = "dgym-results-token", "token"

_TRIES = 4
_SECONDS = 60.0


class ResultsReader:
    """Lists and fetches what is stored; one connection serves all calls."""

    def __init__(self, session: aiohttp.ClientSession, forward: Forward, token: str, namespace: str) -> None:
        self._session = session
        self._forward = forward
        self._namespace = namespace
        self._headers = {"Authorization": f"Bearer {token}"}

    async def files(self, namespace: str, episode: str) -> list[StoredFile]:
        """Every file of every attempt at the episodes of that name.

        Raises:
            ClusterError: The agent does not answer, or with what is not a list of results.
        """
        body = b"".join([chunk async for chunk in self._get(f"{namespace}/{episode}")])
        try:
            found = msgspec.json.decode(body, type=ResultsList).files
        except msgspec.MsgspecError as error:
            raise ClusterError(f"pod {self._forward.pod} answers what no agent of dgym does: {error}") from error
        return [file for file in found if _is_below(file.path, namespace, episode)]

    async def read(self, file: StoredFile) -> bytes:
        """The bytes of a file."""
        return b"".join([chunk async for chunk in self._get(file.path)])

    async def save(self, file: StoredFile, directory: Path) -> None:
        """Fetch a file to its place below ``directory``; it appears there when it is whole."""
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
                if self._forward.problem is not None:
                    with _rights_explained(self._namespace):
                        raise self._forward.problem from error
                text = str(error) or type(error).__name__
                raise ClusterError(f"pod {self._forward.pod} does not answer: {text}; try again") from error


@contextlib.asynccontextmanager
async def open_results(cluster: Cluster, system_namespace: str) -> AsyncIterator[ResultsReader]:
    """A reader that asks one of the agents in the namespace in which dgym is installed.

    Raises:
        ClusterError: There is no such agent, or we may not ask it.
    """
    with _rights_explained(system_namespace):
        token = await _token(cluster, system_namespace)
        agent = await _agent(cluster, system_namespace)
    forward = Forward(cluster, system_namespace, agent, PORT)
    async with forward.open() as path:
        connector = aiohttp.UnixConnector(path=str(path), limit=4)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_SECONDS, sock_read=_SECONDS)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            yield ResultsReader(session, forward, token, system_namespace)


@contextlib.contextmanager
def _rights_explained(namespace: str) -> Iterator[None]:
    """No ClusterRole of Kubernetes or dgym for users grants this, so that the general advice would lead nowhere."""
    try:
        yield
    except ApiRefused as error:
        if error.status != 403:
            raise
        raise ClusterError(
            f"reading results is forbidden: it takes get on Secret {TOKEN_SECRET}, list on pods and get and create on"
            f" pods/portforward in namespace {namespace}; docs/kubernetes.md#results has the Role"
        ) from error


async def _token(cluster: Cluster, namespace: str) -> str:
    try:
        body = await cluster.get(f"/api/v1/namespaces/{namespace}/secrets/{TOKEN_SECRET}")
        return base64.b64decode(cluster.decode(body, _Secret).data[TOKEN_KEY]).decode("ascii").strip()
    except NotFound as error:
        raise _not_installed(f"there is no Secret {TOKEN_SECRET}", namespace) from error
    except (KeyError, binascii.Error, UnicodeDecodeError) as error:
        raise ClusterError(f"Secret {TOKEN_SECRET} in namespace {namespace} holds no '{TOKEN_KEY}'") from error


async def _agent(cluster: Cluster, namespace: str) -> str:
    items, _ = await cluster.list(f"/api/v1/namespaces/{namespace}/pods", labelSelector=AGENTS)
    pods = [cluster.decode(item, _Pod) for item in items]
    if not pods:
        raise _not_installed("there are no agent pods", namespace)
    # One that is not ready because its store is away, or because it is leaving, may answer all the same.
    best = max(pods, key=lambda pod: (pod.metadata.deletion_timestamp is None, pod.ready, pod.runs))
    if not best.runs:
        raise ClusterError(f"no agent pod runs in namespace {namespace}; see kubectl get pods -n {namespace}")
    return best.metadata.name


def _not_installed(what: str, namespace: str) -> ClusterError:
    return ClusterError(f"{what} in namespace {namespace}; --system-namespace names the one in which dgym is installed")


def _refusal(status: int, body: str, pod: str) -> ClusterError:
    try:
        text = str(msgspec.json.decode(body)["message"])
    except (msgspec.MsgspecError, LookupError, TypeError):
        text = f"HTTP status {status}"
    return ClusterError(f"agent {pod} does not give the results: {text}")


def _is_below(path: str, namespace: str, episode: str) -> bool:
    """What is written to disk stays where it belongs, whatever a pod answers."""
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


class _Secret(View, frozen=True, kw_only=True):
    data: dict[str, str] = msgspec.field(default_factory=dict)
