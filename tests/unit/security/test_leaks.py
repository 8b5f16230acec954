"""Tests of the search for secrets in data that others may read."""

import base64
import hashlib
import json
from typing import Any

import pytest

from dgym.wire.assignments import make_agent_pod_key, make_assign_token, make_pool_key, make_results_token
from dgym.wire.http import Role, make_token
from tests.security.leaks import Secrets, documents, leaks

KEY = bytes(range(200, 232))
AGENT_POD_KEY = make_agent_pod_key(make_pool_key(KEY, ""), "pod")
PASSWORD = 'correct "horse" battery'


def secret(name: str, **data: bytes) -> dict[str, Any]:
    encoded = {field.replace("_", "-"): base64.b64encode(value).decode() for field, value in data.items()}
    return {"kind": "Secret", "metadata": {"name": name, "namespace": "home"}, "data": encoded}


@pytest.fixture
def secrets() -> Secrets:
    found = Secrets()
    found.add(secret("dgym-key", key=KEY))
    found.add(secret("password", value=PASSWORD.encode(), url=b"http://10.0.0.1:8080", token_sha256=b"f" * 64))
    found.add_attempt("uid", 1)
    found.add_agent("pod", [6, 7])
    return found


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (PASSWORD, "home/password value"),
        (json.dumps({"log": PASSWORD}), "home/password value"),
        (base64.b64encode(PASSWORD.encode()).decode(), "home/password value"),
        (base64.b64encode(b"user:" + PASSWORD.encode() + b"@host").decode(), "home/password value"),
        (base64.b64encode(b"x" + PASSWORD.encode() + b"y").decode(), "home/password value"),
        (KEY.hex(), "home/dgym-key key"),
        (make_results_token(KEY), "home: the token results of agents"),
        (AGENT_POD_KEY, "the key of agent pod"),
        (make_assign_token(AGENT_POD_KEY, 7), "the token assign of agent pod"),
        (make_token(KEY, episode_uid="uid", attempt=1, role=Role.DRIVE), "the token drive of attempt 1 of uid"),
    ],
)
def test_a_secret_is_found_in_every_encoding(secrets: Secrets, text: str, name: str) -> None:
    assert secrets.found_in(f"before {text} after".encode()) == {name}


def test_a_secret_is_found_across_chunk_boundaries(secrets: Secrets) -> None:
    for before in ((1 << 18) - 10, (1 << 18) - 1, 1 << 18):
        assert secrets.found_in(b"a" * before + PASSWORD.encode() + b"a" * 99)


def test_harmless_values_are_not_secrets(secrets: Secrets) -> None:
    token = make_token(KEY, episode_uid="uid", attempt=1, role=Role.DRIVE)
    harmless = ["http://10.0.0.1:8080", "f" * 64, hashlib.sha256(token.encode()).hexdigest()]
    harmless.append(make_token(KEY, episode_uid="uid", attempt=2, role=Role.DRIVE))
    assert secrets.found_in(" ".join(harmless).encode()) == set()


def test_the_place_is_named_and_not_the_value(secrets: Secrets) -> None:
    pod = {"kind": "Pod", "metadata": {"namespace": "a", "name": "p"}, "spec": {"env": [{"value": PASSWORD}]}}
    found = leaks(secrets, [{"kind": "Pod", "metadata": {"namespace": "a", "name": "q"}}, pod, pod])
    assert found == {"Pod a/p: home/password value"}


def test_documents_of_a_watch_are_read_to_the_one_that_was_cut() -> None:
    text = json.dumps({"kind": "Pod"}, indent=1) + "\n" + json.dumps({"kind": "PodList", "items": [{"kind": "Pod"}]})
    assert list(documents(text + '\n{"kind": "Po')) == [{"kind": "Pod"}, {"kind": "Pod"}]
