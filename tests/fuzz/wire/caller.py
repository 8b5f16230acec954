"""Caller of sidecars, each for a given time. It runs in an environment with schemathesis and does not import dgym.

``python -m tests.fuzz.wire.caller docs/openapi.json`` reads a line of JSON for each sidecar from standard input
(``url``, ``tokens``, ``scene``, ``seconds``, ``seed``) and writes a line with the answers and the failure for each.
Requests are signed and answers checked as docs/wire.md describes.
"""

import hashlib
import hmac
import json
import random
import secrets
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from requests.auth import AuthBase
from schemathesis import Case, GenerationMode
from schemathesis.checks import CHECKS, load_all_checks

from tests.fuzz.mutation import changed

HANG_SECONDS = 20.0
"""The sidecar answers a call after two seconds at the latest, unless it is still reading the body."""
ENDING = {"/v1/finish", "/v1/cancel", "/v1/release", "/v1/terminated"}
"""Calls after which few other calls have an effect. They are fuzzed only in scenes with the end of an episode."""
_BATCH = 15
_OFTEN = {"/v1/steps/{seq}": 4, "/v1/peek": 2, "/v1/prepare": 2}
"""Calls with much code, which are fuzzed several times as often."""
_CHECKS = ("status_code_conformance", "content_type_conformance", "response_schema_conformance")
_HARMLESS = {"busy"}
"""Error codes with a status above 499 that are not failures while the sandbox is running."""
_LOST = {"sandbox_lost", "verifier_failed", "setup_failed"}


class Signed(AuthBase):
    """Signs requests with a token and checks the signatures of the answers, as docs/wire.md describes."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()
        self._key = hashlib.sha256(self._token).hexdigest()
        self._authorization = ""

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        body = request.body or b""
        content = hashlib.sha256(body if isinstance(body, bytes) else body.encode()).hexdigest()
        now, nonce = str(int(time.time())), secrets.token_hex(16)
        mask = hashlib.shake_256(f"dgym token 1\n{self._key}\n{nonce}".encode()).digest(len(self._token))
        proof = bytes(one ^ other for one, other in zip(self._token, mask, strict=True)).hex()
        epoch, key = (_text(request.headers.get(name, "")) for name in ("Dgym-Epoch", "Idempotency-Key"))
        signature = self._sign("request", str(request.method), request.path_url, epoch, key, now, nonce, content, proof)
        self._authorization = f"Dgym {now}.{nonce}.{content}.{proof}.{signature}"
        request.headers["Authorization"] = self._authorization
        return request

    def check(self, response: requests.Response) -> None:
        """Check the sidecar's signature. Only an answer with status 401 need not be signed."""
        content = hashlib.sha256(response.content).hexdigest()
        expected = self._sign("answer", self._authorization, str(response.status_code), content)
        given_ = response.headers.get("Dgym-Signature", "")
        assert response.status_code == 401 or hmac.compare_digest(expected, given_), "the answer is not signed"

    def _sign(self, kind: str, *fields: str) -> str:
        text = "\n".join((f"dgym {kind} 1", *fields))
        return hmac.new(self._key.encode(), text.encode("utf-8", "surrogateescape"), hashlib.sha256).hexdigest()


def _text(value: str | bytes) -> str:
    """A header as the server decodes it: invalid UTF-8 becomes surrogate escapes."""
    return (
        (value if isinstance(value, bytes) else value.encode("latin-1")).decode("utf-8", "surrogateescape").strip(" \t")
    )


class Caller:
    """Fuzzes a sidecar."""

    def __init__(self, document: dict[str, Any], place: dict[str, Any]) -> None:
        self._tokens: dict[str, str] = place["tokens"]
        self._url: str = place["url"]
        self._scene: str = place["scene"]
        self._next = 1
        self._session = requests.Session()
        self.statuses: Counter[str] = Counter()
        self.slowest = 0.0
        self.over = False
        self._strategies: dict[tuple[str, GenerationMode], Any] = {}
        self._schema = schemathesis.openapi.from_dict(self._known(document))

    def run(self, seconds: float, number: int) -> str:
        """Make calls until the time has passed or the sidecar has ended. Returns the failure or ""."""
        deadline = time.monotonic() + seconds
        operations = [each for each in self._operations() for _ in range(_OFTEN.get(each.path, 1))]
        while not self.over:
            random.Random(number).shuffle(operations)
            for operation in operations:
                for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
                    if time.monotonic() > deadline or self.over:
                        return ""
                    number += 1
                    if problem := self._batch(operation, mode, number):
                        return f"seed {number}: {operation.label}, {mode}: {problem}"
        return ""

    def _operations(self) -> Iterator[Any]:
        for result in self._schema.get_all_operations():
            operation = result.ok()
            if self._scene in ("ending", "ended") or operation.path not in ENDING:
                yield operation

    def _batch(self, operation: Any, mode: GenerationMode, number: int) -> str:
        key = (operation.label, mode)
        if key not in self._strategies:
            self._strategies[key] = operation.as_strategy(generation_mode=mode)
        cases = self._strategies[key]
        roles = [str(role) for role in operation.tags or ()] * 8 + ["prepare", "drive", "operate", ""]

        @seed(number)
        @settings(
            max_examples=1 if operation.path in ENDING and self._scene == "ending" else _BATCH,
            deadline=None,
            database=None,
            phases=(Phase.generate,),
            suppress_health_check=list(HealthCheck),
        )
        @given(cases, st.sampled_from(roles), st.integers(0, 99), st.integers(0, 2**32))
        def once(case: Case, role: str, chance: int, change: int) -> None:
            if self.over:
                return
            if chance % 4 and "seq" in (case.path_parameters or {}):
                case.path_parameters["seq"] = self._next
            if case.headers and (chance < 98 or self._scene not in ("ending", "ended")):
                # After a call with a high epoch, the sidecar rejects later calls with lower epochs.
                case.headers.pop("Dgym-Epoch", None)
            self._call(case, role, change if chance % 5 == 0 else None)

        try:
            once()
        except Unsatisfiable:
            pass  # The operation has no part that could be invalid.
        except Exception as error:
            return f"{type(error).__name__}: {error}"[:6000]
        return ""

    def _call(self, case: Case, role: str, change: int | None) -> None:
        signed = Signed(self._tokens[role]) if role else None
        begun = time.monotonic()
        try:
            if change is not None and isinstance(case.body, dict | list | str):
                response = self._raw(case, signed, change)
            else:
                response = self._sent(case, signed)
        except requests.ConnectionError:
            # A released pod does not answer any more.
            assert self._scene in ("ending", "ended"), "the sidecar does not answer"
            self.over = True
            return
        self.slowest = max(self.slowest, round(time.monotonic() - begun, 2))
        self._check(case, response, signed)

    def _sent(self, case: Case, signed: Signed | None) -> requests.Response:
        answer = case.call(base_url=self._url, session=self._session, auth=signed, timeout=HANG_SECONDS)
        self._validated(case, answer)
        response = requests.Response()
        response.status_code, response._content = answer.status_code, answer.content
        response.headers.update({name: values[0] for name, values in answer.headers.items()})
        return response

    def _raw(self, case: Case, signed: Signed | None, change: int) -> requests.Response:
        """Send the body with random changes of its bytes."""
        data = changed(json.dumps(case.body).encode(), change)
        headers = {name: value for name, value in (case.headers or {}).items() if name.lower() != "content-type"}
        response = self._session.request(
            case.method,
            self._url + case.formatted_path,
            data=data,
            headers=headers,
            auth=signed,
            timeout=HANG_SECONDS,
        )
        self._validated(case, response)
        return response

    @staticmethod
    def _validated(case: Case, response: Any) -> None:
        case.validate_response(response, checks=CHECKS.get_by_names(_CHECKS))

    def _check(self, case: Case, response: requests.Response, signed: Signed | None) -> None:
        status = response.status_code
        code = ""
        if signed is not None and not case.path.endswith(("/healthz", "/readyz")):
            signed.check(response)
        if status >= 400 and response.headers.get("Content-Type", "").startswith("application/json"):
            code = response.json()["code"]
        self.statuses[f"{status} {code}".strip()] += 1
        harmless = _HARMLESS | (_LOST if self._scene in ("ending", "ended") else set())
        assert status < 500 or code in harmless or case.path == "/readyz", f"{status}: {response.text[:2000]}"
        if case.path == "/v1/steps/{seq}" and (status == 200 or code in ("conflict", "gap")):
            self._next = self._steps() + 1

    def _steps(self) -> int:
        state = self._session.get(f"{self._url}/v1/state", auth=Signed(self._tokens["operate"]), timeout=HANG_SECONDS)
        return int(state.json()["steps"])

    def _known(self, document: dict[str, Any]) -> dict[str, Any]:
        """The document without security schemes, and with the episode's tools as bodies of steps."""
        document = json.loads(json.dumps(document))
        for methods in document["paths"].values():
            for operation in methods.values():
                operation.pop("security", None)
        document["components"].pop("securitySchemes")
        answer = self._session.get(f"{self._url}/v1/tools", auth=Signed(self._tokens["drive"]), timeout=HANG_SECONDS)
        if answer.status_code == 200:
            schemas = document["components"]["schemas"]
            tools = [tool for tool in answer.json()["tools"] if tool["name"] != "submit" or self._scene == "ending"]
            calls = [_call_of(tool) for tool in tools]
            schemas["StepRequest"] = {"anyOf": [*calls, schemas["StepRequest"]]}
        return document


def _call_of(tool: dict[str, Any]) -> dict[str, Any]:
    properties = {"tool": {"const": tool["name"]}, "arguments": tool["parameters"]}
    return {"type": "object", "properties": properties, "required": ["tool", "arguments"]}


def _uploaded(_context: Any, value: Any) -> bytes:
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else bytes(value)


def main(path: str) -> None:
    """Process the lines of standard input."""
    warnings.simplefilter("ignore")
    schemathesis.serializer("application/x-tar", "application/jsonl")(_uploaded)
    load_all_checks()
    document = json.loads(Path(path).read_text("utf-8"))
    for line in sys.stdin:
        place = json.loads(line)
        caller = Caller(document, place)
        failure = caller.run(place["seconds"], place["seed"])
        about = {"statuses": dict(caller.statuses), "slowest": caller.slowest, "failure": failure}
        sys.stdout.write(json.dumps(about) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
