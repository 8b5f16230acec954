"""Signatures between a sidecar and its callers, and the sidecar's signature of a verdict. Pure.

Containers of a pod share the network, so that a program of the sandbox may answer on the port of a sidecar that has
ended. The program has none of the keys: the key of a role is the SHA-256 of its token, in the sidecar's environment.
"""

import hashlib
import hmac

from dgym.wire.http import Role, make_token, token_digest
from dgym.wire.messages import EndReason, Outcome


def sign_verdict(key: str, outcome: Outcome, reason: EndReason, *, episode_uid: str, attempt: int) -> str:
    """HMAC-SHA256 of a verdict under ``key``, the digest of the token of the role "operate".

    Neither agents nor drivers have that key. Tokens of the model, the message and the result's address are the agent's
    own report and not signed.
    """
    counts = (outcome.resolved, outcome.score, outcome.max_score, outcome.steps, outcome.rewrites)
    fields = ("dgym verdict 1", episode_uid, attempt, reason.value, *(int(count) for count in counts))
    return hmac.new(key.encode(), "\n".join(str(field) for field in fields).encode(), hashlib.sha256).hexdigest()


def verdict_is_signed(
    cluster_key: bytes, outcome: Outcome | None, reason: EndReason, *, episode_uid: str, attempt: int
) -> bool:
    """Whether the sidecar of this attempt has signed the verdict."""
    if outcome is None or not outcome.signature.isascii():
        return False
    key = token_digest(make_token(cluster_key, episode_uid=episode_uid, attempt=attempt, role=Role.OPERATE))
    expected = sign_verdict(key, outcome, reason, episode_uid=episode_uid, attempt=attempt)
    return hmac.compare_digest(expected, outcome.signature)
