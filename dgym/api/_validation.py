"""Checks plain data against the structs, and rules between fields. All problems are found at once.

The rules are those that types cannot express: unions, total sizes, duplicates, paths outside of the repository.
"""

import base64
import binascii
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect

from dgym.api._episode import Episode, EpisodeSpec, ToolSpec
from dgym.api._episodeset import EpisodeSet, EpisodeSetSpec, LabelSelector, SetPool
from dgym.api._fields import INLINE_LIMIT, Timestamp
from dgym.api._sandboxpool import SandboxPool, SandboxPoolSpec
from dgym.api._task import DebugTask, DebugTaskSpec, Evaluation, InlineFile, Scoring, SourceSpec, without_hashes
from dgym.errors import FieldPath, Problem, nearest, show


def check(value: Any, type_: inspect.Type, path: FieldPath, problems: list[Problem]) -> Any:
    """Append the problems of ``value``. Return the value without nulls, which are equivalent to missing fields."""
    description = ""
    while isinstance(type_, inspect.Metadata):
        description = (type_.extra_json_schema or {}).get("description", description)
        type_ = type_.type
    if isinstance(type_, inspect.UnionType):
        return _check_union(value, type_, path, problems)
    if isinstance(type_, inspect.StructType):
        return _check_struct(value, type_, path, problems)
    if isinstance(type_, inspect.VarTupleType):
        return _check_list(value, type_, path, problems)
    if isinstance(type_, inspect.DictType):
        return _check_dict(value, type_, path, problems)
    leaf = _LEAVES.get(type(type_))
    message = leaf(value, type_, description) if leaf else None
    if message:
        problems.append(Problem(path, message))
    return value


def _check_union(value: Any, type_: inspect.UnionType, path: FieldPath, problems: list[Problem]) -> Any:
    members = [member for member in type_.types if not isinstance(member, inspect.NoneType)]
    if value is None and len(members) < len(type_.types):
        return None
    wanted = [member for member in members if isinstance(member, inspect.StructType) == isinstance(value, dict)]
    if isinstance(value, int) and not isinstance(value, bool):
        wanted = [member for member in members if _is_integer(member)] or wanted
    return check(value, (wanted or members)[0], path, problems)


def _is_integer(type_: inspect.Type) -> bool:
    return isinstance(inner_type(type_), inspect.IntType)


def _check_struct(value: Any, type_: inspect.StructType, path: FieldPath, problems: list[Problem]) -> Any:
    if not isinstance(value, dict):
        problems.append(Problem(path, f"{show(value)} is not a mapping; {_known_fields(type_)}"))
        return value
    fields = {field.encode_name: field for field in type_.fields}
    cleaned = {}
    for key, item in value.items():
        if key not in fields:
            problems.append(Problem((*path, str(key)), _unknown(str(key), type_)))
        elif item is not None:
            cleaned[key] = check(item, fields[key].type, (*path, key), problems)
    missing = [name for name, field in fields.items() if field.required and name not in cleaned]
    problems.extend(Problem((*path, name), "is missing; it has no default") for name in missing)
    return cleaned


def _unknown(name: str, type_: inspect.StructType) -> str:
    guess = nearest(name, [field.encode_name for field in type_.fields])
    if guess:
        return f"unknown field; did you mean '{guess}'?"
    deeper = [path for path in known_paths(type_) if path.rpartition(".")[2].lower() == name.replace("_", "").lower()]
    if deeper:
        return f"unknown field here; '{name}' belongs at '{deeper[0]}'"
    return f"unknown field; {_known_fields(type_)}"


def _known_fields(type_: inspect.StructType) -> str:
    return "known fields: " + ", ".join(sorted(field.encode_name for field in type_.fields))


def _check_list(value: Any, type_: inspect.VarTupleType, path: FieldPath, problems: list[Problem]) -> Any:
    if not isinstance(value, list | tuple):
        problems.append(
            Problem(path, f"{show(value)} is not a list; write it as '[…]' or as lines beginning with '- '")
        )
        return value
    if type_.max_length is not None and len(value) > type_.max_length:
        problems.append(Problem(path, f"{len(value)} items are too many; give at most {type_.max_length}"))
    return [check(item, type_.item_type, (*path, index), problems) for index, item in enumerate(value)]


def _check_dict(value: Any, type_: inspect.DictType, path: FieldPath, problems: list[Problem]) -> Any:
    if not isinstance(value, dict):
        problems.append(Problem(path, f"{show(value)} is not a mapping; write it as 'name: value' lines"))
        return value
    if type_.max_length is not None and len(value) > type_.max_length:
        problems.append(Problem(path, f"{len(value)} entries are too many; give at most {type_.max_length}"))
    cleaned = {}
    for key, item in value.items():
        check(key, type_.key_type, (*path, str(key)), problems)
        cleaned[key] = check(item, type_.value_type, (*path, str(key)), problems)
    return cleaned


def _string(value: Any, type_: inspect.StrType, description: str) -> str | None:
    if not isinstance(value, str):
        quoted = f'{show(value)} is not text; put it in quotes: "{value}"'
        return quoted if _is_scalar(value) else _type_error("text", value)
    if type_.max_length is not None and len(value) > type_.max_length:
        return f"{show(value)} is too long; give at most {type_.max_length} characters"
    if type_.min_length is not None and len(value) < type_.min_length:
        return f"is empty; give {description or 'some text'}"
    if type_.pattern is not None and not re.fullmatch(type_.pattern, value):
        return f"{show(value)} is not valid; give {description or 'text matching ' + type_.pattern}"
    return None


def _integer(value: Any, type_: inspect.IntType, _: str) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return f"{show(value)} is not a whole number; give a number {_bounds(type_)}"
    if (type_.ge is not None and value < type_.ge) or (type_.le is not None and value > type_.le):
        return f"{value} is out of range; give a whole number {_bounds(type_)}"
    return None


def _bounds(type_: inspect.IntType) -> str:
    return f"from {type_.ge} to {type_.le}"


def _boolean(value: Any, *_: object) -> str | None:
    return None if isinstance(value, bool) else _type_error("true or false", value)


def _literal(value: Any, type_: inspect.LiteralType, _: str) -> str | None:
    if value in type_.values:
        return None
    allowed = ", ".join(str(choice) for choice in type_.values)
    return f"{show(value)} is not allowed; {'use' if len(type_.values) == 1 else 'use one of'} {allowed}"


def _datetime(value: Any, *_: object) -> str | None:
    try:
        msgspec.convert(value, Timestamp)
    except msgspec.ValidationError:
        return f"{show(value)} is not a time; write it like '2026-01-31T12:00:00Z'"
    return None


def _is_scalar(value: Any) -> bool:
    return isinstance(value, bool | int | float)


def _type_error(what: str, value: Any) -> str:
    return f"{show(value)} is not {what}; give {what}"


_LEAVES: dict[type, Callable[[Any, Any, str], str | None]] = {
    inspect.StrType: _string,
    inspect.IntType: _integer,
    inspect.BoolType: _boolean,
    inspect.LiteralType: _literal,
    inspect.DateTimeType: _datetime,
}


@cache
def struct_type(cls: type[msgspec.Struct]) -> inspect.StructType:
    """Return the type of a struct as data. The result is cached."""
    type_ = inspect.type_info(cls)
    assert isinstance(type_, inspect.StructType)
    return type_


def inner_type(type_: inspect.Type) -> inspect.Type:
    """Return the type without metadata and None. If the type is a name or a struct, return the struct."""
    while isinstance(type_, inspect.Metadata):
        type_ = type_.type
    if isinstance(type_, inspect.UnionType):
        members = [inner_type(member) for member in type_.types if not isinstance(member, inspect.NoneType)]
        return next((member for member in members if isinstance(member, inspect.StructType)), members[0])
    return type_


def known_paths(type_: inspect.Type) -> Iterator[str]:
    """Yield all fields below a struct as dotted paths, shallow fields first."""
    level = [("", inner_type(type_))]
    while level:
        deeper = []
        for stem, struct in level:
            if isinstance(struct, inspect.StructType):
                for field in struct.fields:
                    path = f"{stem}.{field.encode_name}" if stem else field.encode_name
                    yield path
                    deeper.append((path, inner_type(field.type)))
        level = deeper


def convert(value: Any, cls: type[msgspec.Struct], problems: list[Problem]) -> Any:
    """Create the struct, or append its problems and return None."""
    found: list[Problem] = []
    cleaned = check(value, struct_type(cls), (), found)
    problems.extend(found)
    if found:
        return None
    try:
        return msgspec.convert(cleaned, cls)
    except (msgspec.ValidationError, RecursionError) as error:
        problems.append(Problem((), f"{error or 'it refers to itself'}; see the documentation of {cls.__name__}"))
        return None


def check_rules(resource: DebugTask | Episode | EpisodeSet | SandboxPool) -> list[Problem]:
    """Return the problems of a resource whose fields are each valid."""
    if isinstance(resource, DebugTask):
        return list(_task(resource.spec, ("spec",)))
    if isinstance(resource, Episode):
        return list(_episode(resource.spec, ("spec",)))
    if isinstance(resource, SandboxPool):
        return list(_pool(resource.spec, ("spec",)))
    return list(_set(resource))


def _pool(spec: SandboxPoolSpec | SetPool, path: FieldPath) -> Iterator[Problem]:
    if spec.max_idle is not None and spec.max_idle < spec.min_idle:
        yield Problem((*path, "maxIdle"), f"is {spec.max_idle}, less than minIdle ({spec.min_idle})")


def _episode(spec: EpisodeSpec, path: FieldPath) -> Iterator[Problem]:
    if spec.task is not None and spec.task_ref is not None:
        yield Problem((*path, "taskRef"), "cannot be combined with 'task'; keep exactly one of taskRef and task")
    elif spec.task is None and spec.task_ref is None:
        yield Problem((*path, "taskRef"), "is missing; give exactly one of taskRef and task")
    if spec.task is not None:
        yield from _task(spec.task, (*path, "task"))
    yield from _tools(spec.tools, path)


def _tools(tools: Iterable[str | ToolSpec], path: FieldPath) -> Iterator[Problem]:
    names = [tool if isinstance(tool, str) else tool.name for tool in tools]
    yield from _find_repeated(names, (*path, "tools"), "tool")


def _set(resource: EpisodeSet) -> Iterator[Problem]:
    spec = resource.spec
    path: FieldPath = ("spec",)
    if spec.task_selector is not None and spec.tasks:
        yield Problem(
            (*path, "tasks"), "cannot be combined with 'taskSelector'; keep exactly one of tasks and taskSelector"
        )
    elif spec.task_selector is None and not spec.tasks:
        yield Problem((*path, "tasks"), "is missing; give tasks or taskSelector ('{}' selects every task)")
    if spec.task_selector is not None:
        yield from _selector(spec.task_selector, (*path, "taskSelector"))
    yield from _find_repeated([task.name for task in spec.tasks], (*path, "tasks"), "task")
    for name, value in (("task", spec.template.task), ("taskRef", spec.template.task_ref)):
        if value is not None:
            yield Problem((*path, "template", name), "a set's tasks come from tasks or taskSelector; remove this field")
    yield from _tools(spec.template.tools, (*path, "template"))
    yield from _arms(spec, (*path, "arms"))
    if spec.pool is not None:
        yield from _pool(spec.pool, (*path, "pool"))


def _arms(spec: EpisodeSetSpec, path: FieldPath) -> Iterator[Problem]:
    yield from _find_repeated([arm.name for arm in spec.arms], path, "arm", lambda index: (*path, index, "name"))
    for index, arm in enumerate(spec.arms):
        yield from _tools(arm.tools, (*path, index))
        if spec.template.agent is None and arm.agent.name is None:
            yield Problem((*path, index, "agent", "name"), "is missing; name an agent here or in template.agent")


def _selector(selector: LabelSelector, path: FieldPath) -> Iterator[Problem]:
    for index, requirement in enumerate(selector.match_expressions):
        field = (*path, "matchExpressions", index, "values")
        if requirement.operator in ("In", "NotIn") and not requirement.values:
            yield Problem(field, f"is empty; operator {requirement.operator} needs at least one value")
        if requirement.operator in ("Exists", "DoesNotExist") and requirement.values:
            yield Problem(field, f"operator {requirement.operator} takes no values; remove them")


def _task(spec: DebugTaskSpec, path: FieldPath) -> Iterator[Problem]:
    files: tuple[InlineFile, ...] = ()
    if spec.source is not None:
        files = spec.source.files
        yield from _source(spec.source, (*path, "source"))
    if spec.requirements and spec.environment is not None and spec.environment.requirements:
        yield Problem(
            (*path, "requirements"), "cannot be combined with 'environment.requirements'; keep exactly one of them"
        )
    yield from _hashes(spec.requirements, (*path, "requirements"))
    if spec.environment is not None:
        yield from _hashes(spec.environment.requirements, (*path, "environment", "requirements"))
    yield from _scoring(spec.scoring, (*path, "scoring"))
    yield from _find_repeated([variable.name for variable in spec.env], (*path, "env"), "variable")
    size = sum(_size(file) for file in (*files, *spec.scoring.hidden_files))
    if size > INLINE_LIMIT:
        remedy = "move them to a ConfigMap (configMapRef), an archive, git or the image"
        yield Problem(
            (*path, "source", "files"), f"inline files contain {size} bytes, more than {INLINE_LIMIT}; {remedy}"
        )


def _hashes(requirements: Sequence[str], path: FieldPath) -> Iterator[Problem]:
    for index in without_hashes(requirements):
        remedy = "give hashes for all requirements or for none"
        yield Problem((*path, index), f"{requirements[index]!r} has no hash, but others have hashes; {remedy}")


def _source(source: SourceSpec, path: FieldPath) -> Iterator[Problem]:
    given = {
        "files": bool(source.files),
        "configMapRef": source.config_map_ref is not None,
        "git": source.git is not None,
        "archive": source.archive is not None,
        "localPath": source.local_path is not None,
    }
    chosen = [name for name, present in given.items() if present]
    if len(chosen) > 1:
        yield Problem(path, f"{' and '.join(chosen)} are given; at most one of {', '.join(given)} is allowed")
    yield from _files(source.files, (*path, "files"))
    if source.config_map_ref is not None:
        items_path = (*path, "configMapRef", "items")
        yield from _paths([item.path for item in source.config_map_ref.items], items_path)


def _scoring(scoring: Scoring, path: FieldPath) -> Iterator[Problem]:
    yield from _files(scoring.hidden_files, (*path, "hiddenFiles"))
    yield from _find_repeated(scoring.fail_to_pass, (*path, "failToPass"), "test")
    yield from _find_repeated(scoring.pass_to_pass, (*path, "passToPass"), "test")
    both = sorted(set(scoring.fail_to_pass) & set(scoring.pass_to_pass))
    if both:
        yield Problem((*path, "passToPass"), f"{both[0]!r} is also in failToPass; name each test once")
    if scoring.parser == "exitStatus" and (scoring.fail_to_pass or scoring.pass_to_pass):
        yield Problem(
            (*path, "parser"),
            "exitStatus does not report single tests; remove failToPass and passToPass or use pytest",
        )
    if scoring.evaluation is not None:
        yield from _evaluation(scoring, scoring.evaluation, (*path, "evaluation"))


def _evaluation(scoring: Scoring, evaluation: Evaluation, path: FieldPath) -> Iterator[Problem]:
    if scoring.fail_to_pass or scoring.pass_to_pass or scoring.parser != "auto":
        yield Problem(path, "cannot be combined with failToPass, passToPass or parser; name the tests in evaluation")
    if (evaluation.parser == "code") != (evaluation.parser_code is not None):
        yield Problem((*path, "parserCode"), "is required with parser 'code', and not allowed with another parser")
    exact = evaluation.rule == "exact"
    if exact != bool(evaluation.outcomes):
        yield Problem((*path, "outcomes"), "is required with rule 'exact', and not allowed with another rule")
    elif bool(evaluation.fail_to_pass or evaluation.pass_to_pass) == exact:
        remedy = "remove them, because rule 'exact' uses outcomes" if exact else "name at least one test"
        yield Problem((*path, "failToPass"), f"failToPass and passToPass do not match the rule; {remedy}")
    yield from _find_repeated(evaluation.fail_to_pass, (*path, "failToPass"), "test")
    yield from _find_repeated(evaluation.pass_to_pass, (*path, "passToPass"), "test")
    both = sorted(set(evaluation.fail_to_pass) & set(evaluation.pass_to_pass))
    if both:
        yield Problem((*path, "passToPass"), f"{both[0]!r} is also in failToPass; name each test once")


def _files(files: Sequence[InlineFile], path: FieldPath) -> Iterator[Problem]:
    yield from _paths([file.path for file in files], path)
    for index, file in enumerate(files):
        if (file.content is None) == (file.content_base64 is None):
            yield Problem((*path, index), f"{file.path}: give exactly one of content and contentBase64")
        elif file.content_base64 is not None and not _is_base64(file.content_base64):
            yield Problem((*path, index, "contentBase64"), "is not base64; encode the file with 'base64 -w0'")


def _paths(names: Sequence[str], path: FieldPath) -> Iterator[Problem]:
    yield from _find_repeated(names, path, "path", lambda index: (*path, index, "path"))
    for index, name in enumerate(names):
        parts = name.split("/")
        if any(part in ("", ".", "..") for part in parts):
            yield Problem((*path, index, "path"), f"{name!r} has an empty, '.' or '..' part; write the plain path")
        elif ".git" in parts:
            yield Problem((*path, index, "path"), f"{name!r} is in .git, which is never delivered; remove it")


def _find_repeated(
    names: Iterable[str], path: FieldPath, what: str, at: Callable[[int], FieldPath] | None = None
) -> Iterator[Problem]:
    seen: set[str] = set()
    for index, name in enumerate(names):
        if name in seen:
            yield Problem(at(index) if at else (*path, index), f"{what} {name!r} is named twice; keep one")
        seen.add(name)


def _is_base64(text: Any) -> bool:
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return False
    return True


def _size(file: InlineFile) -> int:
    if file.content_base64 is not None:
        return len(file.content_base64) * 3 // 4
    return len((file.content or "").encode())
