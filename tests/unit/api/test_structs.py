import subprocess
import sys

import msgspec
import pytest
import yaml
from msgspec import inspect

import dgym.api
from dgym.api import (
    TREATMENTS,
    DebugTask,
    Episode,
    EpisodeSet,
    Treatment,
    known_paths,
    loads,
    struct_type,
)
from dgym.wire import EndReason, Outcome

KINDS = [DebugTask, Episode, EpisodeSet]


def test_importing_the_structs_reads_no_yaml():
    code = "import sys, dgym.api; print('yaml' in sys.modules, 'difflib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_every_public_name_exists():
    for name in dgym.api.__all__:
        assert getattr(dgym.api, name) is not None
    with pytest.raises(AttributeError):
        dgym.api.nothing  # noqa: B018


def inner(type_, path):
    """Return the types one level inside ``type_``, each with its path."""
    if isinstance(type_, inspect.Metadata):
        return [(type_.type, path)]
    if isinstance(type_, inspect.UnionType):
        return [(member, path) for member in type_.types]
    if isinstance(type_, inspect.StructType):
        return [(field.type, f"{path}.{field.encode_name}") for field in type_.fields]
    if isinstance(type_, inspect.VarTupleType):
        return [(type_.item_type, f"{path}[]")]
    if isinstance(type_, inspect.DictType) and not isinstance(type_.value_type, inspect.AnyType):
        return [(type_.key_type, f"{path}.*"), (type_.value_type, f"{path}.*")]
    return []


def is_bounded(type_):
    if isinstance(type_, inspect.VarTupleType | inspect.DictType):
        return type_.max_length is not None
    if isinstance(type_, inspect.StrType):
        return type_.max_length is not None or type_.pattern is not None
    if isinstance(type_, inspect.IntType):
        return type_.ge is not None and type_.le is not None
    return not isinstance(type_, inspect.FloatType)


def unbounded(type_, path):
    """Yield the paths of strings, numbers, lists and mappings without a bound. Free-form data is left out."""
    if not is_bounded(type_):
        yield path
    for member, below in inner(type_, path):
        yield from unbounded(member, below)


@pytest.mark.parametrize("kind", KINDS)
def test_everything_in_spec_and_status_is_bounded(kind):
    for field in struct_type(kind).fields:
        if field.encode_name in ("spec", "status"):
            assert list(unbounded(field.type, field.encode_name)) == []


@pytest.mark.parametrize("kind", KINDS)
def test_unknown_fields_are_refused_everywhere(kind):
    level = [struct_type(kind)]
    while level:
        struct = level.pop()
        # Older commands must read a newer Outcome. ``loads`` refuses unknown fields of every struct.
        assert struct.forbid_unknown_fields or struct.cls is Outcome, struct.cls
        for field in struct.fields:
            members = field.type.types if isinstance(field.type, inspect.UnionType) else (field.type,)
            level += [member for member in members if isinstance(member, inspect.StructType)]


def test_each_reason_has_one_treatment():
    assert set(TREATMENTS) == {reason.value for reason in EndReason}
    outcomes = {reason for reason, treatment in TREATMENTS.items() if treatment is Treatment.COUNTED}
    assert outcomes == {reason.value for reason in EndReason if reason.is_counted}


def test_acronyms_keep_their_case():
    paths = set(known_paths(struct_type(Episode)))
    assert {"status.outcome.resultURI", "status.taskUID", "status.assignment.agentPodUID"} <= paths


@pytest.mark.parametrize("kind", KINDS)
def test_encoded_resources_can_be_loaded(kind):
    specs = {"DebugTask": {}, "Episode": {"taskRef": {"name": "a"}}, "EpisodeSet": {"tasks": [{"name": "a"}]}}
    name = kind.__name__
    manifest = {"apiVersion": "dgym.dev/v1alpha1", "kind": name, "metadata": {"name": "a"}, "spec": specs[name]}
    (resource,) = loads(yaml.safe_dump(manifest))
    written = msgspec.json.encode(resource).decode()
    assert '"kind"' in written
    assert '"apiVersion"' in written
    assert loads(written) == [resource]
