"""Explains why a pod is refused: by the policy of its namespace, by a LimitRange or by a ResourceQuota.

RBAC roles control which users may create Episodes. The policy of the namespace, in the chart's values, limits what
Episodes may request. If a LimitRange or a ResourceQuota refuses a pod, the message contains the default and the fields
to change. The functions are pure: they read the Episode, its task and the settings of the operator.
"""

import re
from collections.abc import Container, Iterable, Iterator, Mapping

import msgspec

from dgym.api import DEFAULT_STEPS, GROUP, AgentSpec, DebugTask, Episode, parse_quantity
from dgym_operator.chart_values import Allowed, DefaultResources, Limits
from dgym_operator.settings import Settings

_NEVER_INHERITED = (
    f"{GROUP}/",
    "kueue.x-k8s.io/",
    "kubectl.kubernetes.io/",
    "container.apparmor.security.beta.kubernetes.io/",
    "container.seccomp.security.alpha.kubernetes.io/",
    "seccomp.security.alpha.kubernetes.io/",
)
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


def find_refusal_by_policy(episode: Episode, task: DebugTask, settings: Settings) -> str | None:
    """Return the first refusal by the policy of the namespace, with field, value and remedy. None if all is allowed."""
    return next(_refusals(episode, task, settings), None)


def find_refusal_of_pod(episode: Episode, task: DebugTask, settings: Settings) -> str | None:
    """Return the first refusal by the policy of the namespace, without checking the numeric limits of the Episode."""
    return next(_pod_refusals(episode, task, settings), None)


def _refusals(episode: Episode, task: DebugTask, settings: Settings) -> Iterator[str]:
    yield from _pod_refusals(episode, task, settings)
    namespace = episode.metadata.namespace or ""
    policies = settings.namespace_policies
    for field, name, number, limit in _numbers(episode, policies.of(namespace).limits):
        if limit is None or (number is not None and number <= limit):
            continue
        given = "is missing, and" if number is None else f"is {number}, and"
        yield (
            f"{field}: {given} may be {limit} at most in namespace {namespace}; give a lower number, or let the "
            f"administrator raise {policies.place(namespace, f'limits.{name}')} in the chart's values"
        )


def _pod_refusals(episode: Episode, task: DebugTask, settings: Settings) -> Iterator[str]:
    namespace = episode.metadata.namespace or ""
    policies = settings.namespace_policies
    policy = policies.of(namespace)
    for field, name, value, patterns in _requests(episode, task, settings, policy.allowed):
        if patterns is not None and not matches_any(value, patterns):
            yield (
                f"{field}: {value!r} is not allowed in namespace {namespace}; remove it, or let the administrator add "
                f"it to {policies.place(namespace, f'allowed.{name}')} in the chart's values"
            )


def _requests(
    episode: Episode, task: DebugTask, settings: Settings, allowed: Allowed
) -> Iterator[tuple[str, str, str, Iterable[str] | None]]:
    """Yield field, name of the list in the policy, requested value, and the allowed patterns (None: all)."""
    spec, overrides = episode.spec, episode.spec.pod_overrides
    for key in overrides.annotations:
        yield "spec.podOverrides.annotations", "annotations", key, allowed.annotations
    for key in overrides.labels:
        yield "spec.podOverrides.labels", "labels", key, allowed.labels
    for toleration in overrides.tolerations:
        yield "spec.podOverrides.tolerations", "tolerations", toleration.key or "", allowed.tolerations
    runtime = overrides.runtime_class_name
    if runtime is not None and runtime != settings.runtime_class_name:
        yield "spec.podOverrides.runtimeClassName", "runtimeClassNames", runtime, allowed.runtime_class_names
    if spec.queue_name is not None:
        yield "spec.queueName", "queueNames", spec.queue_name, allowed.queue_names
    owner = "spec" if spec.pod_template else f"DebugTask {task.metadata.name}: spec"
    template = spec.pod_template or task.spec.pod_template
    if template is not None and template != settings.default_pod_template:
        yield f"{owner}.podTemplate", "podTemplates", template, allowed.pod_templates
    if task.spec.image is not None and task.spec.image != settings.sandbox_image:
        where = "spec.task" if spec.task is not None else f"DebugTask {task.metadata.name}: spec"
        yield f"{where}.image", "images", task.spec.image, allowed.images
    if spec.agent is not None and spec.agent.model is not None:
        yield "spec.agent.model", "models", spec.agent.model, allowed.models


def _numbers(episode: Episode, limits: Limits) -> Iterator[tuple[str, str, int | None, int | None]]:
    """Yield field, name of the limit in the policy, requested number, and the limit (None: no limit)."""
    spec = episode.spec
    yield "spec.priority", "priority", spec.priority, limits.priority
    yield (
        "spec.activeDeadlineSeconds",
        "activeDeadlineSeconds",
        spec.active_deadline_seconds,
        limits.active_deadline_seconds,
    )
    if spec.agent is None:
        return
    yield "spec.agent.maxSteps", "maxSteps", with_step_limit(spec.agent, limits).max_steps, limits.max_steps
    if spec.agent.model is not None or spec.agent.token_budget is not None:
        yield "spec.agent.tokenBudget", "tokenBudget", spec.agent.token_budget, limits.token_budget


def with_step_limit(agent: AgentSpec, limits: Limits) -> AgentSpec:
    """Return the agent with the default number of steps reduced to the limit of the namespace.

    A number of steps other than the default is not changed.
    """
    if limits.max_steps is None or agent.max_steps != DEFAULT_STEPS or agent.max_steps <= limits.max_steps:
        return agent
    return msgspec.structs.replace(agent, max_steps=max(1, limits.max_steps))


def inherited(given: Mapping[str, str], patterns: Iterable[str], *, taken: Container[str] = ()) -> dict[str, str]:
    """Return the labels or annotations that an object passes on to its pods. Keys of dgym and Kueue are excluded."""
    return {
        key: value
        for key, value in given.items()
        if matches_any(key, patterns) and key not in taken and not key.startswith(_NEVER_INHERITED)
    }


def matches_any(text: str, patterns: Iterable[str]) -> bool:
    """True if a pattern matches the whole text. ``*`` matches any characters."""
    return any(re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text, re.DOTALL) for pattern in patterns)


def is_limit_range(message: str) -> bool:
    """True if the message of the API server shows that a LimitRange refused the pod."""
    return _LIMIT_RANGE.search(message) is not None


def explained(message: str, episode: Episode, task: DebugTask, defaults: DefaultResources) -> str:
    """Return the message, with a remedy if a LimitRange refuses the pod or the quota is smaller than one pod."""
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
    """Yield side and name of each refused resource. A quota counts only if one pod requests more than all of it."""
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
    """Return side and name of a quota's resource, such as ``limits.cpu``, ``requests.cpu`` or ``cpu``."""
    side, _, rest = name.partition(".")
    return (side, rest) if side in _SIDES else ("requests", name)


def _defaults(
    fields: list[tuple[str, str]], episode: Episode, task: DebugTask, defaults: DefaultResources
) -> Iterator[str]:
    """Yield the defaults that apply to these fields, because neither the task nor the Episode sets them."""
    given = (task.spec.resources, episode.spec.pod_overrides.resources)
    for side, name in dict.fromkeys(fields):
        quantities = getattr(defaults.sandbox, side)
        if name in quantities and not any(name in getattr(each, side) for each in given):
            yield f"{side}.{name} {quantities[name]}"
