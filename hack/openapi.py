"""Writes docs/openapi.json and the table in docs/wire.md from the sidecar's calls and the types of their messages.

python hack/openapi.py            write it
python hack/openapi.py --check    exit status 1 if that would change anything
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

import msgspec

from dgym import __version__
from dgym.api import DebugTask
from dgym.wire import calls
from dgym.wire.calls import EVERYWHERE, HEALTH, READY, Call, CallParameter
from dgym.wire.http import EPOCH_HEADER, TRACEPARENT_HEADER, Accepted, ErrorBody, ErrorCode
from dgym.wire.signing import SIGNATURE_HEADER
from hack.tables import Section, table

PAGE = Path(__file__).resolve().parent.parent / "docs" / "openapi.json"
_CALLS = Section(PAGE.with_name("wire.md"), "calls")
_REFERENCE = "#/components/schemas/{name}"
_JSON = "application/json"
_SCHEME = "signed"
_ABOUT = (
    "The HTTP protocol of an episode's sidecar, the only port of its pod. docs/wire.md explains it: the roles and how"
    " their tokens sign requests and answers, repeated requests, errors, and how an episode ends."
)
_AUTHORIZATION = "Dgym TIME.NONCE.CONTENT.PROOF.SIGNATURE, as docs/wire.md makes it; the token itself never travels."
_EPOCH = {
    "name": EPOCH_HEADER,
    "in": "header",
    "description": "The number of the caller's assignment and the operator's proof of it; a lower one than was seen is"
    " superseded.",
    "schema": {"type": "string", "pattern": "^[0-9]{1,16}\\.[0-9a-f]{64}$"},
}
_TRACEPARENT = {
    "name": TRACEPARENT_HEADER,
    "in": "header",
    "description": "The caller's span, as the W3C's Trace Context names it.",
    "schema": {"type": "string"},
}


def main(arguments: list[str]) -> int:
    """Write the files or, with ``--check``, report which are out of date. Return the exit status."""
    status = 0
    document_text = json.dumps(document(), indent=1, ensure_ascii=False) + "\n"
    for path, wanted in ((PAGE, document_text), (_CALLS.page, _CALLS.page_with(_table()))):
        if path.exists() and path.read_text("utf-8") == wanted:
            continue
        if arguments != ["--check"]:
            path.write_text(wanted, "utf-8")
        print(f"docs/{path.name} {'is out of date' if arguments else 'written'}")
        status = 1 if arguments else 0
    return status


def _found() -> dict[str, Call[Any, Any]]:
    return {name: call for name, call in vars(calls).items() if isinstance(call, Call)}


def _table() -> str:
    """Return the table of calls in docs/wire.md."""
    rows = ((f"`{call.method} {call.path}`", ", ".join(call.roles), call.summary) for call in _found().values())
    return table(("call", "roles", "summary"), rows)


def document() -> dict[str, Any]:
    """Return the document in OpenAPI 3.1."""
    found = _found()
    paths: dict[str, dict[str, Any]] = {}
    for name, call in found.items():
        paths.setdefault(call.path, {})[call.method.lower()] = _operation(name, call)
    for path, summary in (
        (HEALTH, "Whether the process answers"),
        (READY, "Whether it can be driven"),
    ):
        paths[path] = {"get": _open(path, summary)}
    return {
        "openapi": "3.1.0",
        "info": {"title": "dgym sidecar", "version": __version__, "description": _ABOUT, "license": {"name": "MIT"}},
        "servers": [{"url": "/", "description": "The episode's pod"}],
        "paths": paths,
        "components": {
            "schemas": _schemas(found.values()),
            "securitySchemes": {
                _SCHEME: {"type": "apiKey", "in": "header", "name": "Authorization", "description": _AUTHORIZATION}
            },
        },
    }


def _operation(name: str, call: Call[Any, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": name.lower(),
        "summary": call.summary,
        "tags": list(call.roles),
        "security": [{_SCHEME: []}],
        "parameters": [*map(_parameter, call.parameters), _EPOCH, _TRACEPARENT],
    }
    if call.request is not None:
        content = {_JSON: {"schema": _reference(call.request)}}
        operation["requestBody"] = {"required": _needs_body(call.request), "content": content}
    elif call.content_type:
        content = {call.content_type: {"schema": {"type": "string", "format": "binary"}}}
        operation["requestBody"] = {"required": True, "content": content}
    return {**operation, "responses": _responses(call)}


def _parameter(parameter: CallParameter) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string", "pattern": f"^{parameter.pattern}$"}
    if parameter.kind is int:
        schema = {"type": "integer", "minimum": 0, "maximum": 999_999_999}
    if parameter.default is None:
        required: dict[str, Any] = {"required": True}
    else:
        required, schema = {}, schema | {"default": parameter.default}
    place = {"name": parameter.name, "in": parameter.place}
    return {**place, **required, "description": parameter.description, "schema": schema}


def _responses(call: Call[Any, Any]) -> dict[str, Any]:
    responses = {"200": _response("The answer", _reference(call.response))}
    if call.repeated:
        responses["202"] = _response("It runs still: repeat the request", _reference(Accepted))
    codes = {*EVERYWHERE, *call.errors}
    if call.request is not None or call.content_type:
        codes.add(ErrorCode.TOO_LARGE)
    by_status: dict[int, list[str]] = {}
    for code in ErrorCode:
        if code in codes:
            by_status.setdefault(code.status, []).append(code.value)
    for status in sorted(by_status):
        responses[str(status)] = _response(", ".join(by_status[status]), _reference(ErrorBody))
    return responses


def _response(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    signature = {"description": "The sidecar's signature of this answer.", "schema": {"type": "string"}}
    return {
        "description": description,
        "headers": {SIGNATURE_HEADER: signature},
        "content": {_JSON: {"schema": schema}},
    }


def _open(path: str, summary: str) -> dict[str, Any]:
    """Return the operation of a kubelet probe, which is not signed."""
    text = {"content": {"text/plain": {"schema": {"type": "string"}}}}
    responses = {"200": {"description": "Yes", **text}}
    if path == READY:
        responses["503"] = {"description": "Not healthy or not ready; the text has the reason", **text}
    return {"operationId": path.strip("/"), "summary": summary, "security": [], "responses": responses}


def _schemas(found: Any) -> dict[str, Any]:
    types = {DebugTask, Accepted, ErrorBody}
    types |= {kind for call in found for kind in (call.request, call.response) if kind is not None}
    ordered = sorted(types, key=lambda kind: str(kind.__name__))
    _, schemas = msgspec.json.schema_components(ordered, ref_template=_REFERENCE)
    for schema in schemas.values():
        if "description" in schema:
            schema["description"] = re.sub(r"\n +", "\n", schema["description"])
        if schema.get("required") == []:
            del schema["required"]
    # The types do not express these constraints. The code checks them after decoding.
    schemas["StepRequest"]["anyOf"] = [{"required": ["tool"]}, {"required": ["action"]}]
    schemas["PrepareRequest"]["properties"]["task"] = _reference(DebugTask)
    return dict(sorted(schemas.items()))


def _reference(kind: Any) -> dict[str, Any]:
    return {"$ref": _REFERENCE.format(name=kind.__name__)}


def _needs_body(kind: Any) -> bool:
    """Return True if a body is required. An empty body is decoded as ``{}``."""
    try:
        msgspec.json.decode(b"{}", type=kind)
    except msgspec.ValidationError:
        return True
    return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
