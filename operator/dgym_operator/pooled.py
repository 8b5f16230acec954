"""Pods of a SandboxPool: which Episodes they may serve, and how they are told. Pure.

Two pods are interchangeable if their manifests differ in nothing but what names an Episode, and no sidecar was told
yet which attempt it serves. The hash of the rest stands on every pod of a pool, as ``pod-template-hash`` does on the
pods of a ReplicaSet: whatever template, task and overrides two pods come from, it tells whether they are equal.
"""

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from dgym.api import (
    ATTEMPT_LABEL,
    CLAIMED_ANNOTATION,
    EPISODE_LABEL,
    PROOF_ANNOTATION,
    SANDBOX_POOL_LABEL,
    TEMPLATE_HASH_ANNOTATION,
    label_value,
)
from dgym.wire.http import Role, make_token

_PREFIX = "DGYM_SIDECAR_"
_BIND = f"{_PREFIX}BIND_SHA256"
_EPISODE = frozenset(
    f"{_PREFIX}{name}"
    for name in ("EPISODE", "EPISODE_UID", "ATTEMPT", *(f"{role.value.upper()}_SHA256" for role in Role))
)
"""The variables of the sidecar that name its attempt."""
_OWN = frozenset({PROOF_ANNOTATION, TEMPLATE_HASH_ANNOTATION, CLAIMED_ANNOTATION})


def template_hash(manifest: Mapping[str, Any]) -> str:
    """SHA-256 of what the pod has in common with those of other Episodes.

    Labels are not in it, since an Episode that takes a pod sets its own, and neither is the pod's deadline.
    """
    annotations = manifest["metadata"].get("annotations") or {}
    spec = {name: value for name, value in manifest["spec"].items() if name != "activeDeadlineSeconds"}
    for group in ("containers", "initContainers"):
        if group in spec:
            spec[group] = [_without_episode(each) for each in spec[group]]
    common = {"spec": spec, "annotations": {name: annotations[name] for name in annotations if name not in _OWN}}
    return sha256(json.dumps(common, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _without_episode(container: Mapping[str, Any]) -> dict[str, Any]:
    given = dict(container)
    if given.get("name") == "sidecar":
        given["env"] = [each for each in given.get("env") or () if each.get("name") not in _EPISODE]
    return given


def unbound(manifest: Mapping[str, Any], *, pool: str, digest: str) -> dict[str, Any]:
    """The pod as one of ``pool``: its sidecar waits for the call that ``digest`` authenticates."""
    metadata, spec = dict(manifest["metadata"]), dict(manifest["spec"])
    kept = {name: value for name, value in metadata["labels"].items() if name not in (EPISODE_LABEL, ATTEMPT_LABEL)}
    metadata["labels"] = {**kept, SANDBOX_POOL_LABEL: label_value(pool)}
    for group in ("containers", "initContainers"):
        if group in spec:
            spec[group] = [_bindable(each, digest) for each in spec[group]]
    return {**manifest, "metadata": metadata, "spec": spec}


def _bindable(container: Mapping[str, Any], digest: str) -> dict[str, Any]:
    given = _without_episode(container)
    if given.get("name") == "sidecar":
        given["env"] = [*given["env"], {"name": _BIND, "value": digest}]
    return given


def bind_token(key: bytes, identity: str) -> str:
    """The token of the call that tells the sidecar of a pod which attempt it serves: of no attempt."""
    return make_token(key, episode_uid=identity, attempt=0, role=Role.OPERATE)


def pool_identity(namespace: str, pod: str, made_as: str = "") -> str:
    """What stands for the UID of an Episode in tokens and proofs of a pod of a pool; no UID has this form."""
    return f"pool/{namespace}/{pod}/{made_as}"
