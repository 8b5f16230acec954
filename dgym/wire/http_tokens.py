"""Bearer tokens of an episode's attempt: made from the cluster's key, known to the pod by their digests alone. Pure."""

import hashlib
import hmac

from dgym.wire.http import Role


def make_token(key: bytes, *, episode_uid: str, attempt: int, role: Role) -> str:
    """The token of ``role`` for one attempt; whoever holds the cluster's key can make it again."""
    message = "\0".join((episode_uid, str(attempt), role.value)).encode()
    return hmac.new(key, message, hashlib.sha256).hexdigest()


def token_digest(token: str) -> str:
    """What the pod's specification says of a token: its SHA-256."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
