"""Checking plain data against the structs, so that all faults are found at once.

``msgspec.convert`` stops at the first fault and suggests no remedy. Here the types that msgspec reports for a
struct are walked beside the data; without problems, ``msgspec.convert`` makes the struct.
"""

import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect

from dgym.api.fields import Timestamp
from dgym.errors import FieldPath, Problem, nearest, show


def check(value: Any, type_: inspect.Type, path: FieldPath, problems: list[Problem]) -> Any:
    """Append the problems of ``value``; return it without the nulls that mean "not given"."""
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
        problems.append(Problem(path, f"{len(value)} items are too many; at most {type_.max_length}"))
    return [check(item, type_.item_type, (*path, index), problems) for index, item in enumerate(value)]


def _check_dict(value: Any, type_: inspect.DictType, path: FieldPath, problems: list[Problem]) -> Any:
    if not isinstance(value, dict):
        problems.append(Problem(path, f"{show(value)} is not a mapping; write it as 'name: value' lines"))
        return value
    if type_.max_length is not None and len(value) > type_.max_length:
        problems.append(Problem(path, f"{len(value)} entries are too many; at most {type_.max_length}"))
    cleaned = {}
    for key, item in value.items():
        check(key, type_.key_type, (*path, str(key)), problems)
        cleaned[key] = check(item, type_.value_type, (*path, str(key)), problems)
    return cleaned


def _string(value: Any, type_: inspect.StrType, description: str) -> str | None:
    if not isinstance(value, str):
        return f'{show(value)} is not text; put it in quotes: "{value}"' if _is_scalar(value) else _not("text", value)
    if type_.max_length is not None and len(value) > type_.max_length:
        return f"{show(value)} is too long; at most {type_.max_length} characters"
    if type_.min_length is not None and len(value) < type_.min_length:
        return f"is empty; give {description or 'some text'}"
    if type_.pattern is not None and not re.fullmatch(type_.pattern, value):
        return f"{show(value)} is not valid; give {description or 'text matching ' + type_.pattern}"
    return None


def _integer(value: Any, type_: inspect.IntType, _: str) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return f"{show(value)} is not a whole number; give one {_bounds(type_)}"
    if (type_.ge is not None and value < type_.ge) or (type_.le is not None and value > type_.le):
        return f"{value} is out of range; give a whole number {_bounds(type_)}"
    return None


def _bounds(type_: inspect.IntType) -> str:
    return f"from {type_.ge} to {type_.le}"


def _boolean(value: Any, *_: object) -> str | None:
    return None if isinstance(value, bool) else _not("true or false", value)


def _literal(value: Any, type_: inspect.LiteralType, _: str) -> str | None:
    if value in type_.values:
        return None
    allowed = ", ".join(str(choice) for choice in type_.values)
    return f"{show(value)} is not allowed; {'it must be' if len(type_.values) == 1 else 'one of'} {allowed}"


def _datetime(value: Any, *_: object) -> str | None:
    try:
        msgspec.convert(value, Timestamp)
    except msgspec.ValidationError:
        return f"{show(value)} is not a time; write it like '2026-01-31T12:00:00Z'"
    return None


def _is_scalar(value: Any) -> bool:
    return isinstance(value, bool | int | float)


def _not(what: str, value: Any) -> str:
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
    """The type of a struct as data, computed once."""
    type_ = inspect.type_info(cls)
    assert isinstance(type_, inspect.StructType)
    return type_


def inner_type(type_: inspect.Type) -> inspect.Type:
    """The type without metadata and without None; of a name-or-struct the struct."""
    while isinstance(type_, inspect.Metadata):
        type_ = type_.type
    if isinstance(type_, inspect.UnionType):
        members = [inner_type(member) for member in type_.types if not isinstance(member, inspect.NoneType)]
        return next((member for member in members if isinstance(member, inspect.StructType)), members[0])
    return type_


def known_paths(type_: inspect.Type, prefix: str = "") -> Iterator[str]:
    """All fields below a struct as dotted paths, shallow ones first."""
    level = [(prefix, inner_type(type_))]
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
    """Make the struct, or append its problems and return None."""
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
