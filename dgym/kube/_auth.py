"""The address of the API server and the credentials for it.

They come from a kubeconfig, which is found as kubectl finds it, or from the pod's service account.

Only this module imports the package ``kubernetes``. Its kubeconfig loader supports exec plugins and OIDC. The import
takes a second and 27 MB, so it happens only if there is a kubeconfig. A service account is three files, which this
module reads itself.
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
"""Interval between two reads of a token file. A rotated token stays valid for some minutes."""
_REFRESH_SECONDS = 60.0
"""Interval between two fetches of credentials from a plugin or an identity provider."""


class AccessError(DgymError):
    """The kubeconfig or its context does not exist, or the credentials cannot be read."""


class Credentials:
    """The source of the Authorization header. This base class holds a fixed header or none; subclasses renew theirs."""

    def __init__(self, header: str | None = None) -> None:
        self._header = header

    async def header(self) -> str | None:
        """Return the current value of the header, or None without a header (a client certificate may be used)."""
        return self._header

    def expire(self) -> None:
        """Renew the header before the next request, because the server refused the current one."""


class ClusterAccess(msgspec.Struct, frozen=True, kw_only=True):
    """An API server and the credentials for it.

    Attributes:
        server: URL without a trailing slash.
        credentials: Source of the Authorization header.
        context: Name of the kubeconfig's context; ``in-cluster`` for a service account.
        tls: None for plain HTTP.
        server_hostname: Name to check the server's certificate against, if it differs from the URL's host.
        proxy: URL of an HTTP proxy.
        namespace: Default namespace of the context or of the pod.
        in_cluster: True if the access comes from this pod's service account.
    """

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
        """Return the header with the newest token."""
        if self._clock() - self._checked >= _REREAD_SECONDS:
            await asyncio.to_thread(self._read)
        return self._header

    def expire(self) -> None:
        """Read the file at the next request, even if its modification time has not changed."""
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
    """A header that is fetched again every minute, from an exec plugin or an OIDC provider."""

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
        """Return the header. If it is due to be fetched, one caller fetches it and the others wait."""
        async with self._lock:
            if self._clock() - self._fetched >= _REFRESH_SECONDS:
                self._header = await self._fetch()
                self._fetched = self._clock()
            return self._header

    def expire(self) -> None:
        """Fetch the header again at the next request."""
        self._fetched = float("-inf")


async def load_access(
    kubeconfig: Path | None = None, context: str | None = None, *, service_account: Path = SERVICE_ACCOUNT
) -> ClusterAccess:
    """Return the access from a kubeconfig, or from the pod's service account if a kubeconfig does not exist.

    Args:
        kubeconfig: The file. Default: the files in ``KUBECONFIG``, else ``~/.kube/config``.
        context: A context of the kubeconfig. Default: its current context.
        service_account: Directory of the pod's service account. It is used only without the other two arguments.

    Raises:
        AccessError: Neither exists, or the access cannot be used.
    """
    paths = [kubeconfig] if kubeconfig is not None else _kubeconfigs()
    if any(path.exists() for path in paths):
        return await _from_kubeconfig(os.pathsep.join(map(str, paths)), context)
    if kubeconfig is None and context is None and (service_account / "token").exists():
        return _from_service_account(service_account)
    places = " and ".join(map(str, paths))
    raise AccessError(f"no cluster is configured: {places} not found; set KUBECONFIG to the file of your cluster")


def _kubeconfigs() -> list[Path]:
    variable = os.environ.get("KUBECONFIG", "")
    return [Path(path).expanduser() for path in (variable or "~/.kube/config").split(os.pathsep) if path]


def _from_service_account(directory: Path) -> ClusterAccess:
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "")
    if not host or not port:
        raise AccessError("the service account of this pod cannot be used: KUBERNETES_SERVICE_HOST and _PORT are unset")
    namespace = directory / "namespace"
    try:
        return ClusterAccess(
            server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
            credentials=TokenFile(directory / "token"),
            context="in-cluster",
            in_cluster=True,
            tls=_tls_context(ca_file=str(directory / "ca.crt")),
            namespace=namespace.read_text(encoding="ascii").strip() if namespace.exists() else "default",
        )
    except OSError as error:
        raise AccessError(f"the service account of this pod cannot be used: {error}") from error


async def _from_kubeconfig(path: str, context: str | None) -> ClusterAccess:
    from kubernetes.aio import client, config

    _check_context(path, context)
    settings = client.Configuration()
    try:
        loader: Any = await config.load_kube_config(path, context, settings, persist_config=False)  # type: ignore[no-untyped-call]
        server = str(settings.host).rstrip("/")
        tls = _tls_context(settings.ssl_ca_cert, settings.cert_file, settings.key_file, verify=settings.verify_ssl)
    except Exception as error:  # exec plugins and identity providers may raise any exception
        raise AccessError(f"the kubeconfig {path} cannot be used: {error}") from error
    current = loader.current_context
    return ClusterAccess(
        server=server,
        credentials=_credentials(loader, settings.api_key.get("BearerToken")),
        context=str(current["name"]),
        tls=tls if server.startswith("https") else None,
        server_hostname=settings.tls_server_name,
        proxy=settings.proxy,
        namespace=current["context"].get("namespace") or "default",
    )


def _check_context(path: str, context: str | None) -> None:
    """Raise an AccessError that lists the existing contexts, if ``context`` is not one of them."""
    from kubernetes.aio import config

    try:
        contexts, _ = config.list_kube_config_contexts(path)  # type: ignore[no-untyped-call]
    except config.ConfigException as error:
        if context is None:
            raise AccessError(f"the kubeconfig {path} cannot be used: {error}; choose one with --context") from error
        return
    except Exception as error:  # a file that is not a kubeconfig may make the loader raise any exception
        raise AccessError(f"{path} is not a readable kubeconfig: {error}") from error
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
        except Exception as error:  # exec plugins and identity providers may raise any exception
            name = loader.current_context["name"]
            raise AccessError(f"the credentials of context '{name}' cannot be read: {error}") from error
        return getattr(loader, "token", header)

    return RefreshedCredentials(header, fetch)


def _tls_context(
    ca_file: str | None, cert_file: str | None = None, key_file: str | None = None, *, verify: bool = True
) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=ca_file)
    # Python 3.13 and newer require an extension that the certificate authorities of Kubernetes do not set.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if cert_file:
        context.load_cert_chain(cert_file, keyfile=key_file)
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
