"""Decodes and checks the chart's values that the operator receives as JSON. The functions are pure.

They are ``namespaces`` (the policies of namespaces), ``agents.pools``, ``sandboxes.resources`` and
``sandboxes.imageMirrors``.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec

from dgym.api import Resources, parse_quantity

_PLACE = " - at `$."
_WEIGHT = "give a whole number from 1 to 1000; with weight 3 a namespace gets three times the slots of weight 1"
_BOUND = "give a whole number, or remove the field for no limit"
_LIST = "give a list of names, in which * matches any text"
_POOL_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,18}[a-z0-9])?")
# The memory limit is equal to the limit that the runner enforces for programs of a task without a limit. Disk has a
# limit, because a program that fills the node's disk causes the eviction of other pods. Disk does not have a request,
# because the pod could not be scheduled to nodes that do not report ephemeral storage.
SANDBOX = Resources(
    requests={"cpu": "100m", "memory": "256Mi", "ephemeral-storage": "0"},
    limits={"memory": "2Gi", "ephemeral-storage": "10Gi"},
)
VERIFIER = Resources(requests={"cpu": "10m", "memory": "64Mi", "ephemeral-storage": "0"})
"""The verifier is idle until the sandbox has terminated. Its limits are those of the sandbox."""
_BOUNDED = ("memory", "ephemeral-storage")
_DEFAULT_REGISTRY = "docker.io"
_REGISTRY = re.compile(r"[a-z0-9.-]+(:[0-9]{1,5})?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*", re.IGNORECASE)

T = TypeVar("T")
Weight = Annotated[int, msgspec.Meta(ge=1, le=1000)]
Bound = Annotated[int, msgspec.Meta(ge=0, le=10**12)]
Patterns = Annotated[
    tuple[Annotated[str, msgspec.Meta(min_length=1, max_length=512)], ...], msgspec.Meta(max_length=1000)
]


class Allowed(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Values that the Episodes of a namespace may request, as patterns. ``*`` matches any text. None allows all values.

    Attributes:
        annotations: Keys in ``podOverrides.annotations``.
        labels: Keys in ``podOverrides.labels``.
        tolerations: Keys in ``podOverrides.tolerations``. A toleration without a key requires ``*``.
        runtime_class_names: Names in ``podOverrides.runtimeClassName``, in addition to the installation's default.
        pod_templates: Names in ``podTemplate``, in addition to the default.
        queue_names: Names in ``queueName``.
        images: Images of tasks, in addition to the default.
        models: Names in ``agent.model``.
    """

    annotations: Patterns = ()
    labels: Patterns = ()
    tolerations: Patterns = ()
    runtime_class_names: Patterns = ()
    pod_templates: Patterns | None = None
    queue_names: Patterns | None = None
    images: Patterns | None = None
    models: Patterns | None = None


class Limits(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The highest numbers that an Episode of a namespace may request. None: the limits of the API.

    Attributes:
        priority: Highest allowed ``spec.priority``.
        max_steps: Highest allowed ``spec.agent.maxSteps``.
        token_budget: Highest allowed ``spec.agent.tokenBudget``. An agent with a model must then set this field.
        active_deadline_seconds: Highest allowed ``spec.activeDeadlineSeconds``.
    """

    priority: Annotated[int, msgspec.Meta(ge=-(10**9), le=10**9)] | None = None
    max_steps: Bound | None = None
    token_budget: Bound | None = None
    active_deadline_seconds: Bound | None = None


class NamespacePolicy(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Limits on what one namespace may use.

    Attributes:
        weight: Weight of its share of scarce slots, relative to the other waiting namespaces.
        max_active: Maximum number of its active episodes. None: no limit.
        allowed: Values that its Episodes may request.
        limits: Highest numbers that its Episodes may request.
    """

    weight: Weight = 1
    max_active: Bound | None = None
    allowed: Allowed = Allowed()
    limits: Limits = Limits()


class NamespacePolicies(msgspec.Struct, frozen=True, kw_only=True):
    """The policies of all namespaces. A policy in ``overrides`` replaces ``defaults``."""

    defaults: NamespacePolicy = NamespacePolicy()
    overrides: Mapping[str, NamespacePolicy] = {}

    def of(self, namespace: str) -> NamespacePolicy:
        """Return the policy of the namespace."""
        return self.overrides.get(namespace, self.defaults)

    def place(self, namespace: str, name: str) -> str:
        """Return the path of this field of the namespace's policy in the chart's values."""
        return (
            f"namespaces.overrides.{namespace}.{name}" if namespace in self.overrides else f"namespaces.defaults.{name}"
        )


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    defaults: dict[str, Any] = {}
    overrides: dict[str, dict[str, Any] | None] = {}


def _decode(where: str, text: str, kind: type[T], remedy: str) -> T:
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError as error:
        raise ValueError(f"{where}: {error}; {remedy}") from None
    except msgspec.DecodeError as error:
        raise ValueError(f"{where}: not JSON: {error}; {remedy}") from None


def decode_policies(text: str) -> NamespacePolicies:
    """Decode a JSON document with ``defaults`` and ``overrides``. Overrides inherit missing fields from ``defaults``.

    Raises:
        ValueError: The document is invalid. The message contains the field, the value and the remedy.
    """
    remedy = "it has the fields defaults and overrides, each a mapping"
    document = _decode("namespaces", text or "{}", _Document, remedy)
    defaults = _convert("namespaces.defaults", document.defaults)
    overrides = {
        name: _convert(f"namespaces.overrides.{name}", _over(document.defaults, own or {}))
        for name, own in document.overrides.items()
    }
    return NamespacePolicies(defaults=defaults, overrides=overrides)


def _over(below: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Merge the fields of both at any depth. Fields of ``own`` take precedence."""
    merged = {**below, **own}
    for name in below.keys() & own.keys():
        if isinstance(below[name], dict) and isinstance(own[name], dict):
            merged[name] = _over(below[name], own[name])
    return merged


def _convert(where: str, fields: dict[str, Any]) -> NamespacePolicy:
    try:
        return msgspec.convert(fields, NamespacePolicy)
    except msgspec.ValidationError as error:
        what, _, place = str(error).partition(_PLACE)
        path = [name for name in place.rstrip("`").partition("[")[0].split(".") if name]
        kind: Any = {"allowed": Allowed, "limits": Limits}.get(path[0] if path else "", NamespacePolicy)
        names = [each.encode_name for each in msgspec.structs.fields(kind)]
        value: Any = fields
        for name in path:
            value = value[name]
        if not path or path[-1] not in names:
            raise ValueError(f"{'.'.join([where, *path])}: {what}; its fields are {', '.join(names)}") from None
        remedy = _LIST if kind is Allowed else _WEIGHT if path[-1] == "weight" else _BOUND
        raise ValueError(f"{'.'.join([where, *path])}: {what}, got {value!r}; {remedy}") from None


class AgentPodPool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The agent pods with the label ``dgym.dev/pool: NAME``, and the namespaces that only these agent pods serve."""

    name: str
    namespaces: tuple[str, ...]


class AgentPodPools(msgspec.Struct, frozen=True, kw_only=True):
    """The pools of agent pods by namespace. If it is empty, one pool with the name "" serves all namespaces."""

    by_namespace: Mapping[str, str] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all pools."""
        return tuple(sorted(set(self.by_namespace.values()))) or ("",)

    def of(self, namespace: str) -> str | None:
        """Return the name of the pool that serves the namespace, or None if it is not in any pool."""
        return self.by_namespace.get(namespace) if self.by_namespace else ""

    def __str__(self) -> str:
        return ", ".join(self.names)


def decode_pools(text: str) -> AgentPodPools:
    """Decode a JSON list of mappings with ``name`` and ``namespaces``.

    Raises:
        ValueError: The list is invalid. The message contains the field, the value and the remedy.
    """
    pools = _decode("agents.pools", text or "[]", list[AgentPodPool], "each has the fields name and namespaces, a list")
    found: dict[str, str] = {}
    for index, pool in enumerate(pools):
        _check_pool(f"agents.pools[{index}]", pool, [each.name for each in pools[:index]])
        for namespace in pool.namespaces:
            if namespace in found:
                raise ValueError(
                    f"agents.pools: namespace {namespace} is in the pools {found[namespace]} and {pool.name}; "
                    "a namespace can be in one pool only: remove it from one"
                )
            found[namespace] = pool.name
    return AgentPodPools(by_namespace=found)


def _check_pool(where: str, pool: AgentPodPool, before: list[str]) -> None:
    if not _POOL_NAME.fullmatch(pool.name):
        raise ValueError(
            f"{where}.name: {pool.name!r} is not a valid name; use at most 20 of a-z, 0-9 and -, without - at the ends"
        )
    if pool.name in before:
        raise ValueError(f"{where}.name: {pool.name!r} is the name of another pool; give each pool its own name")
    if not pool.namespaces:
        raise ValueError(f"{where}.namespaces: is empty; name the namespaces that pool {pool.name} serves")


class DefaultResources(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Default resources of the sandbox, the verifier and the sidecar."""

    sandbox: Resources = SANDBOX
    verifier: Resources = VERIFIER
    sidecar: Resources = Resources(requests={"cpu": "20m", "memory": "64Mi"}, limits={"memory": "256Mi"})


def decode_resources(text: str) -> DefaultResources:
    """Decode the resources from a JSON document.

    Raises:
        ValueError: The document is invalid. The message contains the field and the remedy.
    """
    found = _decode("sandboxes.resources", text or "{}", DefaultResources, "give quantities such as 500m, 2 or 4Gi")
    if found.verifier.limits:
        raise ValueError("sandboxes.resources.verifier.limits: the verifier has the limits of the sandbox; remove them")
    for name in _BOUNDED:
        if name not in found.sandbox.limits:
            raise ValueError(f"sandboxes.resources.sandbox.limits.{name} is missing; a sandbox needs this limit")
    for part, each in (("sandbox", found.sandbox), ("sidecar", found.sidecar)):
        for name in each.requests.keys() & each.limits.keys():
            if parse_quantity(each.requests[name]) > parse_quantity(each.limits[name]):
                raise ValueError(f"sandboxes.resources.{part}: the request of {name} is above its limit; change one")
    return found


def decode_mirrors(text: str) -> dict[str, str]:
    """Decode the mirrors from a JSON object.

    Raises:
        ValueError: The text is not such an object. The message contains the entry and the remedy.
    """
    mirrors = _decode("imageMirrors", text or "{}", dict[str, str], "give registries and their mirrors, as names")
    for place in (part for pair in mirrors.items() for part in pair):
        if not _REGISTRY.fullmatch(place):
            remedy = "give a host, optionally with a port and a path, such as mirror.example:5000/docker"
            raise ValueError(f"imageMirrors: {place!r} is not a valid registry; {remedy}")
    return mirrors


def mirrored(image: str, mirrors: Mapping[str, str]) -> str:
    """Return the image at its mirror, or the image itself without a mirror. The longest matching prefix is used.

    Names are resolved as in container runtimes: ``python`` is ``docker.io/library/python``.
    """
    name = _full_name(image)
    places = [place for place in mirrors if name.startswith(f"{place}/")]
    if not places:
        return image
    place = max(places, key=len)
    return f"{mirrors[place]}{name[len(place) :]}"


def _full_name(image: str) -> str:
    first, slash, _ = image.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return image
    return f"{_DEFAULT_REGISTRY}/{image}" if slash else f"{_DEFAULT_REGISTRY}/library/{image}"
