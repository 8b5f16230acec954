"""What each namespace may use: the value ``namespaces`` of the chart, decoded and checked at the operator's start."""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

_PLACE = " - at `$."
_WEIGHT = "give a whole number from 1 to 1000; a namespace of weight 3 gets three slots for one of weight 1"
_BOUND = "give a whole number; leave it out for no bound"
_LIST = "give a list of names, in which * stands for any text"

Weight = Annotated[int, msgspec.Meta(ge=1, le=1000)]
Bound = Annotated[int, msgspec.Meta(ge=0, le=10**12)]
Patterns = Annotated[
    tuple[Annotated[str, msgspec.Meta(min_length=1, max_length=512)], ...], msgspec.Meta(max_length=1000)
]


class Allowed(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """What the Episodes of a namespace may ask for: names, in which ``*`` stands for any text. None: anything.

    Attributes:
        annotations: Keys in ``podOverrides.annotations``.
        labels: Keys in ``podOverrides.labels``.
        tolerations: Keys in ``podOverrides.tolerations``; a toleration without a key needs ``*``.
        runtime_class_names: Names in ``podOverrides.runtimeClassName``, besides the installation's own.
        pod_templates: Names in ``podTemplate``, besides the default one.
        queue_names: Names in ``queueName``.
        images: Images of tasks, besides the default one.
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
    """The highest numbers that an Episode of a namespace may ask for. None: those of the API.

    Attributes:
        priority: Of ``spec.priority``.
        max_steps: Of ``spec.agent.maxSteps``.
        token_budget: Of ``spec.agent.tokenBudget``, which an agent with a model must then have.
        active_deadline_seconds: Of ``spec.activeDeadlineSeconds``.
    """

    priority: Annotated[int, msgspec.Meta(ge=-(10**9), le=10**9)] | None = None
    max_steps: Bound | None = None
    token_budget: Bound | None = None
    active_deadline_seconds: Bound | None = None


class NamespacePolicy(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """What one namespace may use.

    Attributes:
        weight: Of its share where slots are scarce, relative to the weights of the others that wait.
        max_active: How many of its episodes may be active at a time; None: no bound.
        allowed: What its Episodes may ask for.
        limits: The highest numbers in them.
    """

    weight: Weight = 1
    max_active: Bound | None = None
    allowed: Allowed = Allowed()
    limits: Limits = Limits()


class NamespacePolicies(msgspec.Struct, frozen=True, kw_only=True):
    """The policy of every namespace: ``defaults``, or the namespace's own one of ``overrides``."""

    defaults: NamespacePolicy = NamespacePolicy()
    overrides: Mapping[str, NamespacePolicy] = {}

    def of(self, namespace: str) -> NamespacePolicy:
        """The policy of the namespace."""
        return self.overrides.get(namespace, self.defaults)

    def place(self, namespace: str, name: str) -> str:
        """Where the chart's values give this field of the namespace's policy."""
        return (
            f"namespaces.overrides.{namespace}.{name}" if namespace in self.overrides else f"namespaces.defaults.{name}"
        )


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    defaults: dict[str, Any] = {}
    overrides: dict[str, dict[str, Any] | None] = {}


def decode_policies(text: str) -> NamespacePolicies:
    """The policies of a JSON document with ``defaults`` and ``overrides``; an override inherits what it leaves out.

    Raises:
        ValueError: The document is wrong; the message names the field, the value and the remedy.
    """
    try:
        document = msgspec.json.decode(text or "{}", type=_Document)
    except msgspec.ValidationError as error:
        raise ValueError(f"namespaces: {error}; it has the fields defaults and overrides, each a mapping") from None
    except msgspec.DecodeError as error:
        raise ValueError(f"namespaces: not JSON: {error}") from None
    defaults = _convert("namespaces.defaults", document.defaults)
    overrides = {
        name: _convert(f"namespaces.overrides.{name}", _over(document.defaults, own or {}))
        for name, own in document.overrides.items()
    }
    return NamespacePolicies(defaults=defaults, overrides=overrides)


def _over(below: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """The fields of both, at any depth; ``own`` ones take precedence."""
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
