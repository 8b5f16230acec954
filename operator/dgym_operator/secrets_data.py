"""What the three Secrets hold: the cluster's key and what follows from it. Pure.

Sidecars and agents know digests of tokens only; the key, from which every token comes, never leaves the operator's
namespace. Nothing here may reach a log.
"""

import base64
import binascii
import hmac
from collections.abc import Mapping
from typing import Any

from dgym.wire.assignments import AgentRole, make_agent_token
from dgym.wire.http import token_digest
from dgym_operator.policies_manifest import MANAGED_BY

KEY_BYTES = 32
_LEAST_KEY_BYTES = 16


class KeyUnusable(Exception):
    """The key Secret is there and its key is not one; the operator never writes over it."""


def key_id(key: bytes) -> str:
    """A name for the key, for the labels of pods; it says nothing about the key itself."""
    return hmac.new(key, b"dgym key id", "sha256").hexdigest()[:16]


def key_data(key: bytes) -> dict[str, bytes]:
    """The key Secret."""
    return {"key": key}


def agent_tokens_data(key: bytes) -> dict[str, bytes]:
    """What agents compare bearer tokens with."""
    return {
        f"{role.value}-token-sha256": token_digest(make_agent_token(key, role)).encode()
        for role in (AgentRole.ASSIGN, AgentRole.RESULTS)
    }


def results_token_data(key: bytes) -> dict[str, bytes]:
    """What somebody who may read results shows to an agent."""
    return {"token": make_agent_token(key, AgentRole.RESULTS).encode()}


def secret_manifest(name: str, namespace: str, data: Mapping[str, bytes]) -> dict[str, Any]:
    """A Secret as it is created."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace, "labels": dict(MANAGED_BY)},
        "type": "Opaque",
        "data": {field: base64.b64encode(value).decode() for field, value in data.items()},
    }


def decode_key(name: str, data: Mapping[str, str]) -> bytes:
    """The key in a Secret's data.

    Raises:
        KeyUnusable: there is none, or it could be guessed.
    """
    try:
        key = base64.b64decode(data.get("key", ""), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) < _LEAST_KEY_BYTES:
        raise KeyUnusable(f"Secret {name} must hold at least {_LEAST_KEY_BYTES} bytes in its field 'key'")
    return key
