"""The definitions of the custom resources, made from the structs. Pure."""

from typing import Any

import msgspec

from dgym.api.crd.rules import EPISODE_NAME_RULES, EPISODE_RULES, SET_RULES, TASK_RULES, Rule
from dgym.api.crd.schema import Schema, describe_fields, describe_struct, struct_schema, validations
from dgym.api.episode import Episode, EpisodeSpec, EpisodeStatus
from dgym.api.episodeset import EpisodeSet, EpisodeSetSpec, EpisodeSetStatus
from dgym.api.fields import API_VERSION, GROUP
from dgym.api.task import DebugTask, DebugTaskSpec

_VERSION = API_VERSION.removeprefix(f"{GROUP}/")

_STANDARD = {
    "apiVersion": {"type": "string", "description": f"The version of this form of the object: {API_VERSION}."},
    "kind": {"type": "string", "description": "The kind of the object."},
    "metadata": {"type": "object"},
}

_AGE = ("Age", "date", ".metadata.creationTimestamp", 0)


def custom_resource_definitions(*, keep: bool = False) -> list[dict[str, Any]]:
    """The manifests of the three CustomResourceDefinitions; with ``keep`` Helm leaves them when it uninstalls."""
    definitions = [_debug_tasks(), _episodes(), _episode_sets()]
    if keep:
        for definition in definitions:
            definition["metadata"]["annotations"] = {"helm.sh/resource-policy": "keep"}
    return definitions


def _debug_tasks() -> dict[str, Any]:
    schema = _root(DebugTask, struct_schema(DebugTaskSpec, rules=TASK_RULES))
    columns = [
        ("Image", "string", ".spec.image", 0),
        ("Entrypoint", "string", ".spec.entrypoint", 1),
        _AGE,
    ]
    return _definition("DebugTask", "dgt", _version(schema, columns))


def _episodes() -> dict[str, Any]:
    spec = struct_schema(EpisodeSpec, rules=EPISODE_RULES)
    schema = _root(Episode, spec, struct_schema(EpisodeStatus), rules=EPISODE_NAME_RULES)
    columns = [
        ("Reason", "string", ".status.reason", 0),
        ("Resolved", "string", '.status.conditions[?(@.type=="Resolved")].status', 0),
        ("Steps", "integer", ".status.steps", 0),
        _AGE,
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
    # Only there to be refused with a message that tells where tasks belong.
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
        _AGE,
        ("Finished", "string", '.status.conditions[?(@.type=="Finished")].status', 1),
        ("Pass@1", "string", ".status.passAt1", 1),
        ("Parallelism", "integer", ".spec.parallelism", 1),
        ("Suspended", "integer", ".status.suspended", 1),
        ("Message", "string", ".status.message", 1),
    ]
    version = _version(schema, columns)
    version["selectableFields"] = [{"jsonPath": ".status.reason"}]
    version["subresources"] = {
        "status": {},
        "scale": {"specReplicasPath": ".spec.parallelism", "statusReplicasPath": ".status.active"},
    }
    return _definition("EpisodeSet", "dgs", version)


_COUNTS = ("Total", "Active", "Resolved", "Unresolved", "Failed")


def _root(
    cls: type[msgspec.Struct], spec: Schema, status: Schema | None = None, *, rules: tuple[Rule, ...] = ()
) -> Schema:
    texts = describe_fields(cls)
    properties = {**_STANDARD, "spec": {**spec, "description": texts["spec"]}}
    if status is not None:
        properties["status"] = {**status, "description": texts["status"]}
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
