"""The Secret of the cluster's key, the Secrets derived from it, and the Secrets of external drivers.

Existing Secrets are never overwritten. All tokens are derived from the key, which never leaves the operator's namespace
and is never logged. Sidecars receive only digests of tokens, and each pool of agent pods receives its own derived key.
"""

import base64
import binascii
import hmac
import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import msgspec

from dgym.api import ATTEMPT_LABEL, EPISODE_LABEL, driver_secret_name, label_value
from dgym.kube import SECRETS, AlreadyExists, Client, NotFound
from dgym.wire.assignments import POOL_KEY, RESULTS_DIGEST, make_pool_key, make_results_token, pool_secret
from dgym.wire.http import Role, make_token, token_digest
from dgym_operator.actions._writes import Writes
from dgym_operator.controllers import CreateDriverSecret
from dgym_operator.objects import MANAGED_BY, EpisodeView
from dgym_operator.settings import AGENT_POD_KEYS_SECRET, KEY_SECRET, Settings

_log = logging.getLogger(__name__)
KEY_BYTES = 32
_LEAST_KEY_BYTES = 16


class SecretData(msgspec.Struct):
    """The fields of a Secret that are read."""

    data: dict[str, str] = {}


async def ensure_secrets(
    client: Client, writes: Writes, settings: Settings, random_bytes: Callable[[int], bytes]
) -> bytes:
    """Create the missing Secrets of the key and the tokens.

    Returns:
        The key.

    Raises:
        KeyUnusable: The key Secret exists without a usable key.
        ApiError: The API server refused a request.
    """
    namespace = settings.namespace
    data = await _ensure(client, writes, KEY_SECRET, namespace, lambda: key_data(random_bytes(KEY_BYTES)))
    key = decode_key(data)
    for name, made in _derived(settings, key):
        found = await _ensure(client, writes, name, namespace, partial(dict, made))
        expected = secret_manifest(name, namespace, made)["data"]
        if any(found.get(field) != value for field, value in expected.items()):
            # A user changed it or replaced the key. The agent pods refuse the operator until the Secret is deleted.
            _log.error("the Secret was not derived from the current key; delete it", extra={"fields": {"secret": name}})
    return key


async def read_key(client: Client, settings: Settings) -> bytes:
    """Read the cluster's key, which the leader created.

    Raises:
        KeyUnusable: The Secret does not contain a usable key.
        ApiError: The Secret does not exist, or the API server refused the request.
    """
    found = await client.get(SECRETS, KEY_SECRET, decode=SecretData, namespace=settings.namespace)
    return decode_key(found.data)


def _derived(settings: Settings, key: bytes) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Yield name and contents of the Secrets that are derived from the key: one for each pool of agent pods."""
    for pool in settings.agent_pools.names:
        yield pool_secret(AGENT_POD_KEYS_SECRET, pool), agent_pod_keys_data(key, pool)


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


async def create_driver_secret(
    writes: Writes, key: bytes, episode: EpisodeView, action: CreateDriverSecret
) -> str | None:
    """Create the Secret with which an external driver calls the sidecar of its Episode's attempt.

    The Secret contains the sidecar's address and the drive token. The attempt's pod owns it, because the token is valid
    for this pod only, and the garbage collector deletes the Secret with the pod. So the operator needs the right to
    create Secrets, but not to read or delete them. The name contains the Episode's UID, so that it differs from the
    Secret of an earlier Episode with the same name.

    Returns:
        The name of the Secret, or None if it already exists.
    """
    uid, namespace = episode.metadata.uid, episode.metadata.namespace
    token = make_token(key, episode_uid=uid, attempt=action.attempt, role=Role.DRIVE)
    name = driver_secret_name(action.pod_name, uid)
    manifest = secret_manifest(name, namespace, {"url": action.url.encode(), "token": token.encode()})
    metadata = manifest["metadata"]
    metadata["labels"] |= {EPISODE_LABEL: label_value(episode.metadata.name), ATTEMPT_LABEL: str(action.attempt)}
    owner = {"apiVersion": "v1", "kind": "Pod", "name": action.pod_name, "uid": action.pod_uid, "controller": True}
    metadata["ownerReferences"] = [owner]
    try:
        await writes.create(SECRETS, manifest | {"immutable": True}, decode=SecretData, namespace=namespace)
    except AlreadyExists:
        return None
    return name


class KeyUnusable(Exception):
    """The key Secret exists without a usable key. The operator does not overwrite it."""


def key_id(key: bytes) -> str:
    """Return an identifier of the key for the labels of pods. The key cannot be derived from it."""
    return hmac.new(key, b"dgym key id", "sha256").hexdigest()[:16]


def key_data(key: bytes) -> dict[str, bytes]:
    """Return the contents of the key Secret."""
    return {"key": key}


def agent_pod_keys_data(key: bytes, pool: str = "") -> dict[str, bytes]:
    """Return the contents of the Secret with which the agent pods of a pool authenticate their callers."""
    digest = token_digest(make_results_token(key, pool))
    return {POOL_KEY: make_pool_key(key, pool).encode(), RESULTS_DIGEST: digest.encode()}


def secret_manifest(name: str, namespace: str, data: Mapping[str, bytes]) -> dict[str, Any]:
    """Return the manifest of a Secret."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace, "labels": dict(MANAGED_BY)},
        "type": "Opaque",
        "data": {field: base64.b64encode(value).decode() for field, value in data.items()},
    }


def decode_key(data: Mapping[str, str]) -> bytes:
    """Return the key in a Secret's data.

    Raises:
        KeyUnusable: The key is missing, is not valid base64, or has fewer than 16 bytes.
    """
    try:
        key = base64.b64decode(data.get("key", ""), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) < _LEAST_KEY_BYTES:
        raise KeyUnusable(f"Secret {KEY_SECRET} must have at least {_LEAST_KEY_BYTES} bytes in its field 'key'")
    return key
