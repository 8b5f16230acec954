"""Which cluster, and who we are to it: by a kubeconfig, as kubectl finds it, or by the pod's service account.

The only module of the command line that imports ``kubernetes``, whose readers know exec plugins, OIDC and the rest; it
is imported when a command needs a cluster, since it takes a while.
"""

import os
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from dgym.cli.cluster.errors import ClusterError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """All that a client has to know. ``authorization`` gives the header's value, and a new one when asked again."""

    server: str
    context: str
    namespace: str
    authorization: Callable[[], Awaitable[str | None]]
    tls: ssl.SSLContext | None = None
    server_hostname: str | None = None
    proxy: str | None = None


async def load_access(context: str | None = None, namespace: str | None = None) -> Access:
    """Access by ``KUBECONFIG`` or ``~/.kube/config``, else by the service account of the pod we run in.

    Raises:
        ClusterError: There is none, or it cannot be read.
    """
    paths = _kubeconfigs()
    if any(path.exists() for path in paths):
        access = await _from_kubeconfig(os.pathsep.join(map(str, paths)), context)
    elif context is None and (SERVICE_ACCOUNT / "token").exists():
        access = _from_service_account()
    else:
        places = " and ".join(map(str, paths))
        raise ClusterError(
            f"no cluster is configured: there is no {places}; set KUBECONFIG to the file of your cluster"
        )
    return msgspec.structs.replace(access, namespace=namespace) if namespace else access


def _kubeconfigs() -> list[Path]:
    variable = os.environ.get("KUBECONFIG", "")
    return [Path(path).expanduser() for path in (variable or "~/.kube/config").split(os.pathsep) if path]


async def _from_kubeconfig(path: str, context: str | None) -> Access:
    from kubernetes.aio import client, config

    _check_context(path, context)
    settings = client.Configuration()
    try:
        loader: Any = await config.load_kube_config(path, context, settings, persist_config=False)  # type: ignore[no-untyped-call]
    except Exception as error:  # exec plugins and identity providers raise whatever they like
        raise ClusterError(f"the kubeconfig {path} cannot be used: {error}") from error
    current = loader.current_context

    async def authorization() -> str | None:
        try:
            await loader._load_authentication()
        except Exception as error:  # as above
            raise ClusterError(f"the credentials of context '{current['name']}' cannot be read: {error}") from error
        header: str | None = getattr(loader, "token", None)
        return header

    return Access(
        server=str(settings.host).rstrip("/"),
        context=str(current["name"]),
        namespace=current["context"].get("namespace") or "default",
        authorization=authorization,
        tls=_tls(settings) if str(settings.host).startswith("https") else None,
        server_hostname=settings.tls_server_name,
        proxy=settings.proxy,
    )


def _check_context(path: str, context: str | None) -> None:
    """Say which contexts there are, where none or an unknown one is chosen."""
    from kubernetes.aio import config

    from dgym.problems import nearest

    try:
        contexts, _ = config.list_kube_config_contexts(path)  # type: ignore[no-untyped-call]
    except config.ConfigException as error:
        if context is None:
            raise ClusterError(f"the kubeconfig {path} cannot be used: {error}; choose one with --context") from error
        return
    except Exception as error:  # whatever a file holds that is no kubeconfig
        raise ClusterError(f"{path} is no kubeconfig that can be read: {error}") from error
    names = [str(each["name"]) for each in contexts]
    if context is not None and context not in names:
        guess = nearest(context, names)
        remedy = f"did you mean '{guess}'?" if guess else f"there are: {', '.join(names)}"
        raise ClusterError(f"--context {context}: no such context in {path}; {remedy}")


def _from_service_account() -> Access:
    from kubernetes.aio import client, config

    settings = client.Configuration()
    try:
        config.load_incluster_config(client_configuration=settings)  # type: ignore[no-untyped-call]
        namespace = (SERVICE_ACCOUNT / "namespace").read_text("ascii").strip()
    except (config.ConfigException, OSError) as error:
        raise ClusterError(f"the service account of this pod cannot be used: {error}") from error

    async def authorization() -> str | None:
        return f"Bearer {(SERVICE_ACCOUNT / 'token').read_text('ascii').strip()}"

    return Access(
        server=str(settings.host).rstrip("/"),
        context="in-cluster",
        namespace=namespace,
        authorization=authorization,
        tls=_tls(settings),
    )


def _tls(settings: Any) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=settings.ssl_ca_cert)
    # Certificate authorities made by Kubernetes' own tools leave out an extension that newer Pythons insist on.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if settings.cert_file:
        context.load_cert_chain(settings.cert_file, keyfile=settings.key_file)
    if not settings.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
