"""The connection of a command to a cluster, the objects of the names given, and the cluster's errors explained."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Iterable, Sequence
from random import Random
from typing import TypeVar

import msgspec

from dgym.api import GROUP, SET_LABEL, label_value
from dgym.cli.cluster.views import EpisodeView, SetView
from dgym.cli.output import UsageFailure
from dgym.errors import DgymError, ManifestError, nearest
from dgym.kube import (
    DEBUG_TASKS,
    EPISODE_SETS,
    EPISODES,
    SANDBOX_POOLS,
    Access,
    AccessError,
    ApiError,
    BadRequest,
    Client,
    ConnectionLost,
    Forbidden,
    Invalid,
    NotFound,
    Object,
    Reflector,
    Resource,
    Store,
    SystemClock,
    Unauthorized,
    UnreadableAnswer,
    WatchSettings,
    load_access,
)

T = TypeVar("T", bound=Object)

RESOURCES = {resource.kind: resource for resource in (EPISODES, EPISODE_SETS, DEBUG_TASKS, SANDBOX_POOLS)}
VIEWS: dict[str, type[EpisodeView] | type[SetView]] = {"Episode": EpisodeView, "EpisodeSet": SetView}

_PREFIXES = {
    **dict.fromkeys(("dge", "episode", "episodes", "episode.dgym.dev", "episodes.dgym.dev"), "Episode"),
    **dict.fromkeys(("dgs", "episodeset", "episodesets", "episodeset.dgym.dev", "episodesets.dgym.dev"), "EpisodeSet"),
}


@contextlib.asynccontextmanager
async def connect(context: str | None, namespace: str | None) -> AsyncIterator[Client]:
    """A client of the cluster of that context; ``client.namespace`` is the namespace that the command works in.

    Raises:
        DgymError: There is no such cluster, or it refuses a request of the block.
    """
    access = await load_access(context=context)
    if namespace:
        access = msgspec.structs.replace(access, namespace=namespace)
    rng = Random()  # noqa: S311 - spreads retries, hides nothing
    client = Client(access, clock=SystemClock(), random=rng, qps=200, burst=1000, resend=False, user_agent="dgym")
    async with client:
        try:
            yield client
        except (ApiError, BaseExceptionGroup) as error:
            first = _first(error)
            raise (explained(first, access) if isinstance(first, ApiError) else first) from error


async def find_all(
    client: Client, names: Sequence[str], *, kinds: Iterable[str] = ("Episode", "EpisodeSet")
) -> list[EpisodeView | SetView]:
    """The objects of these names; ``dgs/NAME`` or ``dge/NAME`` where an Episode and an EpisodeSet share the name.

    Raises:
        UsageFailure: There is none of that name; the nearest one is named.
    """
    found = [await _find(client, name, tuple(kinds)) for name in names]
    missing = [name for name, each in zip(names, found, strict=True) if each is None]
    if missing:
        raise UsageFailure("\n".join([await _unknown(client, name, tuple(kinds)) for name in missing]))
    return [each for each in found if each is not None]


_SETTINGS = WatchSettings(tries=8)


@contextlib.asynccontextmanager
async def follow(
    client: Client,
    resource: Resource,
    view: type[T],
    changed: asyncio.Event,
    *,
    namespace: str | None,
    label_selector: str = "",
    field_selector: str = "",
) -> AsyncIterator[Store[T]]:
    """A store that a watch keeps current; ``changed`` is set after the first list and after every change.

    Raises:
        BaseExceptionGroup: With an ``ApiError``: the API server did not answer for minutes, or refuses.
    """
    clock = SystemClock()
    store: Store[T] = Store(clock)
    store.subscribe(lambda _change: changed.set())
    reflector = Reflector(
        client,
        resource,
        decode=view,
        store=store,
        clock=clock,
        random=Random(),  # noqa: S311 - spreads retries, hides nothing
        namespace=namespace,
        label_selector=label_selector,
        field_selector=field_selector,
        settings=_SETTINGS,
    )
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(reflector.run())
        await reflector.synced.wait()
        changed.set()
        yield store
        watching.cancel()


def selector_of_children(set_name: str) -> str:
    """Selects the Episodes of a set."""
    return f"{SET_LABEL}={label_value(set_name)}"


def _first(error: BaseException) -> BaseException:
    """The first of several errors that were raised together."""
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


def _split_name(text: str) -> tuple[str | None, str]:
    """The kind, if one is given, and the name."""
    prefix, slash, name = text.partition("/")
    if not slash:
        return None, text
    if prefix.lower() not in _PREFIXES:
        raise UsageFailure(f"{text}: '{prefix}' is not a kind to name here; write episode/{name} or episodeset/{name}")
    return _PREFIXES[prefix.lower()], name


async def _find(client: Client, text: str, kinds: tuple[str, ...]) -> EpisodeView | SetView | None:
    wanted, name = _split_name(text)
    for kind in kinds:
        if wanted in (None, kind):
            try:
                return await client.get(RESOURCES[kind], name, namespace=client.namespace, decode=VIEWS[kind])
            except NotFound as error:
                if error.reason != "NotFound" or not name:
                    raise
    return None


async def _unknown(client: Client, text: str, kinds: tuple[str, ...]) -> str:
    wanted, name = _split_name(text)
    known: list[str] = []
    for kind in kinds:
        if wanted in (None, kind):
            items = await client.list(RESOURCES[kind], namespace=client.namespace, decode=VIEWS[kind])
            known += [item.metadata.name for item in items]
    what = " or ".join([wanted] if wanted else kinds)
    guess = nearest(name, known)
    remedy = f"did you mean '{guess}'?" if guess else "dgym get lists what is there, -n chooses another namespace"
    return f"{text}: no {what} of that name in namespace {client.namespace}; {remedy}"


INSTALL = "helm install dgym charts/dgym -n dgym-system --create-namespace"
_NAMESPACE = re.compile(r"/namespaces/([^/]+)/")
_SHOWN_CHARACTERS = 500


class ClusterError(DgymError):
    """The cluster cannot be reached, or refuses."""


def explained(error: ApiError, access: Access) -> DgymError:
    """The exception with which a command ends; ``ManifestError`` where the cluster refuses the manifest."""
    text = _explained(error, access) or error.message[:_SHOWN_CHARACTERS]
    text = text or f"HTTP status {error.status} to {error.method} {error.path}"
    return ManifestError(text) if isinstance(error, BadRequest | Invalid) else ClusterError(text)


def _explained(error: ApiError, access: Access) -> str:
    message, name = error.message, error.details.name
    match error:
        case ConnectionLost():
            return (
                f"the cluster of context '{access.context}' cannot be reached at {access.server}: {message};"
                " see whether it runs (kubectl cluster-info), or choose another with --context"
            )
        case UnreadableAnswer():
            return f"{access.server} is no Kubernetes API server ({message}); see the kubeconfig"
        case Unauthorized() if isinstance(error.__cause__, AccessError):
            return message
        case Unauthorized():
            return (
                f"the cluster does not take the credentials of context '{access.context}'; log in again, or choose a"
                " --context"
            )
        case Forbidden() if "is forbidden: User" in message:
            role = "view" if error.method == "GET" else "edit"
            namespace = _NAMESPACE.search(error.path)
            scope = f"in namespace {namespace[1]}" if namespace else "in all namespaces"
            return (
                f"{message}; ask whoever runs the cluster for the ClusterRole '{role}' {scope}, or choose"
                " a namespace of yours"
            )
        case NotFound() if f"/{GROUP}/" in error.path and not name:
            # Without a name the kind is missing, not an object.
            return f"the cluster of context '{access.context}' has no resources of {GROUP}; install dgym: {INSTALL}"
        case NotFound() if error.details.kind == "namespaces":
            return f"{message}; make it (kubectl create namespace {name}), or choose another with -n"
    return ""
