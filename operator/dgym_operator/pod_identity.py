"""Identifies the operator's pods: the proof of every pod, and the template hash of pooled pods.

The proof is an annotation. Tenants with the right to create pods can copy the name, the labels and the owner reference
of an episode's pod, but they cannot create its proof, because the key never leaves the operator.

A pooled pod can serve an Episode if its manifest is equal to the manifest of the Episode's own pod, except for the
parts that identify the Episode. The template hash is the SHA-256 of the other parts. Every pooled pod has it as an
annotation, similar to the label ``pod-template-hash`` of a ReplicaSet's pods.
"""

import hmac
import json
import re
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
"""Label with which Kueue assigns a pod to a LocalQueue of its namespace."""
_PREFIX = "DGYM_SIDECAR_"
_BIND = f"{_PREFIX}BIND_SHA256"
_EPISODE = frozenset(
    f"{_PREFIX}{name}"
    for name in ("EPISODE", "EPISODE_UID", "ATTEMPT", *(f"{role.value.upper()}_SHA256" for role in Role))
)
"""Environment variables of the sidecar that identify its attempt."""
_OWN = frozenset({PROOF_ANNOTATION, TEMPLATE_HASH_ANNOTATION, CLAIMED_ANNOTATION})
_PROOF_FORM = re.compile(r"([0-9a-f]{64})\.([0-9a-f]{64})")


def template_hash(manifest: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the parts of the manifest that do not identify an Episode.

    The deadline and the labels are excluded, because an Episode that claims the pod sets its own. Only the label of a
    queue is included, because the queue has already admitted the pod.
    """
    metadata = manifest["metadata"]
    annotations = metadata.get("annotations") or {}
    spec = _with_sidecar_env(manifest["spec"])
    spec.pop("activeDeadlineSeconds", None)
    kept = {name: annotations[name] for name in annotations if name not in _OWN}
    common = {"spec": spec, "annotations": kept, "queue": (metadata.get("labels") or {}).get(QUEUE_LABEL)}
    return sha256(json.dumps(common, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _with_sidecar_env(spec: Mapping[str, Any], *more: Mapping[str, str]) -> dict[str, Any]:
    """Return the spec with the sidecar's variables that identify its attempt replaced by ``more``."""

    def changed(container: Mapping[str, Any]) -> Mapping[str, Any]:
        if container.get("name") != "sidecar":
            return container
        kept = [each for each in container.get("env") or () if each.get("name") not in _EPISODE]
        return {**container, "env": [*kept, *more]}

    groups = ("containers", "initContainers")
    return {**spec, **{group: [changed(each) for each in spec[group]] for group in groups if group in spec}}


def unbound(manifest: Mapping[str, Any], *, pool: str, digest: str) -> dict[str, Any]:
    """Return the manifest of a pod of ``pool``, whose sidecar waits for ``bind`` with the token of this digest."""
    labels = {**manifest["metadata"]["labels"], SANDBOX_POOL_LABEL: label_value(pool)}
    for name in (EPISODE_LABEL, ATTEMPT_LABEL):
        labels.pop(name, None)
    spec = _with_sidecar_env(manifest["spec"], {"name": _BIND, "value": digest})
    return {**manifest, "metadata": {**manifest["metadata"], "labels": labels}, "spec": spec}


def bind_token(key: bytes, identity: str) -> str:
    """Return the token for the call ``bind`` to the pod with this ``pool_identity``. It is not bound to an attempt."""
    return make_token(key, episode_uid=identity, attempt=0, role=Role.OPERATE)


def pool_identity(namespace: str, pod: str, template_hash: str = "") -> str:
    """Return the identity of a pooled pod for tokens and proofs, in place of the UID of an Episode.

    UIDs do not have this form. The proof of a pod includes its template hash, and its bind token does not.
    """
    return f"pool/{namespace}/{pod}/{template_hash}"


def make_proof(key: bytes, spec: Mapping[str, Any], *, namespace: str, episode_uid: str, attempt: int) -> str:
    """Return the proof for the pod of one attempt: the SHA-256 of the rendered ``spec``, and an HMAC over all values.

    Admission may change the spec later, so the digest only records what the operator requested.
    """
    digest = sha256(json.dumps(spec, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    return f"{digest}.{_sign(key, namespace, episode_uid, str(attempt), digest)}"


def proof_is_valid(key: bytes, proof: str, *, namespace: str, episode_uid: str, attempt: int) -> bool:
    """True if ``proof`` was created with this key for this attempt of this episode."""
    found = _PROOF_FORM.fullmatch(proof)
    if found is None:
        return False
    digest, signature = found.groups()
    return hmac.compare_digest(_sign(key, namespace, episode_uid, str(attempt), digest), signature)


def _sign(key: bytes, *values: str) -> str:
    own = hmac.digest(key, b"dgym pod proof 1", "sha256")
    return hmac.digest(own, "\n".join(values).encode(), "sha256").hex()
