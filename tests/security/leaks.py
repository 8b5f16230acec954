"""Search for Secrets and derived tokens in texts that should not contain them."""

import base64
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dgym.wire.assignments import make_agent_pod_key, make_assign_token, make_pool_key, make_results_token
from dgym.wire.http import Role, make_token

SHORTEST = 8
"""Lowest length in bytes of a searched value. Shorter values would be found by chance."""
HELM = "helm.sh/release.v1"
KEY = ("dgym-key", "key")
PUBLIC = ("-sha256", "url")
"""Suffixes of field names that have public values: digests of tokens, and the address for a token."""
_CHUNK = 1 << 18


class Secrets:
    """Secret values that other texts must not contain. Each has a name, such as ``namespace/secret field``."""

    def __init__(self) -> None:
        self._forms: dict[bytes, dict[bytes, str]] = {}
        self._keys: set[bytes] = set()

    def add(self, secret: Mapping[str, Any]) -> None:
        """Add every field of a Secret except public fields."""
        if secret.get("type") == HELM:
            return
        metadata = secret["metadata"]
        for field, encoded in (secret.get("data") or {}).items():
            value = base64.b64decode(encoded)
            if (metadata["name"], field) == KEY:
                self._add_key(value, metadata["namespace"])
            if not field.endswith(PUBLIC):
                self.add_value(value, f"{metadata['namespace']}/{metadata['name']} {field}")

    def add_value(self, value: bytes, name: str) -> None:
        """Add a value in all of its encoded forms."""
        for form in forms(value.strip()):
            if len(form) >= SHORTEST:
                self._forms.setdefault(form[:SHORTEST], {}).setdefault(form, name)

    def _add_key(self, key: bytes, namespace: str) -> None:
        self._keys.add(key)
        self.add_value(make_results_token(key).encode(), f"{namespace}: the token results of agents")

    def add_attempt(self, episode_uid: str, attempt: int) -> None:
        """Add the tokens of an attempt, for every key."""
        for key in self._keys:
            for role in Role:
                token = make_token(key, episode_uid=episode_uid, attempt=attempt, role=role)
                self.add_value(token.encode(), f"the token {role.value} of attempt {attempt} of {episode_uid}")

    def add_agent(self, pod_uid: str, hours: Iterable[int], *, pool: str = "") -> None:
        """Add the key of an agent pod and the operator's tokens for it. ``hours`` are counted since 1970."""
        for key in self._keys:
            agent_pod_key = make_agent_pod_key(make_pool_key(key, pool), pod_uid)
            self.add_value(agent_pod_key.encode(), f"the key of agent {pod_uid}")
            for hour in hours:
                self.add_value(make_assign_token(agent_pod_key, hour).encode(), f"the token assign of agent {pod_uid}")

    def __len__(self) -> int:
        """Number of forms that are searched for."""
        return sum(map(len, self._forms.values()))

    def found_in(self, data: bytes) -> set[str]:
        """The names of the secret values in the data. The values themselves are not returned."""
        # For speed, first find the prefixes of the forms among all byte strings of that length in the data.
        begun: set[bytes] = set()
        for start in range(0, len(data), _CHUNK):
            chunk = data[start : start + _CHUNK + SHORTEST - 1]
            begun.update(self._forms.keys() & {chunk[at : at + SHORTEST] for at in range(len(chunk) - SHORTEST + 1)})
        return {name for prefix in begun for form, name in self._forms[prefix].items() if form in data}


def forms(value: bytes) -> Iterator[bytes]:
    """The value as it is, in hexadecimal digits, as a JSON string, and in base64 at any offset of a longer text."""
    yield value
    yield value.hex().encode()
    yield json.dumps(value.decode("utf-8", "replace"))[1:-1].encode()
    for before in range(3):
        encoded = base64.b64encode(bytes(before) + value)
        # The first and the last group contain bits of the surrounding bytes.
        inner = encoded[4 if before else 0 : len(encoded) - (4 if (before + len(value)) % 3 else 0)]
        yield inner
        yield inner.replace(b"+", b"-").replace(b"/", b"_")


def documents(text: str) -> Iterator[dict[str, Any]]:
    """The objects in the output of ``kubectl get --watch --output json``. The last JSON document may be cut off."""
    decoder, place = json.JSONDecoder(), 0
    while (place := _skip_space(text, place)) < len(text):
        try:
            document, place = decoder.raw_decode(text, place)
        except ValueError:
            return
        yield from document["items"] if document.get("kind", "").endswith("List") else (document,)


def _skip_space(text: str, place: int) -> int:
    while place < len(text) and text[place].isspace():
        place += 1
    return place


def name_of(document: Mapping[str, Any]) -> str:
    """Kind, namespace and name of an object."""
    metadata = document.get("metadata", {})
    return f"{document.get('kind')} {metadata.get('namespace', '')}/{metadata.get('name')}"


def leaks(secrets: Secrets, objects: Iterable[Mapping[str, Any]]) -> set[str]:
    """The objects that contain secret values, as lines with the object and the value's name.

    An object has many versions that differ little. So each line of its JSON is searched only once.
    """
    seen: set[str] = set()
    found = set()
    for each in objects:
        new = {line for line in json.dumps(each, ensure_ascii=False, indent=0).split("\n") if line not in seen}
        seen |= new
        found |= {f"{name_of(each)}: {name}" for name in secrets.found_in("\n".join(new).encode())}
    return found
