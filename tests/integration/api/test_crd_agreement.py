"""Tests that the API server and ``dgym.api.loads`` accept the same manifests and decode them to the same values."""

import copy
import json
from pathlib import Path

import msgspec
import pytest
from msgspec import inspect

from dgym.api import DebugTask, Episode, EpisodeSet, loads, struct_type
from dgym.benchmarks import bundled, episode_set, load_bundled
from dgym.errors import ManifestError

EXAMPLES = Path(__file__).parents[3] / "examples"
STRUCTS = {"DebugTask": DebugTask, "Episode": Episode, "EpisodeSet": EpisodeSet}
LARGE = 5_000
"""Longer texts are not sent. Another test covers the limit for the total of inline files."""

GOOD_STARTS = {"/": "/a", "[a-z][a-z0-9+.-]*:": "a:a", "[0-9a-f]{64}": "a" * 64, "[0-9]+": "1"}
BAD = ["", "-a", "a b", "/a", "é", "1."]

MINIMAL = {
    "DebugTask": {},
    "Episode": {"taskRef": {"name": "a"}},
    "EpisodeSet": {"tasks": [{"name": "a"}]},
}
STRUCT_MINIMAL = {
    "InlineFile": {"path": "a", "content": ""},
    "EnvVar": {"name": "A"},
    "KeyToPath": {"key": "a", "path": "a"},
    "ConfigMapSource": {"name": "a"},
    "GitSource": {"url": "https://a", "revision": "a"},
    "ArchiveSource": {"url": "https://a", "sha256": "0" * 64},
    "AgentSpec": {"name": "a"},
    "TaskRef": {"name": "a"},
    "ToolSpec": {"name": "a"},
    "Arm": {"name": "a", "agent": {"name": "a"}},
    "ArmStatus": {"name": "a"},
    "LabelRequirement": {"key": "a", "operator": "In", "values": ["a"]},
}
ELSEWHERE = {("Episode", "task"), ("EpisodeSpec", "task"), ("EpisodeSpec", "taskRef")}
"""Fields that are tested as a DebugTask, or that belong to rules with their own tests."""


def texts(type_):
    filler = next((text for start, text in GOOD_STARTS.items() if (type_.pattern or "").startswith(f"^{start}")), "a")
    yield from BAD
    for length in (type_.min_length, type_.max_length):
        if length is not None and length < LARGE:
            yield (filler + filler[-1] * length)[:length]
            yield filler + filler[-1] * (length + 1 - len(filler))
    yield from (filler, 5, ["a"])


def values(type_):
    """Yield values at and beyond every bound of a type, both valid and invalid."""
    members = type_.types if isinstance(type_, inspect.UnionType) else [type_]
    for member in members:
        yield from values_of_one(member)


def values_of_one(type_):
    match type_:
        case inspect.Metadata():
            yield from values(type_.type)
        case inspect.StrType():
            yield from texts(type_)
        case inspect.IntType():
            yield from (type_.ge, type_.le, type_.ge - 1, type_.le + 1, "5", 1.5, True)
        case inspect.BoolType():
            yield from (True, False, "yes", 1)
        case inspect.LiteralType():
            yield from (*type_.values, "Other", "", 1)
        case inspect.VarTupleType():
            yield from ("a", {}, [])
            yield from ([item] for item in values(type_.item_type))
        case inspect.DictType():
            yield from ("a", [], {})
            if not isinstance(type_.value_type, inspect.AnyType):
                yield from ({"a": item} for item in values(type_.value_type))
        case inspect.StructType():
            yield from structs(type_)


def structs(type_):
    name = type_.cls.__name__
    base = STRUCT_MINIMAL.get(name, {})
    yield from ("a", [], {}, base, {**base, "unknownField": 1})
    for field in type_.fields:
        if (name, field.encode_name) not in ELSEWHERE:
            yield from ({**base, field.encode_name: value} for value in values(field.type))


def specs(kind):
    base = MINIMAL[kind]
    for field in struct_type(STRUCTS[kind]).fields:
        if field.encode_name == "spec":
            for part in field.type.fields:
                if (kind, part.encode_name) not in ELSEWHERE:
                    yield from ({**base, part.encode_name: value} for value in values(part.type))


def loaded(manifest):
    try:
        return loads(json.dumps(manifest), source="a.json")[0]
    except ManifestError:
        return None


def _items(value):
    return value if isinstance(value, list) else []


def lenient(spec, kind):
    """True if the server may accept more than ``loads``: a tool with options may also have unknown fields."""
    holders = [spec] if kind == "Episode" else [spec.get("template"), *_items(spec.get("arms"))]
    tools = next((holder["tools"] for holder in holders if isinstance(holder, dict) and holder.get("tools")), None)
    tool = tools[0] if isinstance(tools, list) and tools else None
    return isinstance(tool, dict) and "unknownField" in tool


@pytest.mark.parametrize("kind", STRUCTS)
def test_the_api_server_and_dgym_accept_the_same_specs_with_the_same_meaning(kinds, api_namespace, kind):
    taken = refused = 0
    for spec in specs(kind):
        manifest = kinds.manifest(kind, spec)
        ours = loaded(manifest)
        status, answer = kinds.create(api_namespace, copy.deepcopy(manifest), dry_run=True)
        if ours is None:
            refused += 1
            assert status in (400, 422) or lenient(spec, kind), spec
        else:
            taken += 1
            assert status == 201, (spec, answer)
            assert loaded(answer).spec == ours.spec, spec
    assert taken > 40
    assert refused > 40


@pytest.mark.parametrize("kind", STRUCTS)
def test_the_defaults_of_a_whole_object_are_stored(kinds, api_namespace, kind):
    _, answer = kinds.create(api_namespace, kinds.manifest(kind, MINIMAL[kind]), dry_run=True)
    spec = msgspec.structs.fields(STRUCTS[kind])
    (spec_type,) = (field.type for field in spec if field.name == "spec")
    for field in msgspec.structs.fields(spec_type):
        if isinstance(field.default, str | int) and field.default != "":
            assert answer["spec"][field.encode_name] == field.default


STATUSES = {
    "Episode": {
        "conditions": [
            {"type": "Finished", "status": "True", "reason": "Resolved", "lastTransitionTime": "2026-01-31T12:00:00Z"},
            {"type": "Resolved", "status": "True", "reason": "Solved", "message": "5 of 5", "observedGeneration": 1},
        ],
        "reason": "Resolved",
        "outcome": {"resolved": True, "score": 5, "maxScore": 5, "steps": 7, "resultURI": "s3://a/b", "message": "m"},
        "attempt": 2,
        "podName": "a-2",
        "taskUID": "0f9c1a9e-5e0e-4a8f-a7c2-2f9d0c0f9a11",
        "assignment": {"agentPodUID": "0f9c1a9e-5e0e-4a8f-a7c2-2f9d0c0f9a12", "epoch": 3},
        "startTime": "2026-01-31T12:00:00Z",
        "completionTime": "2026-01-31T12:01:00.123456Z",
        "stages": {"podCreated": "2026-01-31T12:00:00Z", "verified": "2026-01-31T12:00:59Z"},
        "observedGeneration": 1,
    },
    "EpisodeSet": {
        "conditions": [{"type": "Suspended", "status": "False"}],
        "completedIndexes": "0-5,7",
        "total": 10,
        "pending": 1,
        "active": 2,
        "resolved": 3,
        "unresolved": 3,
        "failed": 1,
        "passAt1": "0.5000",
        "arms": [{"name": "a", "total": 5, "resolved": 3, "passAt1": "1.0000"}, {"name": "b", "total": 5, "failed": 1}],
        "resolvedByArm": "a 3/3, b 0/3",
        "startTime": "2026-01-31T12:00:00Z",
        "observedGeneration": 1,
    },
}


@pytest.mark.parametrize("kind", STATUSES)
def test_a_status_is_kept_as_it_is_written(kinds, api_namespace, kind):
    kinds.create(api_namespace, kinds.manifest(kind, MINIMAL[kind]))
    status, answer = kinds.patch(api_namespace, kind, "a", {"status": STATUSES[kind]}, below="/status")
    assert status == 200, answer
    assert loaded(answer).status == loaded({**kinds.manifest(kind, MINIMAL[kind]), "status": STATUSES[kind]}).status
    # A patch of the status does not change the spec.
    status, answer = kinds.patch(api_namespace, kind, "a", {"spec": {"suspend": True}}, below="/status")
    assert not answer["spec"]["suspend"]


@pytest.mark.parametrize("kind", STATUSES)
def test_a_status_is_bounded_too(kinds, api_namespace, kind):
    kinds.create(api_namespace, kinds.manifest(kind, MINIMAL[kind]))
    wrong = {"conditions": [{"type": "A", "status": "True"}, {"type": "A", "status": "False"}]}
    status, answer = kinds.patch(api_namespace, kind, "a", {"status": wrong}, below="/status")
    assert (status, answer["details"]["causes"][0]["reason"]) == (422, "FieldValueDuplicate")


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_the_api_server_accepts_the_examples(kinds, api_namespace, path):
    for resource in loads(path.read_text()):
        _is_taken(kinds, api_namespace, resource)


@pytest.mark.parametrize("name", bundled())
def test_the_api_server_accepts_the_bundled_benchmarks(kinds, api_namespace, name):
    for resource in (*load_bundled(name), episode_set(name)):
        _is_taken(kinds, api_namespace, resource)


def _is_taken(kinds, namespace, resource):
    sent = msgspec.to_builtins(resource)
    sent.pop("status", None)
    status, answer = kinds.create(namespace, sent, dry_run=True)
    assert status == 201, answer
    assert loaded(answer).spec == resource.spec
