"""Who we are to which API server: from a kubeconfig, or from the pod we run in.

The only module that imports ``kubernetes``: its readers of kubeconfigs know exec plugins, OIDC and the rest. They are
asked once for the address and the certificates, and again whenever a token may have expired.
"""

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

import msgspec
import yaml

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_LOOK_SECONDS = 5.0
"""A token file is looked at again after so long; a rotated token overlaps with its successor by minutes."""
_REFRESH_SECONDS = 60.0
"""A plugin that does not say how long its token is good for is asked again after so long."""


class AccessError(Exception):
    """No kubeconfig, no such context in it, or credentials that cannot be read; the message says which."""


class Credentials(Protocol):
    """Where the Authorization header comes from."""

    async def header(self) -> str | None:
        """The header's value now; None: a client certificate, or nothing, has to do."""

    def expire(self) -> None:
        """The server did not take the last one: get another."""


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """All that a client has to know of its API server. ``tls`` is None for plain HTTP."""

    server: str
    credentials: Credentials
    tls: ssl.SSLContext | None = None
    server_hostname: str | None = None
    proxy: str | None = None
    namespace: str = "default"


class FixedCredentials:
    """A token or password that does not change, or none."""

    def __init__(self, header: str | None = None) -> None:
        self._header = header

    async def header(self) -> str | None:
        """The header's value."""
        return self._header

    def expire(self) -> None:
        """There is no other."""


class TokenFile:
    """A token that somebody else replaces from time to time: the kubelet does, every hour or so."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._stamp: tuple[int, int] | None = None
        self._looked = float("-inf")
        self._header = ""

    async def header(self) -> str | None:
        """The header with the newest token."""
        if self._clock() - self._looked >= _LOOK_SECONDS:
            await asyncio.to_thread(self._look)
        return self._header

    def expire(self) -> None:
        """Read it at the next request, whatever its time stamp says."""
        self._looked, self._stamp = float("-inf"), None

    def _look(self) -> None:
        try:
            found = self._path.stat()
            stamp = (found.st_mtime_ns, found.st_ino)
            if stamp != self._stamp:
                self._header = f"Bearer {self._path.read_text(encoding='ascii').strip()}"
                self._stamp = stamp
        except OSError as error:
            if not self._header:
                raise AccessError(f"the token {self._path} cannot be read: {error.strerror}") from error
        self._looked = self._clock()


class RefreshedCredentials:
    """A header that is fetched again before it grows old: exec plugins, OIDC."""

    def __init__(
        self,
        header: str | None,
        fetch: Callable[[], Awaitable[str | None]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._header = header
        self._fetch = fetch
        self._clock = clock
        self._fetched = clock()
        self._lock = asyncio.Lock()

    async def header(self) -> str | None:
        """The header; one caller fetches, the others wait for it."""
        async with self._lock:
            if self._clock() - self._fetched >= _REFRESH_SECONDS:
                self._header = await self._fetch()
                self._fetched = self._clock()
            return self._header

    def expire(self) -> None:
        """Fetch another at the next request."""
        self._fetched = float("-inf")


async def load_access(
    kubeconfig: Path | None = None, context: str | None = None, *, service_account: Path = SERVICE_ACCOUNT
) -> Access:
    """Access by this kubeconfig; by the service account when in a pod; else by the kubeconfig kubectl would use.

    Raises:
        AccessError: There is none, or it cannot be read.
    """
    if kubeconfig is None and context is None and (service_account / "token").exists():
        return _in_cluster(service_account)
    return await _from_kubeconfig(kubeconfig, context)


def _in_cluster(service_account: Path) -> Access:
    from kubernetes.aio import client, config
    from kubernetes.aio.config.incluster_config import InClusterConfigLoader

    configuration = client.Configuration()
    token, namespace = service_account / "token", service_account / "namespace"
    try:
        loader = InClusterConfigLoader(str(token), str(service_account / "ca.crt"))  # type: ignore[no-untyped-call]
        loader.load_and_set(configuration)  # type: ignore[no-untyped-call]
    except config.ConfigException as error:
        raise AccessError(f"the service account of this pod: {error}") from error
    return Access(
        server=str(configuration.host),
        credentials=TokenFile(token),
        tls=_tls_context(configuration),
        namespace=namespace.read_text(encoding="ascii").strip() if namespace.exists() else "default",
    )


async def _from_kubeconfig(kubeconfig: Path | None, context: str | None) -> Access:
    from kubernetes.aio import client, config

    configuration = client.Configuration()
    path = str(kubeconfig) if kubeconfig is not None else config.KUBE_CONFIG_DEFAULT_LOCATION
    try:
        loader = await config.load_kube_config(path, context, configuration, persist_config=False)  # type: ignore[no-untyped-call]
    except config.ConfigException as error:
        raise AccessError(f"{path}: {error}") from error
    except (OSError, TypeError, AttributeError, ValueError, yaml.YAMLError) as error:
        raise AccessError(f"{path} is no kubeconfig that can be read: {error}") from error
    return Access(
        server=str(configuration.host).rstrip("/"),
        credentials=_credentials(loader, configuration.api_key.get("BearerToken")),
        tls=_tls_context(configuration) if str(configuration.host).startswith("https") else None,
        server_hostname=configuration.tls_server_name,
        proxy=configuration.proxy,
        namespace=loader.current_context["context"].get("namespace") or "default",
    )


def _credentials(loader: Any, header: str | None) -> Credentials:
    user: Any = getattr(loader, "_user", None)
    value: dict[str, Any] = getattr(user, "value", None) or {}
    if value.get("tokenFile") and not value.get("token"):
        base = Path(user.path).parent if getattr(user, "path", None) else Path()
        return TokenFile(base / value["tokenFile"])
    if "exec" not in value and "auth-provider" not in value:
        return FixedCredentials(header)

    async def fetch() -> str | None:
        try:
            await loader._load_authentication()
        except Exception as error:  # plugins and providers raise whatever they like
            raise AccessError(f"the kubeconfig's credentials cannot be renewed: {error}") from error
        return getattr(loader, "token", header)

    return RefreshedCredentials(header, fetch)


def _tls_context(configuration: Any) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
    # Kubernetes' own certificate authorities leave out an extension that newer Pythons insist on.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, keyfile=configuration.key_file)
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
