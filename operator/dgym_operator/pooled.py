"""The pods of SandboxPools: their template hash, their manifest, and the token that binds their sidecar. Pure.

A pooled pod can serve an Episode if its manifest equals that of the Episode's own pod in everything that does not name
an Episode. The template hash is the SHA-256 of that part. Every pooled pod has it as an annotation, as the pods of a
ReplicaSet have ``pod-template-hash`` as a label.
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

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
"""By which Kueue puts a pod into a LocalQueue of its namespace."""
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

    It covers neither the deadline nor labels: an Episode that claims the pod sets its own. Of the labels only that of a
    queue counts, since the queue has admitted the pod, or has not.
    """
    metadata = manifest["metadata"]
    annotations = metadata.get("annotations") or {}
    spec = _with_sidecar_env(manifest["spec"])
    spec.pop("activeDeadlineSeconds", None)
    kept = {name: annotations[name] for name in annotations if name not in _OWN}
    common = {"spec": spec, "annotations": kept, "queue": (metadata.get("labels") or {}).get(QUEUE_LABEL)}
    return sha256(json.dumps(common, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _with_sidecar_env(spec: Mapping[str, Any], *more: Mapping[str, str]) -> dict[str, Any]:
    """The spec with these variables of the sidecar in place of those that name its attempt."""

    def changed(container: Mapping[str, Any]) -> Mapping[str, Any]:
        if container.get("name") != "sidecar":
            return container
        kept = [each for each in container.get("env") or () if each.get("name") not in _EPISODE]
        return {**container, "env": [*kept, *more]}

    groups = ("containers", "initContainers")
    return {**spec, **{group: [changed(each) for each in spec[group]] for group in groups if group in spec}}


def unbound(manifest: Mapping[str, Any], *, pool: str, digest: str) -> dict[str, Any]:
    """The manifest of a pod of ``pool``: its sidecar waits for the call that the token with this digest signs."""
    labels = {**manifest["metadata"]["labels"], SANDBOX_POOL_LABEL: label_value(pool)}
    for name in (EPISODE_LABEL, ATTEMPT_LABEL):
        labels.pop(name, None)
    spec = _with_sidecar_env(manifest["spec"], {"name": _BIND, "value": digest})
    return {**manifest, "metadata": {**manifest["metadata"], "labels": labels}, "spec": spec}


def bind_token(key: bytes, identity: str) -> str:
    """The token that signs the call ``bind`` to the pod with this ``pool_identity``. It is of no attempt."""
    return make_token(key, episode_uid=identity, attempt=0, role=Role.OPERATE)


def pool_identity(namespace: str, pod: str, template_hash: str = "") -> str:
    """The name of a pooled pod where a token or a proof needs the UID of an Episode; no UID has this form.

    The proof of a pod covers its template hash, its bind token does not.
    """
    return f"pool/{namespace}/{pod}/{template_hash}"
