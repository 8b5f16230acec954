"""The attempt for which a pod is rendered, and the template variables that are derived from it.

Variables are plain lists and mappings. They do not contain scoring, hidden files or solutions.
"""

import posixpath
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from dgym.api import (
    ARM_LABEL,
    ATTEMPT_LABEL,
    BENCHMARK_LABEL,
    EPISODE_LABEL,
    INDEX_LABEL,
    SAMPLE_LABEL,
    SET_LABEL,
    TASK_LABEL,
    DebugTaskSpec,
    PodOverrides,
    Resources,
    label_value,
    parse_quantity,
)
from dgym.errors import DgymError
from dgym.wire.http import Role, make_token, token_digest
from dgym_operator.chart_values import mirrored
from dgym_operator.settings import Settings

_NODE_LOST_SECONDS = 60
_NODE_LOST = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_OWN_LABELS = ("app.kubernetes.io/name", "app.kubernetes.io/component")
_OWN_PREFIX = f"{EPISODE_LABEL.partition('/')[0]}/"
# Annotations that change a pod's confinement in older clusters. Users who create Episodes must not change it.
_FORBIDDEN_ANNOTATIONS = (
    "container.apparmor.security.beta.kubernetes.io/",
    "container.seccomp.security.alpha.kubernetes.io/",
    "seccomp.security.alpha.kubernetes.io/",
)
_SYSTEM_DIRECTORIES = ("/", "/dev", "/etc", "/proc", "/run/dgym", "/sys")
"""Directories that cannot be the working directory, because a mount there would break the container."""
IMAGE = ("task", "image")
_OF_EPISODES = (EPISODE_LABEL, SET_LABEL, INDEX_LABEL, SAMPLE_LABEL, ARM_LABEL, TASK_LABEL, BENCHMARK_LABEL)


class PodContext(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of one episode.

    Attributes:
        name: Name of the pod, ``<episode>-<attempt>``.
        digests: SHA-256 of each role's token: ``prepare``, ``drive``, ``operate``.
        delivered: True if the repository is sent to the sidecar. False if the image contains it.
        overrides: Overrides of the Episode. They take precedence over the task.
        active_deadline_seconds: Deadline of the pod. It is longer than all other deadlines.
    """

    name: str
    namespace: str
    episode: str
    episode_uid: str
    attempt: int
    task: DebugTaskSpec
    delivered: bool
    digests: dict[str, str]
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    overrides: PodOverrides = PodOverrides()
    active_deadline_seconds: int
    settings: Settings


class TemplateError(DgymError):
    """A template is unknown or invalid, or its pod cannot run an episode.

    The message contains the template and, if known, the line.
    """


class InvalidOverride(TemplateError):
    """The episode or its task requests a setting that is not allowed for pods.

    The message contains the field and the remedy.
    """


def own_labels(context: PodContext) -> dict[str, str]:
    """Return the labels with which the controller, its policies and its metrics select the pod."""
    return {
        **context.labels,
        "app.kubernetes.io/name": "dgym",
        "app.kubernetes.io/component": "sandbox",
        EPISODE_LABEL: label_value(context.episode),
        ATTEMPT_LABEL: str(context.attempt),
    }


def template_variables(context: PodContext) -> dict[str, Any]:
    """Return the variables that a template may use.

    Raises:
        InvalidOverride: The episode or the task requests a setting that is not allowed for pods.
    """
    overrides, settings = context.overrides, context.settings
    _check_overrides(overrides)
    defaults = settings.default_resources
    sandbox = sandbox_resources(context.task.resources, overrides, defaults.sandbox)
    image = context.task.image
    return {
        "pod": _pod(context),
        "episode": {
            "name": context.episode,
            "uid": context.episode_uid,
            "attempt": context.attempt,
            "path": f"{context.namespace}/{context.episode}",
        },
        "task": {
            "image": mirrored(image, settings.image_mirrors) if image else settings.sandbox_image,
            "interpreter": context.task.interpreter,
            "workingDirectory": _working_directory(context.task),
            "delivered": context.delivered,
        },
        "sidecar": {"image": settings.sidecar_image, "logLevel": settings.log_level, "digests": dict(context.digests)},
        "images": {
            "pullPolicy": settings.image_pull_policy,
            "pullSecrets": [{"name": name} for name in settings.image_pull_secrets],
        },
        "resources": {
            "sandbox": as_manifest(sandbox),
            "verifier": as_manifest(verifier_resources(sandbox, defaults.verifier)),
            "sidecar": as_manifest(defaults.sidecar),
            "disk": sandbox.limits["ephemeral-storage"],
        },
    }


def blanks(variables: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the paths of variables that differ between pods and that most templates only write."""
    return [
        ("pod", "name"),
        ("episode", "name"),
        ("episode", "uid"),
        ("episode", "path"),
        IMAGE,
        *(("pod", "labels", name) for name in _OF_EPISODES if name in variables["pod"]["labels"]),
        *(("sidecar", "digests", role) for role in variables["sidecar"]["digests"]),
    ]


def _pod(context: PodContext) -> dict[str, Any]:
    overrides = context.overrides
    return {
        "name": context.name,
        "namespace": context.namespace,
        "labels": {**overrides.labels, **own_labels(context)},
        "annotations": {
            "kubectl.kubernetes.io/default-container": "sandbox",
            **context.annotations,
            **overrides.annotations,
        },
        "activeDeadlineSeconds": context.active_deadline_seconds,
        "nodeSelector": dict(overrides.node_selector),
        "tolerations": _tolerations(overrides),
        "runtimeClassName": overrides.runtime_class_name or context.settings.runtime_class_name or None,
        "readOnlyRootFilesystem": context.settings.read_only_root_filesystem,
    }


def _tolerations(overrides: PodOverrides) -> list[dict[str, Any]]:
    """Return the episode's tolerations, and tolerations that limit the wait for a lost node unless it sets them."""
    given: list[dict[str, Any]] = msgspec.to_builtins(overrides.tolerations)
    decided = {each.key for each in overrides.tolerations if each.effect in (None, "NoExecute")}
    of_lost_nodes = [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _NODE_LOST_SECONDS}
        for key in _NODE_LOST
        if key not in decided
    ]
    return [*given, *of_lost_nodes]


def _working_directory(task: DebugTaskSpec) -> str:
    path = posixpath.normpath("/" + task.working_directory.lstrip("/"))
    if path in _SYSTEM_DIRECTORIES or path.startswith("/run/dgym/"):
        raise InvalidOverride(f"workingDirectory: {path!r} is a directory of the system; put the repository elsewhere")
    if ":" in path:
        raise InvalidOverride(f"workingDirectory: {path!r} has a ':', which volumes do not allow; rename the directory")
    return path


def _check_overrides(overrides: PodOverrides) -> None:
    own = [key for key in overrides.labels if key.startswith(_OWN_PREFIX) or key in _OWN_LABELS]
    _refuse("labels", own, "is dgym's own")
    annotations = [key for key in overrides.annotations if key.startswith(_FORBIDDEN_ANNOTATIONS)]
    _refuse("annotations", annotations, "changes the pod's confinement")


def _refuse(field: str, keys: Iterable[str], why: str) -> None:
    for key in keys:
        raise InvalidOverride(f"podOverrides.{field}: {key!r} {why}; remove it")


def token_digests(key: bytes, *, episode_uid: str, attempt: int) -> dict[str, str]:
    """Return the SHA-256 of each role's token for the attempt. The sidecar receives only these digests."""
    return {
        role.value: token_digest(make_token(key, episode_uid=episode_uid, attempt=attempt, role=role)) for role in Role
    }


def sandbox_resources(task: Resources, overrides: PodOverrides, default: Resources) -> Resources:
    """Merge the resources by name. Those of the episode take precedence over the task, and the task over the default.

    A request and a limit are adjusted to each other if only one is set: a limit of 128Mi lowers a default request of
    256Mi.
    """
    merged = default
    for layer in (task, overrides.resources):
        merged = _over(merged, layer)
    return merged


def verifier_resources(sandbox: Resources, default: Resources) -> Resources:
    """Return the resources of the verifier: low requests, because it is idle until the sandbox has terminated.

    Its limits are those of the sandbox, because it then runs the same tests.
    """
    requests: dict[str, str | int] = {
        name: _least(quantity, sandbox.limits.get(name)) for name, quantity in default.requests.items()
    }
    return Resources(requests=requests, limits=sandbox.limits)


def as_manifest(resources: Resources) -> dict[str, dict[str, str]]:
    """Return the resources as in the manifest of a container."""
    both = {"requests": resources.requests, "limits": resources.limits}
    return {what: {name: str(value) for name, value in quantities.items()} for what, quantities in both.items()}


def _over(below: Resources, layer: Resources) -> Resources:
    requests, limits = {**below.requests, **layer.requests}, {**below.limits, **layer.limits}
    for name in limits.keys() & requests.keys():
        if parse_quantity(requests[name]) <= parse_quantity(limits[name]):
            continue
        if name not in layer.requests:
            requests[name] = limits[name]
        elif name not in layer.limits:
            limits[name] = requests[name]
        # If the layer sets both and they contradict each other, the API server refuses the pod.
    return msgspec.structs.replace(below, requests=requests, limits=limits)


def _least(quantity: str | int, limit: str | int | None) -> str | int:
    return quantity if limit is None or parse_quantity(quantity) <= parse_quantity(limit) else limit
