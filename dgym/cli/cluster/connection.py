"""Connect to a cluster, find objects by name, follow their changes, and explain errors of the API server.

Views of Episodes and EpisodeSets have the fields that commands decode. A table shows them.
"""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import UTC, datetime
from random import Random
from typing import ClassVar, TypeVar

import msgspec
from rich.table import Table

from dgym.api import GROUP, SET_LABEL, TREATMENTS, Treatment, label_value
from dgym.cli.options import ClusterPlace
from dgym.cli.output import UsageFailure, add_row, table
from dgym.errors import DgymError, ManifestError, nearest
from dgym.kube import (
    DEBUG_TASKS,
    EPISODE_SETS,
    EPISODES,
    SANDBOX_POOLS,
    AccessError,
    ApiError,
    BadRequest,
    Client,
    ClusterAccess,
    ConnectionLost,
    Forbidden,
    InformerStore,
    Invalid,
    NotFound,
    Object,
    Reflector,
    Resource,
    SystemClock,
    Unauthorized,
    UnreadableAnswer,
    WatchSettings,
    load_access,
)
from dgym.pace import Pace
from dgym.wire import Outcome

_NUMBERS = frozenset({"Score", "Steps", "Age"})


class ObjectView(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base class of views. Unknown fields are ignored, so that an older command can show objects of a newer cluster."""


class Meta(ObjectView, frozen=True, kw_only=True):
    """The decoded fields of ``metadata``."""

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: datetime | None = None
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)


class ConditionView(ObjectView, frozen=True, kw_only=True):
    """A condition of the status."""

    type: str
    status: str
    reason: str = ""
    message: str = ""


class _ObjectStatus(ObjectView, frozen=True, kw_only=True):
    conditions: tuple[ConditionView, ...] = ()
    reason: str = ""

    def has(self, type_: str) -> bool:
        """Return True if the condition of that type has the status ``True``."""
        return any(each.type == type_ and each.status == "True" for each in self.conditions)


class _Object(ObjectView, frozen=True, kw_only=True):
    metadata: Meta
    status: _ObjectStatus = _ObjectStatus()

    @property
    def finished(self) -> bool:
        """True if the condition ``Finished`` is true."""
        return self.status.has("Finished")


class EpisodeViewStatus(_ObjectStatus, frozen=True, kw_only=True):
    """The decoded fields of an Episode's status."""

    message: str = ""
    steps: int = 0
    outcome: Outcome | None = None
    attempt: int = 0
    pod_name: str | None = None


class EpisodeView(_Object, frozen=True, kw_only=True):
    """An Episode."""

    kind: ClassVar[str] = "Episode"

    status: EpisodeViewStatus = EpisodeViewStatus()

    @property
    def failed(self) -> bool:
        """True if the episode ended with a failure, which does not count for the agent."""
        return self.finished and TREATMENTS.get(self.status.reason) is not Treatment.COUNTED

    @property
    def state(self) -> str:
        """The reason of the status, or ``Pending``."""
        return self.status.reason or "Pending"

    @property
    def score(self) -> str:
        """Passed tests and tests that count, such as ``3/4``. Empty without an outcome."""
        outcome = self.status.outcome
        return f"{outcome.score}/{outcome.max_score}" if outcome is not None else ""

    @property
    def steps(self) -> str:
        """Number of steps, of the outcome or up to now. Empty before the first."""
        outcome = self.status.outcome
        return str(outcome.steps) if outcome is not None else str(self.status.steps or "")

    @property
    def message(self) -> str:
        """First line of the message that explains the reason. Empty if the episode did not fail."""
        if self.finished and not self.failed:
            return ""
        texts = [self.status.outcome.message] if self.status.outcome is not None else []
        texts += [self.status.message]
        texts += [each.message for each in self.status.conditions if each.reason == self.status.reason]
        return next((text.strip().partition("\n")[0] for text in texts if text.strip()), "")

    @property
    def style(self) -> str:
        """Colour of the reason in a table."""
        if not self.finished:
            return "cyan" if self.status.reason == "Running" else ""
        return "red" if self.failed else "green" if self.status.reason == "Resolved" else "yellow"


class ArmView(ObjectView, frozen=True, kw_only=True):
    """An arm of a set."""

    name: str


class SetViewSpec(ObjectView, frozen=True, kw_only=True):
    """The decoded fields of an EpisodeSet's spec."""

    cancel: bool = False
    arms: tuple[ArmView, ...] = ()


class FailedView(ObjectView, frozen=True, kw_only=True):
    """The failed episodes of one reason."""

    reason: str
    indexes: str = ""

    @property
    def count(self) -> int:
        """Number of indexes in ``indexes``, such as 4 for ``0-2,7``."""
        intervals = (item.partition("-") for item in self.indexes.split(",") if item)
        return sum(int(last or first) - int(first) + 1 for first, _, last in intervals)


class SetViewStatus(_ObjectStatus, frozen=True, kw_only=True):
    """The decoded fields of an EpisodeSet's status."""

    completed_indexes: str = ""
    total: int = 0
    active: int = 0
    resolved: int = 0
    unresolved: int = 0
    failed: int = 0
    failed_indexes: tuple[FailedView, ...] = ()
    cancelled: int = 0
    waiting: str = ""
    start_time: datetime | None = None
    completion_time: datetime | None = None
    pass_at_1: str = msgspec.field(default="", name="passAt1")
    resolved_by_arm: str = ""


class SetView(_Object, frozen=True, kw_only=True):
    """An EpisodeSet."""

    kind: ClassVar[str] = "EpisodeSet"

    spec: SetViewSpec = SetViewSpec()
    status: SetViewStatus = SetViewStatus()

    @property
    def state(self) -> str:
        """Reason of the condition ``Finished``, or the current state."""
        if self.finished:
            return next((each.reason for each in self.status.conditions if each.type == "Finished"), "") or "Finished"
        if self.spec.cancel:
            return "Cancelling"
        return self.status.reason or ("Suspended" if self.status.has("Suspended") else "Pending")

    @property
    def score(self) -> str:
        """Resolved episodes and all episodes, such as ``8/10``."""
        return f"{self.status.resolved}/{self.status.total}" if self.status.total else ""

    @property
    def steps(self) -> str:
        """Empty, because only episodes have steps."""
        return ""

    @property
    def message(self) -> str:
        """Counts and rates of the set's episodes."""
        status = self.status
        if not status.total:
            return ""
        rate = f"; pass@1 {status.pass_at_1}" if status.pass_at_1 else ""
        arms = f"; by arm: {status.resolved_by_arm}" if status.resolved_by_arm else ""
        waiting = f"; waiting for {status.waiting}" if status.waiting else ""
        cancelled = f"; {status.cancelled} cancelled" if status.cancelled else ""
        return f"{self.pace.done}/{status.total} finished: {self.pace}{rate}{arms}{waiting}{cancelled}"

    @property
    def pace(self) -> Pace:
        """Progress of the set. The rate is the mean since its start time."""
        status = self.status
        end = status.completion_time or datetime.now(UTC)
        done = status.resolved + status.unresolved + status.failed + status.cancelled
        return Pace(
            total=status.total,
            resolved=status.resolved,
            unresolved=status.unresolved,
            failed=status.failed,
            active=status.active,
            finished_lately=done,
            seconds=0.0 if status.start_time is None else (end - status.start_time).total_seconds(),
        )

    @property
    def style(self) -> str:
        """Colour of the state in a table."""
        return ("red" if self.status.failed else "green") if self.finished else ""


def age(since: datetime | None, now: datetime | None = None) -> str:
    """Format the time since ``since`` as kubectl does: 45s, 12m, 3h20m, 2d. Empty for None."""
    if since is None:
        return ""
    seconds = max(0, int(((now or datetime.now(UTC)) - since).total_seconds()))
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if minutes < 2:
        return f"{seconds}s"
    if hours < 3:
        return f"{minutes}m"
    if days < 2:
        return f"{hours}h{minutes % 60}m" if hours < 10 and minutes % 60 else f"{hours}h"
    return f"{days}d"


def table_of(views: Iterable[EpisodeView | SetView], *, everywhere: bool = False) -> Table:
    """Return the table of ``dgym get``. With ``everywhere``, its first column is the namespace."""
    first = ["Namespace"] if everywhere else []
    drawn = table(
        [*first, "Name", "Reason", "Score", "Steps", "Age", "Message"], numbers=_NUMBERS, breaking=("Message",)
    )
    for view in views:
        metadata = view.metadata
        name = metadata.name if isinstance(view, EpisodeView) else f"episodeset/{metadata.name}"
        cells = [name, view.state, view.score, view.steps, age(metadata.creation_timestamp), view.message]
        first = [metadata.namespace] if everywhere else []
        add_row(drawn, [*first, *cells], styled=1 + everywhere, style=view.style)
    return drawn


T = TypeVar("T", bound=Object)

RESOURCES = {resource.kind: resource for resource in (EPISODES, EPISODE_SETS, DEBUG_TASKS, SANDBOX_POOLS)}
VIEWS: dict[str, type[EpisodeView] | type[SetView]] = {"Episode": EpisodeView, "EpisodeSet": SetView}

_PREFIXES = {
    **dict.fromkeys(("dge", "episode", "episodes", "episode.dgym.dev", "episodes.dgym.dev"), "Episode"),
    **dict.fromkeys(("dgs", "episodeset", "episodesets", "episodeset.dgym.dev", "episodesets.dgym.dev"), "EpisodeSet"),
}


@contextlib.asynccontextmanager
async def connect(place: ClusterPlace) -> AsyncIterator[Client]:
    """Yield a client of the cluster. ``client.namespace`` is the namespace of the command.

    Raises:
        DgymError: The context does not exist, or the cluster cannot be reached or refuses a request of the block.
    """
    access = await load_access(context=place.context)
    if place.namespace:
        access = msgspec.structs.replace(access, namespace=place.namespace)
    rng = Random()  # noqa: S311 - not for secrets
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
    """Return the objects of these names, in the same order.

    ``dge/NAME`` or ``dgs/NAME`` selects the kind if an Episode and an EpisodeSet have the same name.

    Raises:
        UsageFailure: A name does not exist. The message suggests the nearest name.
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
) -> AsyncIterator[InformerStore[T]]:
    """Yield a store that a watch keeps current. ``changed`` is set after the first list and after every change.

    Raises:
        BaseExceptionGroup: It contains an ``ApiError``, because the API server refused a request or did not answer for
            minutes.
    """
    clock = SystemClock()
    store: InformerStore[T] = InformerStore(clock)
    store.subscribe(lambda _change: changed.set())
    reflector = Reflector(
        client,
        resource,
        decode=view,
        store=store,
        clock=clock,
        random=Random(),  # noqa: S311 - not for secrets
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
    """Return the label selector for the Episodes of a set."""
    return f"{SET_LABEL}={label_value(set_name)}"


def _first(error: BaseException) -> BaseException:
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


def _split_name(text: str) -> tuple[str | None, str]:
    """Return the kind, or None without a prefix, and the name."""
    prefix, slash, name = text.partition("/")
    if not slash:
        return None, text
    if prefix.lower() not in _PREFIXES:
        raise UsageFailure(
            f"{text}: this command does not accept the kind '{prefix}'; write episode/{name} or episodeset/{name}"
        )
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
    remedy = f"did you mean '{guess}'?" if guess else "dgym get lists the objects, -n chooses another namespace"
    return f"{text}: no {what} of that name in namespace {client.namespace}; {remedy}"


INSTALL = "helm install dgym charts/dgym -n dgym-system --create-namespace"
_NAMESPACE = re.compile(r"/namespaces/([^/]+)/")
_SHOWN_CHARACTERS = 500


class ClusterError(DgymError):
    """The cluster cannot be reached, or refuses a request."""


def explained(error: ApiError, access: ClusterAccess) -> DgymError:
    """Return the exception for an API error: ``ManifestError`` if the manifest was refused, else ``ClusterError``."""
    text = _explained(error, access) or error.message[:_SHOWN_CHARACTERS]
    text = text or f"HTTP status {error.status} to {error.method} {error.path}"
    return ManifestError(text) if isinstance(error, BadRequest | Invalid) else ClusterError(text)


def _explained(error: ApiError, access: ClusterAccess) -> str:
    message, name = error.message, error.details.name
    match error:
        case ConnectionLost():
            return (
                f"the cluster of context '{access.context}' cannot be reached at {access.server}: {message};"
                " check that it runs (kubectl cluster-info), or choose another with --context"
            )
        case UnreadableAnswer():
            return f"{access.server} is not a Kubernetes API server ({message}); see the kubeconfig"
        case Unauthorized() if isinstance(error.__cause__, AccessError):
            return message
        case Unauthorized():
            return (
                f"the cluster rejects the credentials of context '{access.context}'; log in again, or choose a"
                " --context"
            )
        case Forbidden() if "is forbidden: User" in message:
            role = "view" if error.method == "GET" else "edit"
            namespace = _NAMESPACE.search(error.path)
            scope = f"in namespace {namespace[1]}" if namespace else "in all namespaces"
            return (
                f"{message}; ask an administrator of the cluster for the ClusterRole '{role}' {scope}, or choose"
                " a namespace of yours"
            )
        case NotFound() if f"/{GROUP}/" in error.path and not name:
            # An error without a name is about a missing kind, not about a missing object.
            return f"the cluster of context '{access.context}' has no resources of {GROUP}; install dgym: {INSTALL}"
        case NotFound() if error.details.kind == "namespaces":
            return f"{message}; create it (kubectl create namespace {name}), or choose another with -n"
    return ""
