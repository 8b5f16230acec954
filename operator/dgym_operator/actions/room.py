"""Refusals of a pod by a LimitRange or a ResourceQuota, explained: the default in the way, and the fields to change."""

import re
from collections.abc import Iterator

from dgym.api import DebugTask, Episode, parse_quantity
from dgym_operator.defaults import DefaultResources

_LIMIT_RANGE = re.compile(
    r"(?:maximum|minimum) (\S{1,253}) usage per (?:Container|Pod) is "
    r"|(\S{1,253}) max limit to request ratio per (?:Container|Pod) is "
)
_QUOTA = re.compile(
    r"exceeded quota: \S{1,253}, requested: (?P<requested>\S{1,4096}), used: \S{1,4096}, "
    r"limited: (?P<limited>\S{1,4096})"
)
_UNSPECIFIED = re.compile(r"must specify ([^\s:;]{1,4096})")
_SIDES = ("requests", "limits")


def is_limit_range(message: str) -> bool:
    """Whether a LimitRange has refused the pod."""
    return _LIMIT_RANGE.search(message) is not None


def explained(message: str, episode: Episode, task: DebugTask, defaults: DefaultResources) -> str:
    """The message with the remedy, if a LimitRange refuses the pod or the quota is smaller than one pod."""
    fields = list(_fields(message))
    if not fields:
        return message
    own = [*_defaults(fields, episode, task, defaults)]
    default = f"dgym's default for the sandbox is {', '.join(own)}; " if own else ""
    never = "the pod alone is more than the quota; " if _QUOTA.search(message) else ""
    return (
        f"{message}; {never}{default}set resources of DebugTask {task.metadata.name} or podOverrides.resources of the "
        "Episode, or let the administrator change sandboxes.resources in the chart's values"
    )


def _fields(message: str) -> Iterator[tuple[str, str]]:
    """Side and name of each refused resource. A quota counts only if one pod requests more than its whole."""
    for found in _LIMIT_RANGE.finditer(message):
        for side in _SIDES:
            yield side, found[1] or found[2]
    for found in _UNSPECIFIED.finditer(message):
        for each in found[1].split(","):
            yield _split(each)
    quota = _QUOTA.search(message)
    if quota is not None:
        limited = dict(_quantities(quota["limited"]))
        for name, requested in _quantities(quota["requested"]):
            if name in limited and parse_quantity(requested) > parse_quantity(limited[name]):
                yield _split(name)


def _quantities(text: str) -> Iterator[tuple[str, str]]:
    for item in text.split(","):
        name, _, quantity = item.partition("=")
        yield name, quantity


def _split(name: str) -> tuple[str, str]:
    """Side and name of a quota's resource: ``limits.cpu``, ``requests.cpu`` or ``cpu``."""
    side, _, rest = name.partition(".")
    return (side, rest) if side in _SIDES else ("requests", name)


def _defaults(
    fields: list[tuple[str, str]], episode: Episode, task: DebugTask, defaults: DefaultResources
) -> Iterator[str]:
    """The defaults in these fields: neither task nor Episode gives them."""
    given = (task.spec.resources, episode.spec.pod_overrides.resources)
    for side, name in dict.fromkeys(fields):
        quantities = getattr(defaults.sandbox, side)
        if name in quantities and not any(name in getattr(each, side) for each in given):
            yield f"{side}.{name} {quantities[name]}"
