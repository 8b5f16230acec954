"""What each namespace may use: the value ``namespaces`` of the chart, decoded and checked at the operator's start."""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

_PLACE = " - at `$."
_REMEDIES = {
    "weight": "give a whole number from 1 to 1000; a namespace of weight 3 gets three slots for one of weight 1",
    "maxActive": "give a whole number; leave it out for no bound",
}

Weight = Annotated[int, msgspec.Meta(ge=1, le=1000)]
Bound = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]


class NamespacePolicy(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """What one namespace may use.

    Attributes:
        weight: Of its share where slots are scarce, relative to the weights of the others that wait.
        max_active: How many of its episodes may be active at a time; None: no bound.
    """

    weight: Weight = 1
    max_active: Bound | None = None


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
        name: _convert(f"namespaces.overrides.{name}", {**document.defaults, **(own or {})})
        for name, own in document.overrides.items()
    }
    return NamespacePolicies(defaults=defaults, overrides=overrides)


def _convert(where: str, fields: dict[str, Any]) -> NamespacePolicy:
    try:
        return msgspec.convert(fields, NamespacePolicy)
    except msgspec.ValidationError as error:
        what, _, place = str(error).partition(_PLACE)
        name = place.rstrip("`").partition("[")[0]
        if not name:
            names = ", ".join(each.encode_name for each in msgspec.structs.fields(NamespacePolicy))
            raise ValueError(f"{where}: {what}; its fields are {names}") from None
        raise ValueError(f"{where}.{name}: {what}, got {fields[name]!r}; {_REMEDIES[name]}") from None
