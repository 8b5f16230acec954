import json
import subprocess
import sys

import msgspec
import pytest
from msgspec import inspect

from dgym.api import DebugTask, Episode, EpisodeSet, custom_resource_definitions
from dgym.api._crd import describe_fields, describe_struct
from dgym.api._validation import inner_type, struct_type

DEFINITIONS = {each["spec"]["names"]["kind"]: each for each in custom_resource_definitions()}
STRUCTS = {"DebugTask": DebugTask, "Episode": Episode, "EpisodeSet": EpisodeSet}
FREE_FORM = {"parameters", "options", "tools[]"}


def schema_of(kind):
    return DEFINITIONS[kind]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def nodes(schema, path):
    """Yield the schema and every schema inside it, each with its path."""
    yield path, schema
    for name, below in schema.get("properties", {}).items():
        yield from nodes(below, f"{path}.{name}")
    if "items" in schema:
        yield from nodes(schema["items"], f"{path}[]")
    if "additionalProperties" in schema:
        yield from nodes(schema["additionalProperties"], f"{path}.*")


NODES = [(path, node) for kind in DEFINITIONS for path, node in nodes(schema_of(kind), kind)]


def fields(type_, path):
    """Yield every field of the struct and of nested structs, with its path and its class."""
    struct = inner_type(type_)
    if isinstance(struct, inspect.VarTupleType):
        yield from fields(struct.item_type, f"{path}[]")
    if isinstance(struct, inspect.StructType):
        for field in struct.fields:
            yield f"{path}.{field.encode_name}", struct.cls, field
            yield from fields(field.type, f"{path}.{field.encode_name}")


@pytest.mark.parametrize("kind", STRUCTS)
def test_every_field_of_a_struct_is_in_its_schema_and_nothing_else(kind):
    expected = {path for path, _, _ in fields(struct_type(STRUCTS[kind]), kind)}
    found = {path for path, _ in nodes(schema_of(kind), kind)}
    expected = {path for path in expected if ".metadata." not in path}
    if kind == "EpisodeSet":  # a set refuses both fields, so their schemas have no properties
        hidden = ("EpisodeSet.spec.template.task.", "EpisodeSet.spec.template.taskRef.")
        expected = {path for path in expected if not path.startswith(hidden)}
    assert expected == {path for path in found if not path.endswith(("[]", ".*"))} - {kind}


@pytest.mark.parametrize("kind", STRUCTS)
def test_defaults_are_those_of_the_structs(kind):
    found = dict(nodes(schema_of(kind), kind))
    for path, _, field in fields(struct_type(STRUCTS[kind]), kind):
        node = found.get(path)
        if node is None or path.endswith((".apiVersion", ".kind")):
            continue
        given = field.default if isinstance(field.default, str | int) and field.default != "" else None
        if "[]" in path:
            given = None  # kubectl replaces whole lists and would report a default as a change.
        if path == f"{kind}.status" and kind != "DebugTask":
            given = {"observedGeneration": -1}
        assert node.get("default") == given, path


def test_every_field_can_be_explained():
    silent = [path for path, node in NODES if not node.get("description") and not path.endswith(("[]", ".*"))]
    assert sorted(silent) == ["DebugTask.metadata", "Episode.metadata", "EpisodeSet.metadata", "SandboxPool.metadata"]


def test_explanations_are_sentences_without_markup():
    for path, node in NODES:
        text = node.get("description", ".")
        assert text.endswith("."), path
        assert "``" not in text, path
        assert text[0] in "'." or text[0].isupper(), path


def test_names_in_explanations_are_those_of_manifests():
    assert [(path, node["description"]) for path, node in NODES if "_" in node.get("description", "")] == [
        (path, "Name of the agent, such as debug_agent.")
        for path in (
            "Episode.spec.agent.name",
            "EpisodeSet.spec.template.agent.name",
            "EpisodeSet.spec.arms[].agent.name",
        )
    ]


def test_every_field_is_bounded_and_none_is_a_float():
    for path, node in NODES:
        assert node.get("type") != "number", path
        if node.get("type") == "array":
            assert "maxItems" in node, path
            assert node["x-kubernetes-list-type"] in ("map", "set", "atomic"), path
        if "additionalProperties" in node:
            assert "maxProperties" in node, path
        if node.get("type") == "integer":
            assert {"minimum", "maximum", "format"} <= set(node), path
        if node.get("type") == "string" and path.count(".") > 1 and "enum" not in node and "format" not in node:
            assert {"maxLength", "pattern"} & set(node), path


def test_only_what_is_free_form_keeps_unknown_fields():
    keeping = {path for path, node in NODES if node.get("x-kubernetes-preserve-unknown-fields")}
    refused = {"EpisodeSet.spec.template.task", "EpisodeSet.spec.template.taskRef"}
    assert {path.rpartition(".")[2] for path in keeping - refused} == FREE_FORM


def test_every_call_makes_its_own():
    first, second = custom_resource_definitions(), custom_resource_definitions()
    assert first == second
    first[0]["spec"]["versions"][0]["schema"].clear()
    assert second == custom_resource_definitions()


def test_they_are_small_enough_for_client_side_apply():
    assert all(len(json.dumps(each)) < 100_000 for each in DEFINITIONS.values())


def test_importing_the_structs_does_not_create_the_schemas():
    code = "import sys, dgym.api; print('dgym.api._crd' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


class Documented(msgspec.Struct):
    """First line,
    and second: with a colon.

    Attributes:
        one: A text that ``flows``
            over two lines.
        two: Another.
    """

    one: str
    two: str


class Bare(msgspec.Struct):
    one: str


def test_docstrings_become_paragraphs():
    assert describe_struct(Documented) == "First line, and second: with a colon."
    assert describe_fields(Documented) == {"one": "A text that 'flows' over two lines.", "two": "Another."}
    assert describe_fields(Bare) == {}
