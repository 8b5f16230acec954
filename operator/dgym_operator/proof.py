"""The proof on a pod that this operator made it. Pure.

Tenants with the right to create pods can copy the name, the labels and the owner reference of an episode's pod. They
cannot make its proof, an annotation: the key never leaves the operator.
"""

import hmac
import json
import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

_FORM = re.compile(r"([0-9a-f]{64})\.([0-9a-f]{64})")


def make_proof(key: bytes, spec: Mapping[str, Any], *, namespace: str, episode_uid: str, attempt: int) -> str:
    """The proof for the pod of one attempt: the SHA-256 of ``spec`` as it was rendered, and an HMAC over all.

    Admission may change the spec afterwards, so that the digest is a record of what the operator asked for.
    """
    digest = sha256(json.dumps(spec, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    return f"{digest}.{_sign(key, namespace, episode_uid, str(attempt), digest)}"


def proof_is_valid(key: bytes, proof: str, *, namespace: str, episode_uid: str, attempt: int) -> bool:
    """Whether ``proof`` was made with this key for this attempt of this episode."""
    found = _FORM.fullmatch(proof)
    if found is None:
        return False
    digest, signature = found.groups()
    return hmac.compare_digest(_sign(key, namespace, episode_uid, str(attempt), digest), signature)


def _sign(key: bytes, *values: str) -> str:
    own = hmac.digest(key, b"dgym pod proof 1", "sha256")
    return hmac.digest(own, "\n".join(values).encode(), "sha256").hex()
