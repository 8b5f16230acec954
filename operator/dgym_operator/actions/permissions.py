"""What an Episode asks for and its namespace does not allow.

Roles decide who may create Episodes; the policy of the namespace, in the chart's values, what these may ask for.
Pure: the Episode and its task as they were read for the pod, and the settings of the operator.
"""

import re
from collections.abc import Container, Iterable, Iterator, Mapping

import msgspec

from dgym.api import DEFAULT_STEPS, GROUP, AgentSpec, DebugTask, Episode
from dgym_operator.policies import Allowed, Limits
from dgym_operator.settings import Settings

_NEVER_INHERITED = (
    f"{GROUP}/",
    "kueue.x-k8s.io/",
    "kubectl.kubernetes.io/",
    "container.apparmor.security.beta.kubernetes.io/",
    "container.seccomp.security.alpha.kubernetes.io/",
    "seccomp.security.alpha.kubernetes.io/",
)


def find_refusal_by_policy(episode: Episode, task: DebugTask, settings: Settings) -> str | None:
    """The first request that the policy of the namespace refuses: field, value and remedy; None: all are allowed."""
    return next(_refusals(episode, task, settings), None)


def find_refusal_of_pod(episode: Episode, task: DebugTask, settings: Settings) -> str | None:
    """The first request for the pod that the policy of the namespace refuses, whatever numbers the Episode has."""
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
    """Field, name of the list, value, and the list."""
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
    """Field, name of the limit, number, and the limit."""
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
    """The agent; the default number of steps, which Episodes that name none have, is lowered to the limit."""
    if limits.max_steps is None or agent.max_steps != DEFAULT_STEPS or agent.max_steps <= limits.max_steps:
        return agent
    return msgspec.structs.replace(agent, max_steps=max(1, limits.max_steps))


def inherited(given: Mapping[str, str], patterns: Iterable[str], *, taken: Container[str] = ()) -> dict[str, str]:
    """The labels or annotations that an object passes on to its pods. Keys of dgym and Kueue are left out."""
    return {
        key: value
        for key, value in given.items()
        if matches_any(key, patterns) and key not in taken and not key.startswith(_NEVER_INHERITED)
    }


def matches_any(text: str, patterns: Iterable[str]) -> bool:
    """Whether one of the patterns is the whole text; ``*`` stands for any characters."""
    return any(re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text, re.DOTALL) for pattern in patterns)
