"""A program for :func:`dgym.untrusted.ask` that analyses the text of a Python file without executing it.

A request is ``[what, text]``. The answer depends on ``what``:

- ``setup``: the keyword arguments of ``setup()``;
- ``nox``: the calls of each session;
- ``tests``: the imported packages, the functions, their parameters, and the pytest marks.
"""

import ast
from collections.abc import Sequence
from typing import Any

_STRINGS = 2_000
_DEPTH = 60


def answer(request: tuple[str, str]) -> Any:
    """Answer one request.

    Raises:
        SyntaxError: The text is not valid Python.
    """
    what, text = request
    return {"setup": _setup, "nox": _nox, "tests": _tests}[what](ast.parse(text))


def _setup(tree: ast.Module) -> dict[str, Any]:
    names = _module_values(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and "setup" in (getattr(node.func, "id", None), getattr(node.func, "attr", None)):
            found: dict[str, Any] = {}
            for keyword in node.keywords:
                value = _constant(keyword.value, names)
                if keyword.arg is not None:
                    found[keyword.arg] = value
                elif isinstance(value, dict):
                    found.update(value)
            return found
    return {}


def _nox(tree: ast.Module) -> list[dict[str, Any]]:
    names = _module_values(tree)
    sessions = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and any(
            "session" in ast.dump(decorator) for decorator in node.decorator_list
        ):
            calls = [
                [call.func.attr, _words(call.args, names)]
                for call in ast.walk(node)
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
            ]
            sessions.append({"name": node.name, "calls": [call for call in calls if call[1]]})
    return sessions


def _words(nodes: Sequence[ast.expr], names: dict[str, Any]) -> list[str]:
    found: list[str] = []
    for node in nodes[:_STRINGS]:
        value = _constant(node.value if isinstance(node, ast.Starred) else node, names)
        found += [word for word in (value if isinstance(value, list) else [value]) if isinstance(word, str)]
    return found


def _tests(tree: ast.Module) -> dict[str, list[str]]:
    imports: dict[str, None] = {}
    for statement in tree.body:
        if isinstance(statement, ast.Import):
            imports.update(dict.fromkeys(alias.name.partition(".")[0] for alias in statement.names))
        elif isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
            imports[statement.module.partition(".")[0]] = None
    nodes = list(ast.walk(tree))
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    marks = [
        node.attr for node in nodes if isinstance(node, ast.Attribute) and getattr(node.value, "attr", "") == "mark"
    ]
    parameters = [argument.arg for node in functions for argument in (*node.args.args, *node.args.kwonlyargs)]
    return {
        "imports": list(imports),
        "functions": sorted({node.name for node in functions}),
        "marks": list(dict.fromkeys(marks)),
        "parameters": sorted(set(parameters)),
    }


class _Unknown(Exception):
    """The value of an expression cannot be determined without execution."""


def _module_values(tree: ast.Module) -> dict[str, Any]:
    """The constant values (texts, lists and dictionaries) of the module's variables."""
    names: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, value = node.targets[0], _constant(node.value, names)
            if isinstance(target, ast.Name):
                names[target.id] = value
            elif isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
                key, holder = _constant(target.slice, names), names.get(target.value.id)
                if isinstance(holder, dict) and isinstance(key, str) and len(holder) < _STRINGS:
                    holder[key] = value
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            known = names.get(node.target.id)
            added = _constant(node.value, names)
            if isinstance(known, list) and isinstance(added, list) and len(known) + len(added) < _STRINGS:
                names[node.target.id] = known + added
    return names


def _constant(node: ast.expr | None, names: dict[str, Any]) -> Any:
    """The value of a constant expression, or None if it is not constant."""
    try:
        return None if node is None else _evaluate(node, names, 0)
    except _Unknown:
        return None


def _evaluate(node: ast.expr, names: dict[str, Any], depth: int) -> Any:
    if depth > _DEPTH:
        raise _Unknown
    match node:
        case ast.Constant():
            return node.value
        case ast.Name():
            return names.get(node.id)
        case ast.List() | ast.Tuple() | ast.Set():
            return _list(node.elts, names, depth)
        case ast.Dict():
            return _dictionary(node, names, depth)
        case ast.BinOp(op=ast.Add()):
            return _sum(_evaluate_or_none(node.left, names, depth), _evaluate_or_none(node.right, names, depth))
        case ast.Call(func=ast.Name(id="dict")):
            return {key.arg: _evaluate_or_none(key.value, names, depth) for key in node.keywords if key.arg is not None}
        case ast.Call(func=ast.Name(id="list" | "tuple" | "sorted" | "set"), args=[only]):
            return _evaluate(only, names, depth + 1)
        case ast.Subscript():
            holder, key = _evaluate_or_none(node.value, names, depth), _evaluate_or_none(node.slice, names, depth)
            if isinstance(holder, dict) and isinstance(key, str):
                return holder.get(key)
    raise _Unknown


def _list(nodes: Sequence[ast.expr], names: dict[str, Any], depth: int) -> list[Any]:
    items: list[Any] = []
    for item in nodes[:_STRINGS]:
        if isinstance(item, ast.Starred):
            more = _evaluate_or_none(item.value, names, depth)
            items += more if isinstance(more, list) else []
        else:
            items.append(_evaluate_or_none(item, names, depth))
        if len(items) > _STRINGS:
            raise _Unknown
    return items


def _sum(left: Any, right: Any) -> Any:
    """The concatenation of two texts or two lists. If one value is a list and the other is unknown, the list."""
    if isinstance(left, str) and isinstance(right, str) and len(left) + len(right) <= _STRINGS:
        return left + right
    if isinstance(left, list) or isinstance(right, list):
        both = [*(left if isinstance(left, list) else ()), *(right if isinstance(right, list) else ())]
        if len(both) <= _STRINGS:
            return both
    raise _Unknown


def _evaluate_or_none(node: ast.expr, names: dict[str, Any], depth: int) -> Any:
    try:
        return _evaluate(node, names, depth + 1)
    except _Unknown:
        return None


def _dictionary(node: ast.Dict, names: dict[str, Any], depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in list(zip(node.keys, node.values, strict=True))[:_STRINGS]:
        known = _evaluate_or_none(value, names, depth)
        if key is None:
            found.update(known if isinstance(known, dict) else {})
        elif isinstance(name := _evaluate_or_none(key, names, depth), str):
            found[name] = known
    return found
