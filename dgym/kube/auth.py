"""The API server and the credentials for it: from a kubeconfig, as kubectl finds it, or from the pod's service account.

The only module that imports ``kubernetes``, whose reader of kubeconfigs supports exec plugins, OIDC and the rest, and
only where there is a kubeconfig: the import takes a second and 27 MB, and a service account is three files.
"""

import asyncio
import os
import ssl
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from dgym.errors import DgymError, nearest

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_REREAD_SECONDS = 5.0
"""A token file is read again after so long; a rotated token overlaps with its successor by minutes."""
_REFRESH_SECONDS = 60.0
"""Credentials of plugins and identity providers are fetched again after so long."""


class AccessError(DgymError):
    """No kubeconfig, no such context in it, or credentials that cannot be read; the message says which."""


class Credentials:
    """The source of the Authorization header: here a token or password that does not change, or none."""

    def __init__(self, header: str | None = None) -> None:
        self._header = header

    async def header(self) -> str | None:
        """The header's value now; None: none, a client certificate may do."""
        return self._header

    def expire(self) -> None:
        """Get another value for the next request, where there is one: the server refused the last one."""


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """An API server and the credentials for it. ``tls`` is None for plain HTTP; ``in_cluster``: of this pod."""

    server: str
    credentials: Credentials
    context: str = ""
    tls: ssl.SSLContext | None = None
    server_hostname: str | None = None
    proxy: str | None = None
    namespace: str = "default"
    in_cluster: bool = False


class TokenFile(Credentials):
    """A token in a file, which the kubelet replaces every hour or so."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._path = path
        self._clock = clock
        self._stamp: tuple[int, int] | None = None
        self._checked = float("-inf")

    async def header(self) -> str | None:
        """The header with the newest token."""
        if self._clock() - self._checked >= _REREAD_SECONDS:
            await asyncio.to_thread(self._read)
        return self._header

    def expire(self) -> None:
        """Read the file at the next request, whatever its time stamp says."""
        self._checked, self._stamp = float("-inf"), None

    def _read(self) -> None:
        try:
            found = self._path.stat()
            stamp = (found.st_mtime_ns, found.st_ino)
            if stamp != self._stamp:
                self._header = f"Bearer {self._path.read_text(encoding='ascii').strip()}"
                self._stamp = stamp
        except OSError as error:
            if not self._header:
                raise AccessError(f"the token {self._path} cannot be read: {error.strerror}") from error
        self._checked = self._clock()


class RefreshedCredentials(Credentials):
    """A header that is fetched again before it grows old: exec plugins, OIDC."""

    def __init__(
        self,
        header: str | None,
        fetch: Callable[[], Awaitable[str | None]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(header)
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
    """Access by this kubeconfig; else by ``KUBECONFIG`` or ``~/.kube/config``; else by the pod's service account.

    Raises:
        AccessError: There is none, or it cannot be used.
    """
    paths = [kubeconfig] if kubeconfig is not None else _kubeconfigs()
    if any(path.exists() for path in paths):
        return await _from_kubeconfig(os.pathsep.join(map(str, paths)), context)
    if kubeconfig is None and context is None and (service_account / "token").exists():
        return _from_service_account(service_account)
    places = " and ".join(map(str, paths))
    raise AccessError(f"no cluster is configured: there is no {places}; set KUBECONFIG to the file of your cluster")


def _kubeconfigs() -> list[Path]:
    variable = os.environ.get("KUBECONFIG", "")
    return [Path(path).expanduser() for path in (variable or "~/.kube/config").split(os.pathsep) if path]


def _from_service_account(directory: Path) -> Access:
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "")
    if not host or not port:
        raise AccessError("the service account of this pod cannot be used: KUBERNETES_SERVICE_HOST and _PORT are unset")
    namespace = directory / "namespace"
    try:
        return Access(
            server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
            credentials=TokenFile(directory / "token"),
            context="in-cluster",
            in_cluster=True,
            tls=_tls_context(ca_file=str(directory / "ca.crt")),
            namespace=namespace.read_text(encoding="ascii").strip() if namespace.exists() else "default",
        )
    except OSError as error:
        raise AccessError(f"the service account of this pod cannot be used: {error}") from error


async def _from_kubeconfig(path: str, context: str | None) -> Access:
    from kubernetes.aio import client, config

    _check_context(path, context)
    settings = client.Configuration()
    try:
        loader: Any = await config.load_kube_config(path, context, settings, persist_config=False)  # type: ignore[no-untyped-call]
        server = str(settings.host).rstrip("/")
        tls = _tls_context(settings.ssl_ca_cert, settings.cert_file, settings.key_file, verify=settings.verify_ssl)
    except Exception as error:  # exec plugins and identity providers raise what they like
        raise AccessError(f"the kubeconfig {path} cannot be used: {error}") from error
    current = loader.current_context
    return Access(
        server=server,
        credentials=_credentials(loader, settings.api_key.get("BearerToken")),
        context=str(current["name"]),
        tls=tls if server.startswith("https") else None,
        server_hostname=settings.tls_server_name,
        proxy=settings.proxy,
        namespace=current["context"].get("namespace") or "default",
    )


def _check_context(path: str, context: str | None) -> None:
    """Name the contexts there are, where none or an unknown one is chosen."""
    from kubernetes.aio import config

    try:
        contexts, _ = config.list_kube_config_contexts(path)  # type: ignore[no-untyped-call]
    except config.ConfigException as error:
        if context is None:
            raise AccessError(f"the kubeconfig {path} cannot be used: {error}; choose one with --context") from error
        return
    except Exception as error:  # a file that is no kubeconfig may hold anything
        raise AccessError(f"{path} is no kubeconfig that can be read: {error}") from error
    names = [str(each["name"]) for each in contexts]
    if context is not None and context not in names:
        guess = nearest(context, names)
        remedy = f"did you mean '{guess}'?" if guess else f"there are: {', '.join(names)}"
        raise AccessError(f"--context {context}: no such context in {path}; {remedy}")


def _credentials(loader: Any, header: str | None) -> Credentials:
    user: Any = getattr(loader, "_user", None)
    value: dict[str, Any] = getattr(user, "value", None) or {}
    if value.get("tokenFile") and not value.get("token"):
        base = Path(user.path).parent if getattr(user, "path", None) else Path()
        return TokenFile(base / value["tokenFile"])
    if "exec" not in value and "auth-provider" not in value:
        return Credentials(header)

    async def fetch() -> str | None:
        try:
            await loader._load_authentication()
        except Exception as error:  # as above
            name = loader.current_context["name"]
            raise AccessError(f"the credentials of context '{name}' cannot be read: {error}") from error
        return getattr(loader, "token", header)

    return RefreshedCredentials(header, fetch)


def _tls_context(
    ca_file: str | None, cert_file: str | None = None, key_file: str | None = None, *, verify: bool = True
) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=ca_file)
    # Kubernetes' own certificate authorities leave out an extension that newer Pythons insist on.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if cert_file:
        context.load_cert_chain(cert_file, keyfile=key_file)
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
