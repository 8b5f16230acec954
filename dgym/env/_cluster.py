"""Find the sidecar of an Episode in a cluster, with the kubeconfig and the Secret of the Episode's driver.

From outside of the cluster, requests go through the API server's proxy to the pod. A port-forward does not work: it
connects from the pod's loopback interface, and the sidecar refuses connections from there because the sandbox's
programs share it. From a pod of the cluster, requests go to the sidecar's address.
"""

import asyncio
import base64
import binascii
import time
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

import msgspec

from dgym.api import driver_secret_name
from dgym.decoding import DECODE_ERRORS
from dgym.errors import AccessRefused, ArgumentError, DgymError, EpisodeOver, InfrastructureError, SandboxStartFailed
from dgym.kube import (
    EPISODES,
    PODS,
    SECRETS,
    SERVICE_ACCOUNT,
    ApiError,
    Client,
    ClusterAccess,
    Forbidden,
    NotFound,
    SystemClock,
    load_access,
)
from dgym.wire import EndReason, Outcome, Result
from dgym.wire.client import AlreadyFinished, Route
from dgym.wire.http import PROXIED_AUTHORIZATION_HEADER

_POLL_SECONDS = 1.0
_CHECK_SECONDS = 2.0
_REFRESH_SECONDS = 30.0
_RIGHTS = "a driver needs get on episodes and secrets, and get and create on pods/proxy"


class Sidecar(msgspec.Struct, frozen=True, kw_only=True):
    """The route to a sidecar, the token of the role "drive", and the reset key of all drivers of the attempt."""

    route: Route
    token: str
    reset_key: str


async def find_sidecar(
    name: str, *, context: str | None = None, wait_seconds: float, service_account: Path = SERVICE_ACCOUNT
) -> Sidecar:
    """Wait until the Episode ``NAMESPACE/NAME`` can be driven, and return its sidecar.

    Raises:
        ArgumentError: The Episode does not exist, or it has an agent.
        AccessRefused: The user lacks the permissions to drive it.
        EpisodeOver: The Episode has finished.
        SandboxStartFailed: It cannot be driven within ``wait_seconds``.
        InfrastructureError: The cluster does not respond.
    """
    namespace, _, episode = name.rpartition("/")
    if not episode or "/" in namespace:
        raise ArgumentError(f"{name!r} is not the name of an Episode: NAMESPACE/NAME, or NAME")
    access = await _load_access(context, service_account)
    async with AsyncExitStack() as stack:
        rng = Random()  # noqa: S311 - spreads retries, not for cryptography
        client = Client(access, clock=SystemClock(), random=rng, qps=50, burst=50, resend=False, user_agent="dgym")
        await stack.enter_async_context(client)
        lookup = _Lookup(client, namespace or access.namespace, episode)
        found, secret = await lookup.wait(wait_seconds)
        stack_of_route = stack.pop_all()
    url, token = secret.text("url"), secret.text("token")
    make = DirectRoute if access.in_cluster else ProxyRoute
    route = make(lookup, found, access, url, stack_of_route)
    return Sidecar(route=route, token=token, reset_key=f"{found.metadata.uid}-{found.status.attempt}")


async def _load_access(context: str | None, service_account: Path) -> ClusterAccess:
    try:
        return await load_access(context=context, service_account=service_account)
    except ImportError as error:
        raise ArgumentError("reading a kubeconfig needs the package kubernetes: pip install 'dgym[cli]'") from error


class _View(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of the partial resources below. Unknown fields are ignored."""


class _Meta(_View, frozen=True, kw_only=True):
    uid: str = ""


class _DrivenEpisodeSpec(_View, frozen=True, kw_only=True):
    agent: dict[str, Any] | None = None


class _DrivenEpisodeStatus(_View, frozen=True, kw_only=True):
    reason: str = ""
    state: str = ""
    message: str = ""
    attempt: int = 0
    pod_name: str | None = None
    outcome: Outcome | None = None

    @property
    def result(self) -> Result | None:
        """The result without the details, which are stored with the patch."""
        if self.outcome is None:
            return None
        try:
            reason = EndReason(self.reason)
        except ValueError:
            return None
        notes = ("the sandbox had ended: patch and tests are in the stored result",)
        return Result.of(self.outcome, reason=reason, notes=notes)


class _DrivenEpisode(_View, frozen=True, kw_only=True):
    metadata: _Meta
    spec: _DrivenEpisodeSpec = _DrivenEpisodeSpec()
    status: _DrivenEpisodeStatus = _DrivenEpisodeStatus()


class _Secret(_View, frozen=True, kw_only=True):
    data: dict[str, str] = msgspec.field(default_factory=dict)

    def text(self, field: str) -> str:
        """Decode a field.

        Raises:
            InfrastructureError: The field is missing, so the operator did not create the Secret.
        """
        try:
            return base64.b64decode(self.data[field]).decode("ascii")
        except (KeyError, ValueError, binascii.Error):
            raise InfrastructureError(f"the driver's Secret has no usable field {field!r}") from None


class _Lookup:
    """Reads one Episode and its driver's Secret."""

    def __init__(self, client: Client, namespace: str, name: str) -> None:
        self._client = client
        self.namespace = namespace
        self.name = name

    async def wait(self, seconds: float) -> tuple[_DrivenEpisode, _Secret]:
        """Wait until the driver's Secret exists. Return the Episode and the Secret."""
        deadline = time.monotonic() + seconds
        while True:
            episode = await self.episode()
            secret = await self._secret(episode)
            if secret is not None:
                return episode, secret
            if time.monotonic() + _POLL_SECONDS > deadline:
                status = episode.status
                reason = status.reason or "its status is not set"
                why = f"{reason}: {status.message}" if status.message else reason
                raise SandboxStartFailed(f"{self} cannot be driven within {seconds:g} s: {why}")
            await asyncio.sleep(_POLL_SECONDS)

    async def episode(self) -> _DrivenEpisode:
        """The Episode, which can be driven now or later.

        Raises:
            AlreadyFinished: The Episode has finished.
            ArgumentError: The Episode does not exist, or it has an agent.
            AccessRefused, InfrastructureError: The API server does not return it.
        """
        found = await self.read()
        if found.spec.agent is not None:
            agent = found.spec.agent.get("name", "")
            raise ArgumentError(f"{self} has an agent ({agent}), which drives it; without spec.agent you may")
        self.check(found)
        return found

    def check(self, found: _DrivenEpisode) -> None:
        """Raise AlreadyFinished if the Episode has finished."""
        if found.status.state == "Finished":
            text = f": {found.status.message}" if found.status.message else ""
            raise AlreadyFinished(f"{self} has finished ({found.status.reason}){text}", found.status.result)

    async def read(self) -> _DrivenEpisode:
        """The current Episode."""
        try:
            return await self._client.get(EPISODES, self.name, namespace=self.namespace, decode=_DrivenEpisode)
        except ApiError as error:
            raise self._explained(error) from error

    async def _secret(self, episode: _DrivenEpisode) -> _Secret | None:
        if episode.status.pod_name is None:
            return None
        name = driver_secret_name(episode.status.pod_name, episode.metadata.uid)
        try:
            return await self._client.get(SECRETS, name, namespace=self.namespace, decode=_Secret)
        except NotFound:
            return None
        except ApiError as error:
            raise self._explained(error) from error

    def _explained(self, error: ApiError) -> DgymError:
        if isinstance(error, NotFound):
            return ArgumentError(error.message)
        if isinstance(error, Forbidden):
            return AccessRefused(f"{error.message}; {_RIGHTS} in namespace {self.namespace}")
        return InfrastructureError(f"the cluster does not answer for {self}: {error}")

    def __str__(self) -> str:
        return f"Episode {self.namespace}/{self.name}"


class DirectRoute(Route):
    """The route to the sidecar's address. If a request gets no response, the Episode may have finished."""

    def __init__(
        self, lookup: _Lookup, episode: _DrivenEpisode, access: ClusterAccess, url: str, resources: AsyncExitStack
    ) -> None:
        super().__init__(url)
        self._access = access
        self._lookup = lookup
        self._driven = episode
        self._resources = resources
        self._checked = 0.0

    async def check(self, status: int | None = None, answer: bytes = b"") -> bool:
        """Whether a failed request may be repeated.

        Raises:
            EpisodeOver: The Episode has finished, or is another Episode or attempt.
        """
        if time.monotonic() - self._checked >= _CHECK_SECONDS:
            self._checked = time.monotonic()
            try:
                found = await self._lookup.read()
            except (ArgumentError, InfrastructureError):
                # The Episode was deleted, or the cluster is unreachable: the request is repeated until its time limit
                # ends.
                return await super().check(status, answer)
            if found.metadata.uid != self._driven.metadata.uid or found.status.attempt != self._driven.status.attempt:
                raise EpisodeOver(f"{self._lookup} was replaced by another Episode, or has a new attempt")
            self._lookup.check(found)
        return await super().check(status, answer)

    async def close(self) -> None:
        """Close the connections to the API server."""
        await self._resources.aclose()


class ProxyRoute(DirectRoute):
    """The route through the API server, which uses the header ``Authorization`` itself."""

    authorization = PROXIED_AUTHORIZATION_HEADER

    def __init__(
        self, lookup: _Lookup, episode: _DrivenEpisode, access: ClusterAccess, url: str, resources: AsyncExitStack
    ) -> None:
        pod = f"{episode.status.pod_name}:{urlsplit(url).port or 80}"
        super().__init__(lookup, episode, access, url, resources)
        self.url = f"{access.server}{PODS.url(lookup.namespace, pod)}/proxy"
        self._expired = float("-inf")

    async def options(self) -> dict[str, Any]:
        """The credentials and the certificate authority of the cluster."""
        access = self._access
        header = await access.credentials.header()
        return {
            "headers": {"Authorization": header} if header else {},
            "ssl": access.tls if access.tls is not None else True,
            "server_hostname": access.server_hostname,
            "proxy": access.proxy,
        }

    async def check(self, status: int | None = None, answer: bytes = b"") -> bool:
        """Whether a failed request may be repeated.

        Raises:
            AccessRefused: The API server refused the request.
            EpisodeOver: The Episode has finished, or is another Episode or attempt.
        """
        if status == 401 and time.monotonic() - self._expired >= _REFRESH_SECONDS:
            self._expired = time.monotonic()
            self._access.credentials.expire()
            return True
        if status == 403:
            raise AccessRefused(f"{_message(answer)}; {_RIGHTS} in namespace {self._lookup.namespace}")
        # The pod may be gone before the status of the Episode shows the end.
        return await super().check(status, answer) or status in (404, 500)


def _message(answer: bytes) -> str:
    try:
        return str(msgspec.json.decode(answer)["message"])
    except (*DECODE_ERRORS, LookupError, TypeError):
        return "the API server refuses the proxy to the pod"
