"""Generates CustomResourceDefinitions from the structs of ``dgym.api``: structural schemas, and CEL rules.

With them the API server refuses what ``dgym.api.loads`` refuses, and sets the same defaults. All numbers are integers,
unknown fields are dropped, and all sizes are bounded, except in fields that are free-form in the structs.

The CEL rules are those rules of ``dgym.api._validation`` that fit into the cost budget of the API server. It
estimates the cost of a rule from the bounds of the fields, and refuses a definition whose rules may exceed the
budget. The operator checks the other rules and ends an Episode that violates one as InvalidSpec:

- Tests that are in both lists.
- The size of inline files in bytes. The CEL rule counts characters.
- Tools. CEL rules cannot read them, because each may be a name or an object. So they cannot be made immutable either:
  an Episode runs with the tools that it has when it is assigned to an agent pod.

The list types of the schema exclude duplicate names.
"""

import re
from collections.abc import Iterable
from functools import cache
from inspect import getdoc
from typing import Any

import msgspec
from msgspec import inspect

from dgym.api._episode import Episode, EpisodeSpec, EpisodeStatus
from dgym.api._episodeset import (
    EpisodeSet,
    EpisodeSetSpec,
    EpisodeSetStatus,
    LabelRequirement,
    LabelSelector,
    SetPool,
)
from dgym.api._fields import API_VERSION, GROUP, INLINE_LIMIT
from dgym.api._sandboxpool import SandboxPool, SandboxPoolSpec, SandboxPoolStatus
from dgym.api._task import (
    ConfigMapSource,
    DebugTask,
    DebugTaskSpec,
    DebugTaskStatus,
    Environment,
    Evaluation,
    InlineFile,
    KeyToPath,
    Scoring,
    SourceSpec,
)
from dgym.api._validation import struct_type

Schema = dict[str, Any]

_VERSION = API_VERSION.removeprefix(f"{GROUP}/")

_STANDARD = {
    "apiVersion": {"type": "string", "description": f"The API version of the object: {API_VERSION}."},
    "kind": {"type": "string", "description": "The kind of the object."},
    "metadata": {"type": "object"},
}

_AGE = ("Age", "date", ".metadata.creationTimestamp", 0)
_COUNTS = ("Total", "Active", "Resolved", "Unresolved", "Failed")
_INT32 = 2**31 - 1
_SECTION = "Attributes:"
_FIELD = re.compile(r"    (\w+): (.*)")
_BASE64 = "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"

NAME_LIMIT = 58
"""Longest name of an Episode. The name of its pod also has the number of the attempt, and at most 63 characters."""


class Rule(msgspec.Struct, frozen=True):
    """A rule in CEL, the message of its violation, and the field that the message names."""

    rule: str
    message: str
    field: str = ""


_HASHES = Rule(
    "!has(self.requirements) || !self.requirements.exists(line, line.contains(' --hash='))"
    " || self.requirements.all(line, line.contains(' --hash='))",
    "some requirements have hashes and others do not; give hashes for all requirements or for none",
    ".requirements",
)

ATOMIC: frozenset[type] = frozenset({LabelSelector})
"""Structs that server-side apply replaces as a whole."""

LIST_KEYS: dict[tuple[type, str], tuple[str, ...]] = {
    (ConfigMapSource, "items"): ("path",),
    (DebugTaskSpec, "env"): ("name",),
    (DebugTaskStatus, "conditions"): ("type",),
    (EpisodeSetSpec, "arms"): ("name",),
    (EpisodeSetSpec, "tasks"): ("name",),
    (EpisodeSetStatus, "arms"): ("name",),
    (EpisodeSetStatus, "failed_indexes"): ("reason",),
    (EpisodeSetStatus, "conditions"): ("type",),
    (EpisodeStatus, "conditions"): ("type",),
    (SandboxPoolStatus, "conditions"): ("type",),
    (Scoring, "hidden_files"): ("path",),
    (SourceSpec, "files"): ("path",),
}
"""Lists of type ``map``, and the fields that identify an item."""

LIST_SETS: frozenset[tuple[type, str]] = frozenset(
    {(kind, name) for kind in (Scoring, Evaluation) for name in ("fail_to_pass", "pass_to_pass")}
)
"""Lists of type ``set``. All other lists are atomic, because the order of commands and patterns matters."""


def immutable(names: Iterable[str], *, optional: Iterable[str], remedy: str) -> tuple[Rule, ...]:
    """Return one rule for each field that cannot be changed. An optional field cannot be added or removed either."""
    maybe = frozenset(optional)
    return tuple(
        Rule(
            f"has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || self.{name} == oldSelf.{name})"
            if name in maybe
            else f"self.{name} == oldSelf.{name}",
            f"cannot be changed; {remedy}",
            f".{name}",
        )
        for name in names
    )


_CANCEL = (Rule("self || !oldSelf", "cancel cannot be undone; it stays true"),)
_PATH = (
    Rule(
        "!('/' + self.path + '/').matches('/[.]{0,2}/')",
        "has an empty, '.' or '..' part; write the plain path, such as src/calc.py",
        ".path",
    ),
    Rule(
        "!('/' + self.path + '/').contains('/.git/')",
        "is in .git, which is never delivered; remove it",
        ".path",
    ),
)

_SOURCES = ("configMapRef", "git", "archive", "localPath")
_CHOSEN = ", ".join(f"has(self.{name})" for name in _SOURCES)

_INLINE_SIZE = " + ".join(
    f"({given} ? self.{path}.map(f, (has(f.content) ? size(f.content) : 0)"
    f" + (has(f.contentBase64) ? size(f.contentBase64) * 3 / 4 : 0)).sum() : 0)"
    for given, path in (
        ("has(self.source) && has(self.source.files)", "source.files"),
        ("has(self.scoring) && has(self.scoring.hiddenFiles)", "scoring.hiddenFiles"),
    )
)

_IDLE_RULES = (Rule("!has(self.maxIdle) || self.maxIdle >= self.minIdle", "must not be less than minIdle", ".maxIdle"),)

RULES: dict[type | tuple[type, str], tuple[Rule, ...]] = {
    InlineFile: (
        Rule("has(self.content) != has(self.contentBase64)", "give exactly one of content and contentBase64"),
        *_PATH,
    ),
    KeyToPath: _PATH,
    SourceSpec: (
        Rule(
            f"[has(self.files) && size(self.files) > 0, {_CHOSEN}].filter(given, given).size() <= 1",
            f"at most one of files, {', '.join(_SOURCES)} can be given",
        ),
    ),
    Scoring: (
        Rule(
            "self.parser != 'exitStatus' || !((has(self.failToPass) && size(self.failToPass) > 0)"
            " || (has(self.passToPass) && size(self.passToPass) > 0))",
            "exitStatus does not report single tests; remove failToPass and passToPass or use pytest",
            ".parser",
        ),
        Rule(
            "!has(self.evaluation) || (self.parser == 'auto'"
            " && (!has(self.failToPass) || size(self.failToPass) == 0)"
            " && (!has(self.passToPass) || size(self.passToPass) == 0))",
            "cannot be combined with failToPass, passToPass or parser; name the tests in evaluation",
            ".evaluation",
        ),
    ),
    Evaluation: (
        Rule(
            "(self.parser == 'code') == has(self.parserCode)",
            "is required with parser 'code', and not allowed with another parser",
            ".parserCode",
        ),
        Rule(
            "(self.rule == 'exact') == (has(self.outcomes) && size(self.outcomes) > 0)",
            "is required with rule 'exact', and not allowed with another rule",
            ".outcomes",
        ),
        Rule(
            "(self.rule != 'exact') == ((has(self.failToPass) && size(self.failToPass) > 0)"
            " || (has(self.passToPass) && size(self.passToPass) > 0))",
            "failToPass and passToPass do not match the rule; name at least one test, or with rule 'exact' none",
            ".failToPass",
        ),
    ),
    Environment: (_HASHES,),
    DebugTaskSpec: (
        _HASHES,
        Rule(
            "!has(self.environment) || !has(self.environment.requirements) || size(self.environment.requirements) == 0"
            " || !has(self.requirements) || size(self.requirements) == 0",
            "requirements and environment.requirements are both given; keep exactly one of them",
            ".requirements",
        ),
        Rule(
            f"{_INLINE_SIZE} <= {INLINE_LIMIT}",
            f"inline files (source.files and scoring.hiddenFiles) contain more than {INLINE_LIMIT} bytes;"
            " move them to a ConfigMap (configMapRef), an archive, git or the image",
        ),
    ),
    LabelRequirement: (
        Rule(
            "!(self.operator in ['In', 'NotIn']) || (has(self.values) && size(self.values) > 0)",
            "is empty; operators In and NotIn need at least one value",
            ".values",
        ),
        Rule(
            "!(self.operator in ['Exists', 'DoesNotExist']) || !has(self.values) || size(self.values) == 0",
            "operators Exists and DoesNotExist take no values; remove them",
            ".values",
        ),
    ),
    SandboxPoolSpec: _IDLE_RULES,
    SetPool: _IDLE_RULES,
    (EpisodeSpec, "cancel"): _CANCEL,
    (EpisodeSetSpec, "cancel"): _CANCEL,
}
"""Rules of a struct, or of one field of a struct, that apply wherever the struct is used."""

TASK_RULES = (
    Rule(
        "self == oldSelf",
        "a DebugTask cannot be changed; create a DebugTask with another name, or delete this DebugTask first",
    ),
)
"""Rules of a DebugTask's spec."""

EPISODE_RULES = (
    Rule("!(has(self.task) && has(self.taskRef))", "taskRef and task are both given; keep exactly one of them"),
    Rule("has(self.task) || has(self.taskRef)", "taskRef is missing; give exactly one of taskRef and task"),
    *immutable(
        (
            *("taskRef", "task", "agent", "startTimeoutSeconds", "activeDeadlineSeconds", "backoffLimit"),
            *("maxDisruptions", "podTemplate", "podOverrides", "queueName"),
        ),
        optional=("taskRef", "task", "agent", "podTemplate", "podOverrides", "queueName"),
        remedy="delete the Episode and create it again, or create another Episode",
    ),
)
"""Rules of an Episode's spec, but not of a set's template. suspend, cancel, priority and the TTL can be changed."""

_ANOTHER_SET = "delete the EpisodeSet and create it again, or create another EpisodeSet"

SET_RULES = (
    Rule(
        "!(has(self.taskSelector) && has(self.tasks) && size(self.tasks) > 0)",
        "tasks and taskSelector are both given; keep exactly one of them",
    ),
    Rule(
        "has(self.taskSelector) || (has(self.tasks) && size(self.tasks) > 0)",
        "tasks is missing; give tasks or taskSelector ('{}' selects every task)",
    ),
    Rule(
        "!has(self.template) || !(has(self.template.task) || has(self.template.taskRef))",
        "a set's tasks come from tasks or taskSelector; remove task and taskRef from the template",
        ".template",
    ),
    Rule(
        "!has(self.arms) || (has(self.template) && has(self.template.agent))"
        " || self.arms.all(arm, has(arm.agent) && has(arm.agent.name))",
        "an arm's agent.name is missing; name an agent in each arm or in template.agent",
        ".arms",
    ),
    *immutable(
        ("taskSelector", "tasks", "samples", "template", "priority"),
        optional=("taskSelector", "tasks", "template"),
        remedy=_ANOTHER_SET,
    ),
    # Lists with keys are equal in any order, and indexes follow the order of arms.
    Rule(
        "has(self.arms) == has(oldSelf.arms) && (!has(self.arms) || (self.arms == oldSelf.arms"
        " && self.arms.map(arm, arm.name) == oldSelf.arms.map(arm, arm.name)))",
        f"cannot be changed; {_ANOTHER_SET}",
        ".arms",
    ),
)
"""Rules of an EpisodeSet's spec. parallelism, suspend, cancel, maxFailed, costLimit and the TTL can be changed."""

EPISODE_NAME_RULES = (
    Rule(
        f"size(self.metadata.name) <= {NAME_LIMIT}",
        f"metadata.name of an Episode can have at most {NAME_LIMIT} characters, because pod names start with it",
    ),
)
"""Rules of an Episode as a whole."""


def custom_resource_definitions() -> list[dict[str, Any]]:
    """Return the manifests of the CustomResourceDefinitions."""
    return [_debug_tasks(), _episodes(), _episode_sets(), _sandbox_pools()]


def _debug_tasks() -> dict[str, Any]:
    schema = _root(DebugTask, struct_schema(DebugTaskSpec, rules=TASK_RULES), struct_schema(DebugTaskStatus))
    columns = [
        ("Image", "string", ".spec.image", 0),
        ("Health", "string", '.status.conditions[?(@.type=="Healthy")].reason', 0),
        ("Entrypoint", "string", ".spec.entrypoint", 1),
        _AGE,
    ]
    return _definition("DebugTask", "dgt", schema, columns)


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
    selectable = (".status.reason", ".status.state", ".spec.agent.name", ".spec.agent.model", ".spec.taskRef.name")
    return _definition("Episode", "dge", schema, columns, selectable=selectable)


def _episode_sets() -> dict[str, Any]:
    spec = struct_schema(EpisodeSetSpec, rules=SET_RULES)
    # The fields are in the schema, so that a rule refuses them with a message. Unknown fields would be dropped.
    refused = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    spec["properties"]["template"] = struct_schema(EpisodeSpec, leave_out=("task", "taskRef"))
    spec["properties"]["template"]["description"] = describe_fields(EpisodeSetSpec)["template"]
    for name in ("task", "taskRef"):
        text = "Not allowed here. 'tasks' or 'taskSelector' of the EpisodeSet selects the tasks."
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
    scale = {"specReplicasPath": ".spec.parallelism", "statusReplicasPath": ".status.unfinished"}
    return _definition("EpisodeSet", "dgs", schema, columns, scale=scale, selectable=(".status.reason",))


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
    scale = {"specReplicasPath": ".spec.minIdle", "statusReplicasPath": ".status.idle"}
    return _definition("SandboxPool", "dgp", schema, columns, scale=scale)


def _root(cls: type[msgspec.Struct], spec: Schema, status: Schema, *, rules: tuple[Rule, ...] = ()) -> Schema:
    texts = describe_fields(cls)
    properties = {
        **_STANDARD,
        "spec": {**spec, "description": texts["spec"]},
        "status": {**status, "description": texts["status"]},
    }
    if "observedGeneration" in status["properties"]:
        # Without a status, kstatus would regard a new object as current before an operator has processed it.
        properties["status"]["default"] = {"observedGeneration": -1}
    schema: Schema = {"type": "object", "description": describe_struct(cls), "properties": properties}
    schema["required"] = ["spec"]
    if rules:
        schema["x-kubernetes-validations"] = validations(rules)
    return schema


def _definition(
    kind: str,
    short_name: str,
    schema: Schema,
    columns: list[tuple[str, str, str, int]],
    *,
    scale: dict[str, str] | None = None,
    selectable: tuple[str, ...] = (),
) -> dict[str, Any]:
    plural = f"{kind.lower()}s"
    version: dict[str, Any] = {
        "name": _VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "additionalPrinterColumns": [
            {"name": name, "type": type_, "jsonPath": path, **({"priority": priority} if priority else {})}
            for name, type_, path, priority in columns
        ],
        "subresources": {"status": {}, **({"scale": scale} if scale else {})},
    }
    if selectable:
        version["selectableFields"] = [{"jsonPath": path} for path in selectable]
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


def struct_schema(
    cls: type[msgspec.Struct], *, rules: tuple[Rule, ...] = (), leave_out: tuple[str, ...] = ()
) -> Schema:
    """Return the schema of a struct with its rules and ``rules``, without the fields of ``leave_out``."""
    return _struct(struct_type(cls), rules=rules, leave_out=leave_out)


def validations(rules: tuple[Rule, ...]) -> list[Schema]:
    """Return the rules in the form of ``x-kubernetes-validations``."""
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
        # An empty text is equivalent to a missing field, so it is not a default.
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
    raise TypeError(f"{type_} cannot be used in a manifest")


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
    """Return the schema of an optional type, of an integer or text, or of a name that may also be an object.

    A structural schema cannot have two types, so a name or an object has no type and keeps all values. Each bound only
    applies to values of its type: numbers, lists and booleans are excluded, texts and objects are limited.
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
    """Return the schema of a list's items without defaults.

    ``kubectl apply`` replaces lists as a whole. If the API server added a default to an item, the object would differ
    from the manifest at every apply. Programs that decode the object add these defaults.
    """
    kept = {key: value for key, value in schema.items() if key != "default"}
    if "properties" in kept:
        kept["properties"] = {name: _without_defaults(each) for name, each in kept["properties"].items()}
    return kept


@cache
def describe_struct(cls: type) -> str:
    """Return the text of the docstring before its list of attributes."""
    return _flowed(_lines(cls)[0])


@cache
def describe_fields(cls: type) -> dict[str, str]:
    """Return the description of each attribute in the docstring, by the attribute's name."""
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
    """Join the lines to one paragraph. Double backquotes become apostrophes."""
    return " ".join(line.strip() for line in lines if line.strip()).replace("``", "'")
