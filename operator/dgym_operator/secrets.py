"""The cluster's key and the Secrets that follow from it: made once, never written over."""

import logging
from collections.abc import Callable, Mapping
from functools import partial

import msgspec

from dgym.kube import SECRETS, AlreadyExists, Client, NotFound
from dgym_operator.execute_writes import Writes
from dgym_operator.secrets_data import (
    KEY_BYTES,
    agent_tokens_data,
    decode_key,
    key_data,
    results_token_data,
    secret_manifest,
)
from dgym_operator.settings import Settings

_log = logging.getLogger(__name__)


class SecretData(msgspec.Struct):
    """A Secret as far as it is read."""

    data: dict[str, str] = {}


async def ensure_secrets(
    client: Client, writes: Writes, settings: Settings, random_bytes: Callable[[int], bytes]
) -> bytes:
    """The key; it and the tokens' Secrets are there when this returns.

    Raises:
        KeyUnusable: The key Secret exists without a key.
        ApiError: The API server refused.
    """
    namespace = settings.namespace
    data = await _ensure(client, writes, settings.key_secret, namespace, lambda: key_data(random_bytes(KEY_BYTES)))
    key = decode_key(settings.key_secret, data)
    for name, made in (
        (settings.agent_tokens_secret, agent_tokens_data(key)),
        (settings.results_token_secret, results_token_data(key)),
    ):
        found = await _ensure(client, writes, name, namespace, partial(dict, made))
        expected = secret_manifest(name, namespace, made)["data"]
        if any(found.get(field) != value for field, value in expected.items()):
            # Whoever changed it has a reason, or the key was replaced: agents refuse us until it is deleted.
            _log.error("the Secret does not follow from the key; delete it", extra={"fields": {"secret": name}})
    return key


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
        _log.info("made a Secret", extra={"fields": {"secret": name}})
        return made.data
    except AlreadyExists:
        return (await client.get(SECRETS, name, decode=SecretData, namespace=namespace)).data
