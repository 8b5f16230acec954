"""The Secret of the cluster's key and the Secrets derived from it: made once, never written over.

Sidecars know digests of tokens only, and each agent a key of its own. The key, from which every token is derived, never
leaves the operator's namespace and is never logged.
"""

import base64
import binascii
import hmac
import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import msgspec

from dgym.kube import SECRETS, AlreadyExists, Client, NotFound
from dgym.wire.assignments import POOL_KEY, RESULTS_DIGEST, make_pool_key, make_results_token, pool_secret
from dgym.wire.http import token_digest
from dgym_operator.actions.writes import Writes
from dgym_operator.objects import MANAGED_BY
from dgym_operator.settings import Settings

_log = logging.getLogger(__name__)


class SecretData(msgspec.Struct):
    """The fields of a Secret that are read."""

    data: dict[str, str] = {}


async def ensure_secrets(
    client: Client, writes: Writes, settings: Settings, random_bytes: Callable[[int], bytes]
) -> bytes:
    """Create the Secrets of the key and the tokens where they are missing; returns the key.

    Raises:
        KeyUnusable: The key Secret exists without a key.
        ApiError: The API server refused.
    """
    namespace = settings.namespace
    data = await _ensure(client, writes, settings.key_secret, namespace, lambda: key_data(random_bytes(KEY_BYTES)))
    key = decode_key(settings.key_secret, data)
    for name, made in _derived(settings, key):
        found = await _ensure(client, writes, name, namespace, partial(dict, made))
        expected = secret_manifest(name, namespace, made)["data"]
        if any(found.get(field) != value for field, value in expected.items()):
            # It was changed on purpose, or the key was replaced: agents refuse the operator until it is deleted.
            _log.error("the Secret does not follow from the key; delete it", extra={"fields": {"secret": name}})
    return key


async def read_key(client: Client, settings: Settings) -> bytes:
    """The cluster's key, which the leader has made.

    Raises:
        KeyUnusable: The Secret has no key.
        ApiError: There is no Secret, or the API server refused.
    """
    found = await client.get(SECRETS, settings.key_secret, decode=SecretData, namespace=settings.namespace)
    return decode_key(settings.key_secret, found.data)


def _derived(settings: Settings, key: bytes) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Names and contents of the Secrets that follow from the key, one for each pool of agents."""
    for pool in settings.agent_pools.names:
        yield pool_secret(settings.agent_keys_secret, pool), agent_keys_data(key, pool)


async def _ensure(
    client: Client, writes: Writes, name: str, namespace: str, make: Callable[[], Mapping[str, bytes]]
) -> Mapping[str, str]:
    try:
        return (await client.get(SECRETS, name, decode=SecretData, namespace=namespace)).data
    except NotFound:
        pass
    manifest = secret_manifest(name, namespace, make())
    try:
        made = await writes.create(SECRETS, manifest, decode=SecretData, namespace=namespace)
        _log.info("created a Secret", extra={"fields": {"secret": name}})
        return made.data
    except AlreadyExists:
        return (await client.get(SECRETS, name, decode=SecretData, namespace=namespace)).data


KEY_BYTES = 32
_LEAST_KEY_BYTES = 16


class KeyUnusable(Exception):
    """The key Secret exists without a usable key; the operator never writes over it."""


def key_id(key: bytes) -> str:
    """A name for the key, for the labels of pods; the key does not follow from it."""
    return hmac.new(key, b"dgym key id", "sha256").hexdigest()[:16]


def key_data(key: bytes) -> dict[str, bytes]:
    """Contents of the key Secret."""
    return {"key": key}


def agent_keys_data(key: bytes, pool: str = "") -> dict[str, bytes]:
    """Contents of the Secret from which the agents of a pool know their callers."""
    digest = token_digest(make_results_token(key, pool))
    return {POOL_KEY: make_pool_key(key, pool).encode(), RESULTS_DIGEST: digest.encode()}


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
