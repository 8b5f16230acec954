"""Pools of agents: the value ``agents.pools`` of the chart, decoded and checked at the operator's start. Pure."""

import re
from collections.abc import Mapping

import msgspec

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,18}[a-z0-9])?")


class AgentPool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The agents with the label ``dgym.dev/pool: NAME``, and the namespaces whose episodes they alone serve."""

    name: str
    namespaces: tuple[str, ...]


class AgentPools(msgspec.Struct, frozen=True, kw_only=True):
    """The pool of every namespace; without pools all agents serve all namespaces, as the pool of the name ""."""

    by_namespace: Mapping[str, str] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all pools."""
        return tuple(sorted(set(self.by_namespace.values()))) or ("",)

    def of(self, namespace: str) -> str | None:
        """The pool that serves the namespace; None: there are pools, and none does."""
        return self.by_namespace.get(namespace) if self.by_namespace else ""

    def __str__(self) -> str:
        return ", ".join(self.names)


def decode_pools(text: str) -> AgentPools:
    """The pools of a JSON list of mappings with ``name`` and ``namespaces``.

    Raises:
        ValueError: The list is wrong; the message names the field, the value and the remedy.
    """
    try:
        pools = msgspec.json.decode(text or "[]", type=list[AgentPool])
    except msgspec.ValidationError as error:
        raise ValueError(f"agents.pools: {error}; each has the fields name and namespaces, a list") from None
    except msgspec.DecodeError as error:
        raise ValueError(f"agents.pools: not JSON: {error}") from None
    found: dict[str, str] = {}
    for index, pool in enumerate(pools):
        _check(f"agents.pools[{index}]", pool, [each.name for each in pools[:index]])
        for namespace in pool.namespaces:
            if namespace in found:
                raise ValueError(
                    f"agents.pools: namespace {namespace} is in the pools {found[namespace]} and {pool.name}; "
                    "a namespace has one pool: remove it from the other"
                )
            found[namespace] = pool.name
    return AgentPools(by_namespace=found)


def _check(where: str, pool: AgentPool, before: list[str]) -> None:
    if not _NAME.fullmatch(pool.name):
        raise ValueError(f"{where}.name: {pool.name!r} is no name; give at most 20 of a-z, 0-9 and, between them, -")
    if pool.name in before:
        raise ValueError(f"{where}.name: {pool.name!r} is the name of another pool; give each its own")
    if not pool.namespaces:
        raise ValueError(f"{where}.namespaces: is empty; name the namespaces that pool {pool.name} serves")
