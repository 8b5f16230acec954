"""From the structs to the definitions of the custom resources and their structural schemas.

The API server then refuses what ``dgym.api.loads`` refuses, and gives the defaults that the structs give. Numbers are
whole, no object keeps fields that are not named, and nothing is unbounded, with one exception: what is free-form in the
structs is free-form in the schema.
"""

import re
from functools import cache
from inspect import getdoc
from typing import Any

import msgspec
from msgspec import inspect

from dgym.api.crd.rules import (
    ATOMIC,
    EPISODE_NAME_RULES,
    EPISODE_RULES,
    LIST_KEYS,
    LIST_SETS,
    RULES,
    SET_RULES,
    TASK_RULES,
    Rule,
)
from dgym.api.episode import Episode, EpisodeSpec, EpisodeStatus
from dgym.api.episodeset import EpisodeSet, EpisodeSetSpec, EpisodeSetStatus
from dgym.api.fields import API_VERSION, GROUP
from dgym.api.sandboxpool import SandboxPool, SandboxPoolSpec, SandboxPoolStatus
from dgym.api.schema import struct_type
from dgym.api.task import DebugTask, DebugTaskSpec, DebugTaskStatus

Schema = dict[str, Any]

_VERSION = API_VERSION.removeprefix(f"{GROUP}/")

_STANDARD = {
    "apiVersion": {"type": "string", "description": f"The version of this form of the object: {API_VERSION}."},
    "kind": {"type": "string", "description": "The kind of the object."},
    "metadata": {"type": "object"},
}

_AGE = ("Age", "date", ".metadata.creationTimestamp", 0)


def custom_resource_definitions(*, keep: bool = False) -> list[dict[str, Any]]:
    """The manifests of the CustomResourceDefinitions; with ``keep`` Helm leaves them when it uninstalls."""
    definitions = [_debug_tasks(), _episodes(), _episode_sets(), _sandbox_pools()]
    if keep:
        for definition in definitions:
            definition["metadata"]["annotations"] = {"helm.sh/resource-policy": "keep"}
    return definitions


def _debug_tasks() -> dict[str, Any]:
    schema = _root(DebugTask, struct_schema(DebugTaskSpec, rules=TASK_RULES), struct_schema(DebugTaskStatus))
    columns = [
        ("Image", "string", ".spec.image", 0),
        ("Health", "string", '.status.conditions[?(@.type=="Healthy")].reason', 0),
        ("Entrypoint", "string", ".spec.entrypoint", 1),
        _AGE,
    ]
    version = _version(schema, columns)
    version["subresources"] = {"status": {}}
    return _definition("DebugTask", "dgt", version)


def _episodes() -> dict[str, Any]:
    spec = struct_schema(EpisodeSpec, rules=EPISODE_RULES)
    schema = _root(Episode, spec, struct_schema(EpisodeStatus), rules=EPISODE_NAME_RULES)
    columns = [
        ("Reason", "string", ".status.reason", 0),
        ("Resolved", "string", '.status.conditions[?(@.type=="Resolved")].status', 0),
        ("Steps", "integer", ".status.steps", 0),
        _AGE,
        ("Task", "string", ".spec.taskRef.name", 1),
        ("State", "string", ".status.state", 1),
        ("Agent", "string", ".spec.agent.name", 1),
        ("Model", "string", ".spec.agent.model", 1),
        ("Attempt", "integer", ".status.attempt", 1),
        ("Pod", "string", ".status.podName", 1),
        ("Message", "string", ".status.message", 1),
    ]
    version = _version(schema, columns)
    version["subresources"] = {"status": {}}
    fields = (".status.reason", ".status.state", ".spec.agent.name", ".spec.agent.model", ".spec.taskRef.name")
    version["selectableFields"] = [{"jsonPath": path} for path in fields]
    return _definition("Episode", "dge", version)


def _episode_sets() -> dict[str, Any]:
    spec = struct_schema(EpisodeSetSpec, rules=SET_RULES)
    # A known field, so that a rule refuses it with a message on where tasks belong.
    refused = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    spec["properties"]["template"] = struct_schema(EpisodeSpec, leave_out=("task", "taskRef"))
    spec["properties"]["template"]["description"] = describe_fields(EpisodeSetSpec)["template"]
    for name in ("task", "taskRef"):
        text = "Not here: the tasks of an EpisodeSet are named by 'tasks' or chosen by 'taskSelector'."
        spec["properties"]["template"]["properties"][name] = {**refused, "description": text}
    schema = _root(EpisodeSet, spec, struct_schema(EpisodeSetStatus))
    columns = [
        ("Reason", "string", ".status.reason", 0),
        *((name, "integer", f".status.{name.lower()}", 0) for name in _COUNTS),
        ("Waiting", "string", ".status.waiting", 0),
        _AGE,
        ("Finished", "string", '.status.conditions[?(@.type=="Finished")].status', 1),
        ("Pass@1", "string", ".status.passAt1", 1),
        ("Arms", "string", ".status.resolvedByArm", 1),
        ("Parallelism", "integer", ".spec.parallelism", 1),
        ("Suspended", "integer", ".status.suspended", 1),
        ("Message", "string", ".status.message", 1),
    ]
    version = _version(schema, columns)
    version["selectableFields"] = [{"jsonPath": ".status.reason"}]
    version["subresources"] = {
        "status": {},
        "scale": {"specReplicasPath": ".spec.parallelism", "statusReplicasPath": ".status.unfinished"},
    }
    return _definition("EpisodeSet", "dgs", version)


_COUNTS = ("Total", "Active", "Resolved", "Unresolved", "Failed")


def _sandbox_pools() -> dict[str, Any]:
    schema = _root(SandboxPool, struct_schema(SandboxPoolSpec), struct_schema(SandboxPoolStatus))
    columns = [
        ("Reason", "string", ".status.reason", 0),
        ("Idle", "integer", ".status.idle", 0),
        ("Starting", "integer", ".status.starting", 0),
        ("Claimed", "integer", ".status.claimed", 0),
        _AGE,
        ("Task", "string", ".spec.taskRef.name", 1),
        ("Message", "string", ".status.message", 1),
    ]
    version = _version(schema, columns)
    version["subresources"] = {
        "status": {},
        "scale": {"specReplicasPath": ".spec.minIdle", "statusReplicasPath": ".status.idle"},
    }
    return _definition("SandboxPool", "dgp", version)


def _root(
    cls: type[msgspec.Struct], spec: Schema, status: Schema | None = None, *, rules: tuple[Rule, ...] = ()
) -> Schema:
    texts = describe_fields(cls)
    properties = {**_STANDARD, "spec": {**spec, "description": texts["spec"]}}
    if status is not None:
        properties["status"] = {**status, "description": texts["status"]}
        if "observedGeneration" in status["properties"]:
            # Without a status, kstatus would take an object for current that no operator has seen yet.
            properties["status"]["default"] = {"observedGeneration": -1}
    schema: Schema = {"type": "object", "description": describe_struct(cls), "properties": properties}
    schema["required"] = ["spec"]
    if rules:
        schema["x-kubernetes-validations"] = validations(rules)
    return schema


def _version(schema: Schema, columns: list[tuple[str, str, str, int]]) -> dict[str, Any]:
    return {
        "name": _VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "additionalPrinterColumns": [
            {"name": name, "type": type_, "jsonPath": path, **({"priority": priority} if priority else {})}
            for name, type_, path, priority in columns
        ],
    }


def _definition(kind: str, short_name: str, version: dict[str, Any]) -> dict[str, Any]:
    plural = f"{kind.lower()}s"
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}", "labels": {"app.kubernetes.io/name": "dgym"}},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": [short_name],
                "categories": ["dgym"],
            },
            "versions": [version],
        },
    }


_INT32 = 2**31 - 1
_BASE64 = "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"


def struct_schema(
    cls: type[msgspec.Struct], *, rules: tuple[Rule, ...] = (), leave_out: tuple[str, ...] = ()
) -> Schema:
    """The schema of a struct: its own rules and ``rules``, without the fields of ``leave_out``."""
    return _struct(struct_type(cls), rules=rules, leave_out=leave_out)


def validations(rules: tuple[Rule, ...]) -> list[Schema]:
    """Rules as the API server reads them."""
    return [
        {"rule": rule.rule, "message": rule.message, **({"fieldPath": rule.field} if rule.field else {})}
        for rule in rules
    ]


def _struct(type_: inspect.StructType, *, rules: tuple[Rule, ...] = (), leave_out: tuple[str, ...] = ()) -> Schema:
    cls = type_.cls
    texts = describe_fields(cls)
    fields = [field for field in type_.fields if field.encode_name not in leave_out]
    schema: Schema = {
        "type": "object",
        "description": describe_struct(cls),
        "properties": {field.encode_name: _field(cls, field, texts.get(field.name, "")) for field in fields},
    }
    required = [field.encode_name for field in fields if field.required]
    if required:
        schema["required"] = required
    if cls in ATOMIC:
        schema["x-kubernetes-map-type"] = "atomic"
    if all_rules := (*RULES.get(cls, ()), *rules):
        schema["x-kubernetes-validations"] = validations(all_rules)
    return schema


def _field(cls: type, field: inspect.Field, text: str) -> Schema:
    schema = _schema(field.type)
    if text:
        schema["description"] = text
    if schema["type"] == "array":
        schema |= _list_type(cls, field.name)
    if field.encode_name.endswith("Base64"):
        schema["pattern"] = _BASE64
    if isinstance(field.default, str | int) and schema["type"] in ("string", "integer", "boolean"):
        # An empty text says nothing that its absence does not say.
        schema |= {} if field.default == "" else {"default": field.default}
    if (cls, field.name) in RULES:
        schema["x-kubernetes-validations"] = validations(RULES[cls, field.name])
    return schema


def _list_type(cls: type, name: str) -> Schema:
    if keys := LIST_KEYS.get((cls, name)):
        return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}
    return {"x-kubernetes-list-type": "set" if (cls, name) in LIST_SETS else "atomic"}


def _schema(type_: inspect.Type) -> Schema:
    match type_:
        case inspect.Metadata():
            return _schema(type_.type)
        case inspect.UnionType():
            return _union([member for member in type_.types if not isinstance(member, inspect.NoneType)])
        case inspect.StructType():
            return _struct(type_)
        case inspect.VarTupleType():
            items = _without_defaults(_schema(type_.item_type))
            return _sized({"type": "array", "items": items}, type_, "Items")
        case inspect.DictType():
            return _mapping(type_)
        case inspect.StrType():
            schema = _sized({"type": "string"}, type_, "Length")
            return schema if type_.pattern is None else {**schema, "pattern": type_.pattern}
        case inspect.IntType():
            return _integer(type_)
        case inspect.BoolType():
            return {"type": "boolean"}
        case inspect.LiteralType():
            return {"type": "string", "enum": list(type_.values)}
        case inspect.DateTimeType():
            return {"type": "string", "format": "date-time"}
    raise TypeError(f"{type_} has no place in a manifest")


def _integer(type_: inspect.IntType) -> Schema:
    assert type_.ge is not None
    assert type_.le is not None
    wide = "int32" if type_.ge >= -_INT32 and type_.le <= _INT32 else "int64"
    return {"type": "integer", "format": wide, "minimum": type_.ge, "maximum": type_.le}


def _mapping(type_: inspect.DictType) -> Schema:
    if isinstance(type_.value_type, inspect.AnyType):
        return _sized({"type": "object", "x-kubernetes-preserve-unknown-fields": True}, type_, "Properties")
    return _sized({"type": "object", "additionalProperties": _schema(type_.value_type)}, type_, "Properties")


def _sized(schema: Schema, type_: inspect.StrType | inspect.VarTupleType | inspect.DictType, what: str) -> Schema:
    if type_.min_length:
        schema[f"min{what}"] = type_.min_length
    if type_.max_length is not None:
        schema[f"max{what}"] = type_.max_length
    return schema


def _union(members: list[inspect.Type]) -> Schema:
    """A type that may be absent; or a name that may be written as an object to say more.

    A structural schema has one type or none, and with none it keeps what it is given. Each bound concerns values of
    its own type alone: those on numbers and lists can be met by none, the others say what texts and objects may be.
    """
    if len(members) == 1:
        return _schema(members[0])
    name, struct = (_schema(member) for member in members)
    if struct["type"] == "integer":
        return _int_or_string(name, struct)
    bounds: Schema = {key: name[key] for key in ("minLength", "maxLength", "pattern") if key in name}
    return {
        "description": struct["description"],
        "x-kubernetes-preserve-unknown-fields": True,
        **bounds,
        "properties": struct["properties"],
        "required": struct["required"],
        "maxProperties": len(struct["properties"]),
        "minimum": 1,
        "maximum": 0,
        "minItems": 1,
        "maxItems": 0,
        "not": {"enum": [True, False]},
    }


def _int_or_string(text: Schema, number: Schema) -> Schema:
    bounds: Schema = {**text, **number}
    for key in ("type", "format"):
        bounds.pop(key, None)
    return {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}], **bounds}


def _without_defaults(schema: Schema) -> Schema:
    """The schema of a list's items without defaults.

    ``kubectl apply`` replaces lists as a whole: a default that the API server adds to an item is a difference from the
    manifest at every apply. Readers of the object add these defaults.
    """
    kept = {key: value for key, value in schema.items() if key != "default"}
    if "properties" in kept:
        kept["properties"] = {name: _without_defaults(each) for name, each in kept["properties"].items()}
    return kept


_SECTION = "Attributes:"
_FIELD = re.compile(r"    (\w+): (.*)")


@cache
def describe_struct(cls: type) -> str:
    """What the docstring says before its list of attributes."""
    return _flowed(_lines(cls)[0])


@cache
def describe_fields(cls: type) -> dict[str, str]:
    """What the docstring says of each attribute, by the attribute's name."""
    found: dict[str, list[str]] = {}
    texts: list[str] = []
    for line in _lines(cls)[1]:
        if match := _FIELD.fullmatch(line):
            texts = found.setdefault(match[1], [match[2]])
        else:
            texts.append(line)
    return {name: _flowed(lines) for name, lines in found.items()}


def _lines(cls: type) -> tuple[list[str], list[str]]:
    lines = (getdoc(cls) or "").splitlines()
    if _SECTION not in lines:
        return lines, []
    start = lines.index(_SECTION)
    return lines[:start], lines[start + 1 :]


def _flowed(lines: list[str]) -> str:
    """One paragraph; marks of code become what a terminal shows well."""
    return " ".join(line.strip() for line in lines if line.strip()).replace("``", "'")
